"""Rollouts in other processes: executors for the Cookbook's ``rollout_executor``.

A group of episodes goes to a worker as bytes, is played there on the worker's one event loop beside
others, samples from the trainer's engine over HTTP, and comes back as bytes. A worker that dies is
replaced, and the groups that were on it are played again. In reading order:

    executor.py    ``WorkerExecutor``: an executor over workers of any kind
    crew.py        the workers: started, replaced when they die, given groups
    travel.py      what goes to a worker, what comes back, and how both are pickled
    offers.py      sampling clients that workers reach through a policy service
    playing.py     a group where it is played: in the worker
    pool.py        ``PoolRollouts``: workers are processes of this machine
    process.py     such a process
    actors.py      ``RayRollouts``: workers are Ray's actors
    errors.py      the errors of all this
"""
