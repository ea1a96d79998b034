#!/bin/sh
# Each of the three files earns a third, provided that the fourth is unchanged.
cd /app/site
right=0
is() { [ "$(cat "$1")" = "$(printf "$2")" ]; }
is index.html '<a href="https://new.example/start">Start</a> <a href="https://new.example/help">Help</a>' && right=$((right + 1))
is about.html '<p>Write to us: https://new.example/write</p>\n<p>The old example is gone.</p>' && right=$((right + 1))
is links.txt 'https://elsewhere.example\nhttps://new.example' && right=$((right + 1))
is notes.txt 'Nothing to replace: old.example' || right=0
case $right in 3) reward=1 ;; 2) reward=0.67 ;; 1) reward=0.33 ;; *) reward=0 ;; esac
echo "{\"reward\": $reward, \"files\": $right}" > /logs/verifier/reward.json
