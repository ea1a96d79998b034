#!/bin/sh
cat > /tmp/expected <<'LINES'
name=lighthouse
port=8080
host=0.0.0.0
retries=3
log-file=/var/log/light house.log
colour=red
LINES
if cmp -s /tmp/expected /app/settings.conf; then reward=1; else reward=0; fi
right=$(grep -cxFf /tmp/expected /app/settings.conf)
echo "{\"reward\": $reward, \"right\": ${right:-0}}" > /logs/verifier/reward.json
