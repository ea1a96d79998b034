"""Every figure of the project: data in, a Matplotlib ``Figure`` out; ``style.save`` writes it.

In reading order:

    colours.py     the colours of runs
    style.py       what all figures share: colours, sizes, names at lines, files
    curves.py      a metric by step or by time; a run's rewards
    bars.py        scores with their intervals; where the time went
    pass_at.py     pass@k by k
    sweep.py       a sweep's runs as parallel coordinates
    formatting.py  numbers and long texts as shown
    metrics.py     a run's metrics by step
"""
