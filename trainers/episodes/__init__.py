"""Plays and scores episodes.

Modules:

    failures.py   classifies and describes failures
    policies.py   policies that answer the agent's calls
    scores.py     computes means, rates and pass@k with intervals, and shows them in tables
    playing.py    plays episodes and records them (``episodes.jsonl``)
    person.py     lets a person type the replies at the terminal
    players.py    who plays: weights, endpoints, a person, or players without a model
    showing.py    shows an episode in the terminal, turn by turn
"""
