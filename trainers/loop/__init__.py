"""A loop of one's own, in a page: rollouts as arrays, and models.

In reading order:

    rollout.py  ``rollout``: the episodes of some tasks
    batch.py    ``Batch``: what they earned as arrays, and the data to train on
    models.py   ``evert.models``: each rolls out, measures, learns
    scoring.py  conversations and log-probabilities, without a ``Datum`` in sight
    errors.py   what is wrong with what these were given
"""
