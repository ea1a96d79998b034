"""This machine: files, processes, commands.

In reading order:

    command.py     how every command runs: help, one-line errors, Ctrl-C
    files.py       files of run folders: written atomically, read even if damaged
    provenance.py  versions, machine and revision, for records
    machine.py     this machine's cores and free memory
"""
