"""Plays and scores episodes.

In reading order:

    failures.py   kinds and descriptions of failures
    policies.py   the policies that answer the agent's calls
    scores.py     means, shares and pass@k with intervals, by model, split and category; tables
    playing.py    plays episodes, and records each (``episodes.jsonl``)
    person.py     a person who types the replies at the terminal
    players.py    who plays: weights, endpoints, a person, players without a model
    showing.py    shows an episode in the terminal, turn by turn
"""
