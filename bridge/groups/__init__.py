"""Groups of episodes: rewards, advantages, batches.

In reading order:

    rewards.py      rewards that compare a group
    judge.py        a model that ranks a group
    advantages.py   an advantage for every sampled token
    pieces.py       trajectories split so that the Cookbook's loop applies those advantages
    opponents.py    frozen models at seats: past checkpoints, players
    group.py        groups of episodes
    curriculum.py   the choice of each step's tasks, and its log
    kept.py         objects in a configuration that are not copied
    tasks.py        tasks by import path or file, and what can be tasks
    dataset.py      batches of groups
    branches.py     episodes that continue a record from one of its turns
"""
