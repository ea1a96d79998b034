"""Writes, reads and replays rollouts.

In reading order:

    rows.py         converts a rollout to a row
    recorder.py     ``Recorder``: writes rows to files
    schema.py       checks rows against their schema
    checks.py       describes invalid fields
    traces.py       reads traces from other programs as rows
    trace_models.py the fields of those traces
    files.py        finds the files that contain recorded rollouts
    record.py       ``RolloutRecord``: one rollout; ``read_records``: all rollouts of a run
    chats.py        exports recorded conversations in the format of chat trainers
    replay.py       ``ReplayPolicy``: plays back a record; ``replay``: tests an agent with it
    explain.py      prints a rollout in the terminal
    sequences.py    converts trajectories to token sequences or text
    row_files.py    reads demonstrations and tasks from files by other programs
"""
