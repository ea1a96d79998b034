"""The parts of ``evert evaluate`` (``evaluate.py``).

In reading order:

    settings.py     what to evaluate: every value a command-line key
    contestants.py  who plays: weights, endpoints, players without a model
    episodes.py     playing, and the record of every episode (``episodes.jsonl``)
    policies.py     what answers the agent's calls meanwhile
    scores.py       success with its interval, by model, split and category; the tables
    held_out.py     playing held-out tasks before and after training
"""
