"""The games, as plain agents, and agents as Gymnasium environments.

    games.py           what a game is, and how the games are found
    tasksets/          games that a package makes of a name: ``tasks=reasoning_gym:chain_sum``
    as_gymnasium/      agents as Gymnasium environments
    from_gymnasium/    Gymnasium environments as agents

Every other file or folder here is a game: its agent, its tasks and, in ``GAME``, how a model is
trained on it. Read ``identity.py`` (one turn) first, then ``guess_number.py`` (ten turns) and
``twenty_questions/`` (a game with a world in it: data, answerers, players).
"""
