"""What all of the engine uses.

In any order:

    errors.py    the engine's errors
    network.py   nothing leaves this machine
    parallel.py  passes side by side, on all cores
"""
