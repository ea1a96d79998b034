"""Rollouts written, read, replayed.

In reading order:

    rows.py       a rollout as a row: the schema
    recorder.py   ``Recorder``: rows into files
    schema.py     what a row has to hold to be read
    files.py      where rollouts on record are
    record.py     ``RolloutRecord``: a row, read; ``read_records``: those of a run
    replay.py     ``ReplayPolicy``: a record in the place of a model; where the agent differs
    explain.py    a rollout for people
    sequences.py  a trajectory as plain token sequences, or as what was told and said
"""
