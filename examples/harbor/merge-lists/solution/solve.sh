#!/bin/sh
for list in lists/*; do sort -u "$list"; done | sort | uniq -d > merged.txt
