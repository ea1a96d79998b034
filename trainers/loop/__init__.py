"""A loop of one's own, in a page: ``evert.rollout`` and data for ``forward_backward``.

    rollout.py   ``rollout``: the episodes of some tasks
    batch.py     ``Batch``: what they earned as arrays, and the data to train on

How an advantage comes about is ``bridge/groups/advantages.py``, which the Cookbook's loop has it from, too.
"""
