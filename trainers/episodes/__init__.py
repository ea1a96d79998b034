"""Who plays, episodes played, and how they went.

In reading order:

    failures.py  why episodes fail, and how it is said
    policies.py  what answers the agent's calls meanwhile
    scores.py    success with its interval, by model, split and category; the tables
    playing.py   playing, and the record of every episode (``episodes.jsonl``)
    players.py   who plays an evaluation: weights, endpoints, players without a model
"""
