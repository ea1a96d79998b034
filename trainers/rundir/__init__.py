"""Reading and writing the files in a run's folder.

In reading order:

    folder.py          the run folder and its lock
    metrics.py         per-step metrics
    recorded.py        reading and changing recorded rollouts
    export_formats.py  export formats for recorded rollouts
    trace_formats.py   export formats that represent a rollout as a trace
"""
