"""Writes, reads and replays rollouts.

In reading order:

    rows.py         turns a rollout into a row
    recorder.py     ``Recorder``: writes rows to files
    schema.py       checks rows against their schema
    checks.py       describes a wrong field
    traces.py       reads other programs' traces as rows
    trace_models.py the fields of those traces
    files.py        finds the files of recorded rollouts
    record.py       ``RolloutRecord``: one rollout; ``read_records``: all rollouts of a run
    chats.py        a recorded conversation in the format of chat trainers
    replay.py       ``ReplayPolicy``: a record in place of a model; ``replay``: checks an agent
    explain.py      prints a rollout in the terminal
    sequences.py    a trajectory as token sequences, or as text
    row_files.py    reads demonstrations and tasks from files of other programs
"""
