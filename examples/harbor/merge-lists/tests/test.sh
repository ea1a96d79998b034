#!/bin/sh
if [ "$(cat /app/merged.txt)" = "$(printf 'fig\nkiwi\nplum')" ]; then reward=1; else reward=0; fi
echo $reward > /logs/verifier/reward.txt
