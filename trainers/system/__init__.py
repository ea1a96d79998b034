"""This machine: files, processes, commands.

In reading order:

    command.py     running a command: help, errors in a line, Ctrl-C
    files.py       its files: written whole, read whatever became of them
    provenance.py  versions, machine, revision: what its figures come from
    machine.py     this machine's cores and free memory
"""
