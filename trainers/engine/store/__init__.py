"""Saves, lists and repairs checkpoints.

From paths to their content:

    checkpoints.py     saves and reads checkpoints by their ``tinker://`` paths
    catalog.py         lists runs and checkpoints
    encryption.py      encrypts exported weights
    checkpoint_log.py  repairs the Cookbook's list of checkpoints
"""
