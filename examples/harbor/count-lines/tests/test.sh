#!/bin/sh
if [ "$(cat /app/count.txt)" = 4 ]; then reward=1; else reward=0; fi
echo $reward > /logs/verifier/reward.txt
