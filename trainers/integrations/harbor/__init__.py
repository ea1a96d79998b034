"""Harbor's trials as agents, and its task folders as a taskset.

``evert.harbor`` has the public names.

    folders.py      finds and checks task folders, and holds some tasks out
    tasks.py        ``tasks=harbor:PATH``
    options.py      checks the user's options of a trial
    profiles.py     the settings that evert sets for each of Harbor's agents
    agent.py        ``HarborAgent``: a trial as an agent
    plan.py         the instructions of a task's Dockerfile that need no image
    bubblewrap.py   ``Bubblewrap``: a Harbor environment without containers
    inside.py       the program that runs commands in that environment
"""
