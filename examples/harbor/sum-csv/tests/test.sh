#!/bin/sh
# 2 * 1990 + 1 * 2190 + 3 * 1850
if [ "$(cat /app/total.txt)" = 11720 ]; then reward=1; else reward=0; fi
echo $reward > /logs/verifier/reward.txt
