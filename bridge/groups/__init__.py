"""Groups of episodes: rewards, advantages, batches.

In reading order:

    rewards.py      rewards that compare the episodes in a group
    judge.py        a model that ranks the episodes in a group
    advantages.py   computes the advantage of every sampled token
    pieces.py       splits trajectories so that the Cookbook's loop applies these advantages
    opponents.py    frozen models that play seats, such as past checkpoints
    group.py        groups of episodes
    curriculum.py   samplers that choose the tasks of each step, and their log
    kept.py         objects that are shared by deep copies of a configuration
    tasks.py        loads tasks from an import path or a file, and validates them
    dataset.py      batches of groups
    branches.py     episodes that continue a recorded rollout from one of its turns
"""
