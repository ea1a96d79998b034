"""The parts of ``evert sweep`` (``sweep.py``).

In reading order:

    loop.py       the sweep: its folder, doing the runs, the report
    study.py      what is searched, and every attempt at every run: on Optuna
    results.py    the objective of a run, and which values are best
"""
