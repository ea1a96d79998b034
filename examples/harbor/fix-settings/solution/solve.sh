#!/bin/sh
sed -i -e 's/^prot/port/' -e 's/^\([a-z-]*\) *[=:] */\1=/' settings.conf
