"""Writes, reads and replays rollouts.

In reading order:

    rows.py         a rollout as a row
    recorder.py     ``Recorder``: rows into files
    schema.py       the schema of rows, and its check
    checks.py       describes a wrong field
    traces.py       reads other programs' traces as rows
    trace_models.py the fields of those traces
    files.py        the files of recorded rollouts
    record.py       ``RolloutRecord``: a row; ``read_records``: all of a run's
    chats.py        a recorded conversation in the format of chat trainers
    replay.py       ``ReplayPolicy``: a record in place of a model; where the agent differs
    explain.py      a rollout in the terminal
    sequences.py    a trajectory as token sequences, or as text
    row_files.py    files of rows from other programs: demonstrations, tasks
"""
