#!/bin/sh
find work -type f \( -empty -o -name '*.tmp' \) -delete
