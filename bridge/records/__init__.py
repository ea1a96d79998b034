"""Writes, reads and replays rollouts.

In reading order:

    rows.py         a rollout as a row: the schema
    recorder.py     ``Recorder``: rows into files
    schema.py       checks of a row that is read
    checks.py       describes a wrong field
    traces.py       other programs' traces as rows
    trace_models.py the fields of such traces
    files.py        the files of recorded rollouts
    record.py       ``RolloutRecord``: a row that was read; ``read_records``: all of a run
    chats.py        a recorded conversation in the format of chat trainers
    replay.py       ``ReplayPolicy``: a record in place of a model; where the agent differs
    explain.py      a rollout in the terminal
    sequences.py    a trajectory as token sequences, or as text
    row_files.py    files of rows that other programs wrote: demonstrations, tasks
"""
