#!/bin/sh
grep ' 500$' server.log | cut -d ' ' -f 2 | sort | uniq -c | sort -n | tail -1 | awk '{ print $2, $1 }' > answer.txt
