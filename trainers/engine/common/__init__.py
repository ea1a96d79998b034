"""What all of the engine uses.

In any order:

    errors.py      the engine's errors
    installing.py  names of others that are ours inside a block, and threads
    network.py     nothing leaves this machine
    parallel.py    passes side by side, on all cores
"""
