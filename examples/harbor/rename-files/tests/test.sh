#!/bin/sh
reward=0
cd /app/photos
if [ "$(ls)" = "$(printf 'lake.jpg\nme.jpg\nold-tree.jpg\nstreet-at-night.png')" ] &&
    [ "$(cat lake.jpg me.jpg old-tree.jpg street-at-night.png)" = "$(printf 'lake\nme\ntree\nstreet')" ]; then
    reward=1
fi
echo $reward > /logs/verifier/reward.txt
