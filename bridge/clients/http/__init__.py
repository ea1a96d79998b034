"""The API over loopback HTTP, for agents in other processes.

In reading order:

    connections.py  the limits of an HTTP connection, and its time limits
    calls.py        one rollout's calls over HTTP, and their retries
    server.py       starts and stops servers; the rollouts' keys
"""
