"""Building blocks for custom training loops: rollouts as arrays, and models in training.

Modules:

    rollout.py  ``rollout``: plays episodes for a list of tasks
    batch.py    ``Batch``: the episodes' rewards as arrays, and the data to train on
    models.py   ``evert.models``: models that can play, score text and be trained
    scoring.py  converts text and conversations to datums, and log-probabilities to arrays
"""
