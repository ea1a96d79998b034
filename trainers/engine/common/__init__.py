"""Parts that the whole engine uses.

In any order:

    errors.py      the engine's errors
    installing.py  replaces names in all modules inside a block; sets PyTorch's threads
    network.py     refuses connections beyond this machine
    parallel.py    runs passes side by side, on all cores
"""
