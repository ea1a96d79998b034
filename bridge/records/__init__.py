"""Rollouts on record: a JSON line each, played again without a model, gone on from anywhere.

In reading order:

    transcript.py   what an agent asked, kept by an Env while it is played
    rows.py         a rollout as a row: the schema
    recorder.py     ``Recorder``: rows into files
    schema.py       what a row has to hold to be read
    files.py        where rollouts on record are
    record.py       ``RolloutRecord``: a row, read; ``read_records``: those of a run
    replay.py       ``ReplayPolicy``: a record in the place of a model; where the agent differs
    branches.py     from a turn of a record on, sampled anew; a dataset of such branches
"""
