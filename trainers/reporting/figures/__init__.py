"""All plots, as functions that take data and return a Matplotlib ``Figure``.

In reading order:

    colours.py       colours of runs
    style.py         shared style: colours, sizes and line labels; and ``save``
    curves.py        metrics by step or time, and the rewards of a run
    bars.py          scores with confidence intervals, and where the time went
    pass_at_plot.py  pass@k by k
    sweep.py         the runs of a sweep as parallel coordinates
    formatting.py    formatting of numbers and long texts
    metrics.py       a run's metrics by step
"""
