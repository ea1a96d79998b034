"""Saves, lists and repairs checkpoints.

Modules:

    checkpoints.py     saves and reads checkpoints by their ``tinker://`` paths
    catalog.py         lists runs and checkpoints
    encryption.py      encrypts exported weights
    checkpoint_log.py  repairs the Cookbook's checkpoint list
"""
