"""Rollouts in other processes: executors for the Cookbook's ``rollout_executor``.

A group of episodes is sent to a worker as bytes. The worker plays it on its event loop, along with
other groups, samples from the trainer's engine over HTTP, and returns the result as bytes. A
worker that dies is replaced, and its groups are played again. In reading order:

    executor.py     ``WorkerExecutor``: an executor over workers of any kind
    supervision.py  starts workers, replaces those that die, gives them groups
    travel.py       the data sent to a worker and back, and its pickling
    offers.py       serves the trainer's sampling clients to workers
    playing.py      plays a group in a worker
    pool.py         ``PoolRollouts``: workers are processes on this machine
    process.py      the process of such a worker
    actors.py       ``RayRollouts``: workers are Ray actors
    errors.py       the errors of these modules
"""
