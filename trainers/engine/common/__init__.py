"""Modules shared by the whole engine.

Contents:

    errors.py      the engine's exceptions
    installing.py  context managers that patch names in all modules and set PyTorch's thread count
    network.py     blocks connections to other machines
    parallel.py    runs passes in parallel on all cores
"""
