"""All plots, as functions that take data and return a Matplotlib ``Figure``.

In reading order:

    colours.py       colours for runs
    style.py         shared style: colours, sizes and line labels; and ``save``
    curves.py        metrics over steps or time, and a run's rewards
    bars.py          scores with confidence intervals, and where the time went
    pass_at_plot.py  pass@k against k
    sweep.py         a sweep's runs as parallel coordinates
    formatting.py    formatting numbers and long texts
    metrics.py       a run's per-step metrics
"""
