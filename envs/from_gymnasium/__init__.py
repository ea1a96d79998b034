"""Gymnasium environments as agents: a policy plays them in words.

Read in this order:

    agent.py          ``GymAgent``: a Gymnasium environment as an agent
    actions.py        names of actions, and how replies are parsed
    prompt.py         the system message, from the environment's docstring
    observations.py   observations in words, for Gymnasium and MiniGrid
    recipe.py         the training recipe of ``tasks=gymnasium:Blackjack-v1``
"""
