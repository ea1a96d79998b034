"""Harbor's trials as agents, and its task folders as a taskset.

``evert.harbor`` has the public names.

    folders.py      finds and checks task folders, and holds some out
    tasks.py        ``tasks=harbor:PATH``
    options.py      the user's options of a trial, checked
    profiles.py     what evert sets for each of Harbor's agents
    agent.py        ``HarborAgent``: a trial as an agent
    plan.py         the instructions of a task's Dockerfile that need no image
    bubblewrap.py   ``Bubblewrap``: an environment of Harbor without containers
    inside.py       the program in that environment that runs the commands
"""
