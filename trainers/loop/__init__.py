"""Parts for a training loop of your own: rollouts as arrays, and models in training.

In reading order:

    rollout.py  ``rollout``: plays episodes of tasks
    batch.py    ``Batch``: the episodes' rewards as arrays, and the data to train on
    models.py   ``evert.models``: models that play, score texts and learn
    scoring.py  converts texts and conversations to datums, and log-probabilities to arrays
"""
