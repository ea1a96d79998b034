"""A loop of one's own, in a page: ``evert.rollout`` and data for ``forward_backward``.

    rollout.py   ``rollout``: the episodes of some tasks
    batch.py     ``Batch``: what they earned as arrays, and the data to train on

How an advantage comes about is in ``bridge/groups/advantages.py``, for the Cookbook's loop too.
"""
