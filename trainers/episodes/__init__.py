"""Playing episodes, their players and their results.

In reading order:

    failures.py   kinds and descriptions of failures
    policies.py   the policies, which answer the agent's calls
    intervals.py  the 95 % interval of a mean or of a share
    pass_at.py    pass@k: the share of tasks that one of k episodes solves
    scores.py     success with its interval, by model, split and category; the tables
    playing.py    playing, and the record of every episode (``episodes.jsonl``)
    person.py     a person who types the replies at the terminal
    players.py    who plays: weights, endpoints, a person, players without a model
    showing.py    an episode in the terminal, turn by turn
"""
