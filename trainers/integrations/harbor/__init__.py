"""Use Harbor trials as agents, and Harbor task folders as a taskset.

The public API is in ``evert.harbor``.

    folders.py      find and validate task folders, and hold out some of the tasks
    tasks.py        ``tasks=harbor:PATH``
    options.py      validate the user's trial options
    profiles.py     evert's default settings for each Harbor agent
    agent.py        ``HarborAgent``: a trial as an agent
    plan.py         emulates a task's Dockerfile without building an image
    bubblewrap.py   ``Bubblewrap``: a Harbor environment without containers
    inside.py       the program that runs commands in that environment
"""
