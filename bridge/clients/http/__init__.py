"""A loopback HTTP server for agents in other processes.

In reading order:

    connections.py        HTTP connections, with limits on their number, size and duration
    calls_and_retries.py  handles one rollout's calls and their retries
    server.py             starts and stops servers, and manages API keys
"""
