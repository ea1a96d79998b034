#!/bin/sh
zcat -f notes/* | sed -n 's/^code: *\(.*[^ ]\) *$/\1/p' > found.txt
