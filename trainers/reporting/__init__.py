"""Reads runs, and draws the figures of runs, evaluations and sweeps.

In reading order:

    run.py      reads a run folder
    panels.py   the figures that runs have, and their metrics
    figures/    draws single figures of runs, evaluations and sweeps
    drawing.py  draws all figures of some runs, with a line for each run
"""
