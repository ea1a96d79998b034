"""What a run leaves in its folder.

In reading order:

    folder.py    what a run leaves behind, and who may work in it
    metrics.py   its metrics by step
    recorded.py  the rollouts of one that recorded them
    exports.py   what is written of those for other programs, by format
"""
