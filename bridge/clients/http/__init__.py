"""The API over loopback HTTP, for agents in other processes.

In reading order:

    connections.py  what a connection over HTTP may do, and for how long
    calls.py        the calls of one rollout that come over HTTP, and their retries
    server.py       the API over loopback HTTP, for other processes: its life, and its keys
"""
