"""Turns Gymnasium environments into agents that a language model can play as text.

Suggested reading order:

    agent.py          ``GymAgent``: a Gymnasium environment as an agent
    actions.py        action names, and parsing of replies
    prompt.py         the system message, based on the environment's docstring
    observations.py   observations as text, for Gymnasium and MiniGrid
    recipe.py         the training recipe for ``tasks=gymnasium:Blackjack-v1``
"""
