#!/bin/sh
if [ "$(cat /app/found.txt)" = tangerine-7 ]; then reward=1; else reward=0; fi
echo $reward > /logs/verifier/reward.txt
