"""Load runs, and draw plots of runs, evaluations and sweeps.

In reading order:

    run.py      reads a run folder
    panels.py   defines which metrics to plot for a run
    figures/    functions to draw single plots of runs, evaluations and sweeps
    drawing.py  draws all plots that compare several runs, with one line per run
"""
