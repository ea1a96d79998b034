"""This machine: files, processes, commands.

In reading order:

    command.py     running a command: help, errors in one line, Ctrl-C
    files.py       files of run folders: written whole, and read even if damaged
    provenance.py  versions, machine and revision, for records
    machine.py     this machine's cores and free memory
"""
