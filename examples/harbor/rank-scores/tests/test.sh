#!/bin/sh
# The correct names in a different order earn half the reward.
order=0 names=0
[ "$(cat /app/top.txt)" = "$(printf 'Cleo\nFay\nDan')" ] && order=1
[ "$(sort /app/top.txt)" = "$(printf 'Cleo\nDan\nFay')" ] && names=1
case $order$names in
11) reward=1 ;;
01) reward=0.5 ;;
*) reward=0 ;;
esac
echo "{\"reward\": $reward, \"names\": $names}" > /logs/verifier/reward.json
