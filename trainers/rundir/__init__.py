"""The files that a run leaves in its folder.

In reading order:

    folder.py          the files of the folder, and its lock
    metrics.py         a run's metrics by step
    recorded.py        the rollouts that a run recorded
    export_formats.py  those rollouts in the formats of other programs
    trace_formats.py   those rollouts as traces
"""
