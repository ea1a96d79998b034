"""Low-level helpers for files, processes and commands.

In reading order:

    command.py     common behavior of all commands: help, one-line errors, Ctrl-C
    files.py       writing files atomically, and reading possibly damaged files
    provenance.py  package versions, machine and git revision, for records
    machine.py     number of cores and free memory
"""
