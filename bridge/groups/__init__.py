"""Groups of episodes: rewards, advantages, batches.

In reading order:

    rewards.py      rewards that compare the episodes of a group
    judge.py        a model that ranks the episodes of a group
    advantages.py   the advantage of every sampled token
    pieces.py       trajectories split so that the Cookbook's loop applies those advantages
    opponents.py    frozen models that play seats, such as past checkpoints
    group.py        groups of episodes
    curriculum.py   samplers that choose each step's tasks, and their log
    kept.py         objects shared by deep copies of a configuration
    tasks.py        loads tasks from an import path or a file, and checks them
    dataset.py      batches of groups
    branches.py     episodes that continue a record from one of its turns
"""
