"""Rollouts in other processes: executors for the Cookbook's ``rollout_executor``.

A group of episodes goes to a worker as bytes. The worker plays it on its one event loop, beside
other groups, samples from the trainer's engine over HTTP, and returns the result as bytes. A worker
that dies is replaced, and its groups are played again. In reading order:

    executor.py    ``WorkerExecutor``: an executor over workers of any kind
    crew.py        starts workers, replaces those that die, gives them groups
    travel.py      what goes to a worker, what comes back, and how both are pickled
    offers.py      sampling clients that workers reach through a policy service
    playing.py     playing a group in a worker
    pool.py        ``PoolRollouts``: workers are processes of this machine
    process.py     the process of such a worker
    actors.py      ``RayRollouts``: workers are Ray's actors
    errors.py      the errors of these modules
"""
