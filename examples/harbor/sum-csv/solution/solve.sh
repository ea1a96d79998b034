#!/bin/sh
awk -F, '$2 == "lamp" { sum += $3 * $4 } END { print sum }' sales.csv > /app/total.txt
