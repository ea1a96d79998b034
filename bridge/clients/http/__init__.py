"""The API over loopback HTTP, for agents in other processes.

In reading order:

    connections.py  what a connection over HTTP may do, and for how long
    calls.py        one rollout's calls over HTTP, and their retries
    server.py       when a server starts and stops, and the rollouts' keys
"""
