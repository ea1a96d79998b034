#!/bin/bash
cd photos
for file in *; do
    new=${file,,}
    new=${new// /-}
    [ "$file" = "$new" ] || mv "$file" "$new"
done
