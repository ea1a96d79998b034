#!/bin/sh
reward=0
cd /app/work
if [ "$(find . -type f | sort)" = "$(printf './drafts/a.tmp.md\n./drafts/one.md\n./plan.txt\n./tmp')" ] &&
    [ "$(cat drafts/a.tmp.md drafts/one.md plan.txt tmp)" = "$(printf 'kept\none\nplan\nkept')" ]; then
    reward=1
fi
echo $reward > /logs/verifier/reward.txt
