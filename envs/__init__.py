"""Games as plain agents, and agents as Gymnasium environments.

    games.py           the class ``Game``, and the search for games
    tasksets/          games made from a benchmark's name: ``tasks=reasoning_gym:chain_sum``
    as_gymnasium/      agents as Gymnasium environments
    from_gymnasium/    Gymnasium environments as agents

Every other file or folder here is a game: an agent, tasks and, in ``GAME``, the recipe to train a
model. Read ``identity.py`` (one turn) first, then ``guess_number.py`` (ten turns) and
``twenty_questions/`` (with data, answerers and players).
"""
