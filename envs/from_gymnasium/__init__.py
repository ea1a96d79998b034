"""Gymnasium's games as agents: a policy plays them in words.

Read in this order:

    agent.py          ``GymAgent``: an environment of Gymnasium's as an agent
    actions.py        its actions by name, and what a reply means
    prompt.py         what a policy is told first, from the environment's docstring
    observations.py   what it is told then: observations in words, Gymnasium's and MiniGrid's
    recipe.py         how ``tasks=gymnasium:Blackjack-v1`` trains on one
"""
