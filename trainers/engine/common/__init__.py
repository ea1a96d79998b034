"""Modules that all parts of the engine use.

In alphabetical order:

    errors.py      the engine's errors
    installing.py  replaces names in all modules and sets PyTorch's threads, inside a block
    network.py     refuses connections to other machines
    parallel.py    runs passes side by side, on all cores
"""
