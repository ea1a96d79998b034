"""Groups of episodes: rewards, advantages, batches.

In reading order:

    rewards.py      rewards that compare a group
    judge.py        a model that ranks a group
    advantages.py   an advantage for every sampled token
    pieces.py       the same for the Cookbook's loop: a trajectory in pieces
    opponents.py    frozen models at seats: past checkpoints, players
    group.py        groups of episodes
    curriculum.py   which tasks a step plays, and what came of them, in a file
    kept.py         an object in a configuration that stays itself
    dataset.py      batches of groups
    branches.py     from a turn of a record on, sampled anew; a dataset of such branches
"""
