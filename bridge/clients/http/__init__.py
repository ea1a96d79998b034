"""The API over loopback HTTP, for agents in other processes.

In reading order:

    connections.py        HTTP connections: their number, sizes and time limits
    calls_and_retries.py  one rollout's calls over HTTP, and their retries
    server.py             the start and end of servers, and the rollouts' keys
"""
