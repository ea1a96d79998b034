"""The parts of a training loop of your own: rollouts as arrays, and models in training.

In reading order:

    rollout.py  ``rollout``: plays the episodes of some tasks
    batch.py    ``Batch``: their rewards as arrays, and the data to train on
    models.py   ``evert.models``: models that play, give log-probabilities and learn
    scoring.py  texts and conversations as data; log-probabilities as arrays
"""
