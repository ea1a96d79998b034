"""Every figure of the project: functions from data to a Matplotlib ``Figure``.

In reading order:

    colours.py       the colours of runs
    style.py         the style that all figures share: colours, sizes, line labels; ``save``
    curves.py        a metric by step or by time; a run's rewards
    bars.py          scores with their intervals; where the time went
    pass_at_plot.py  pass@k by k
    sweep.py         a sweep's runs as parallel coordinates
    formatting.py    formats numbers and long texts
    metrics.py       a run's metrics by step
"""
