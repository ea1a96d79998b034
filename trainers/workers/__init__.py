"""Runs rollouts in other processes: executors for the Cookbook's ``rollout_executor``.

Each group of episodes is pickled and sent to a worker. The worker plays it on its event loop
together with other groups, sampling from the trainer's engine over HTTP, and sends back the pickled
result. If a worker dies, it is replaced and its groups are rerun. Modules:

    executor.py     ``WorkerExecutor``: the base class for executors
    supervision.py  starts workers, replaces those that die, and assigns groups to them
    travel.py       the data exchanged with workers, and how it is pickled
    offers.py       serves the trainer's sampling clients to workers
    playing.py      plays a group in a worker
    pool.py         ``PoolRollouts``: uses processes on this machine as workers
    process.py      the main function of these processes
    actors.py       ``RayRollouts``: uses Ray actors as workers
    errors.py       the exceptions raised by these modules
"""
