#!/bin/sh
# The host alone earns part of the reward.
case "$(cat /app/answer.txt)" in
"dog 31") reward=1 host=1 ;;
"dog "*) reward=0.5 host=1 ;;
*) reward=0 host=0 ;;
esac
echo "{\"reward\": $reward, \"host\": $host}" > /logs/verifier/reward.json
