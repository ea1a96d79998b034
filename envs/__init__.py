"""Games, written as plain agents, and adapters to and from Gymnasium environments.

    games.py           the ``Game`` class and how games are found
    tasksets/          games created from a benchmark's name: ``tasks=reasoning_gym:chain_sum``
    as_gymnasium/      agents as Gymnasium environments
    from_gymnasium/    Gymnasium environments as agents

Every other file or folder here is a game, which consists of an agent, its tasks and a training
recipe (in ``GAME``). Start with ``identity.py`` (one turn), then read ``guess_number.py`` (ten
turns) and ``twenty_questions/`` (which has data, answerers and scripted players).
"""
