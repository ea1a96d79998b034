"""Checkpoints: saving, listing and repair.

From paths to their content:

    checkpoints.py     saves and reads the folders of ``tinker://`` paths
    catalog.py         lists runs and checkpoints
    encryption.py      encrypts exported weights
    checkpoint_log.py  repairs the Cookbook's list of checkpoints
"""
