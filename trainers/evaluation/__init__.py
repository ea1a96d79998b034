"""Who plays in an evaluation.

In reading order:

    players.py  who plays: weights, endpoints, players without a model
"""
