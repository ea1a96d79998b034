"""The parts of ``evert sweep`` (``sweep.py``).

In reading order:

    space.py    what is searched
    record.py   every attempt at every run (Optuna)
    folder.py   what a sweep leaves behind, and resuming
    runs.py     runs as processes, and how many fit
    results.py  the tables, the best
"""
