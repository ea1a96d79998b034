"""Checkpoints: saved, listed, copied.

From paths to what is in them:

    checkpoints.py     ``tinker://`` paths and folders
    catalog.py         what a store holds, listed and copied
    encryption.py      weights saved for somebody's key
    checkpoint_log.py  the Cookbook's list of checkpoints, repaired
"""
