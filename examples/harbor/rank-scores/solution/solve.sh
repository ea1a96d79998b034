#!/bin/sh
sort -k 2 -n -r scores.txt | head -n 3 | cut -d ' ' -f 1 > top.txt
