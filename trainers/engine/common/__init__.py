"""Parts that the whole engine uses.

In any order:

    errors.py      the engine's errors
    installing.py  inside a block, replaces names in all modules, sets PyTorch's threads
    network.py     refuses connections beyond this machine
    parallel.py    runs passes side by side, on all cores
"""
