"""Harbor's trials as agents, and its task folders as a taskset.

The public face is ``evert.harbor``.

    folders.py      task folders: found, checked, some of them held out
    tasks.py        ``tasks=harbor:PATH``
    options.py      what a user says of a trial, checked
    profiles.py     what is set for each of Harbor's agents
    agent.py        ``HarborAgent``: a trial as an agent
    plan.py         what a task's Dockerfile asks for, where that needs no image
    bubblewrap.py   ``Bubblewrap``: an environment of Harbor's without containers
    inside.py       the program in it that runs the commands
"""
