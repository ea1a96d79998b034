#!/bin/sh
sed -i 's,http://old\.example,https://new.example,g' site/*
