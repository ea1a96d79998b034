#!/bin/sh
grep -ciw sea poem.txt > count.txt
