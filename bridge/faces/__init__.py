"""The ways in which an agent's model calls reach its rollout.

From the inside outwards:

    client.py     the handle agents are given: native calls, real SDKs, notes
    endpoint.py   one rollout's API: a request's path and body to an answer
    transport.py  the API in process: a transport for httpx and httpx2
    aiohttp_transport.py   and for aiohttp
    lm15.py       and for the client below DSPy's own engine
    sdks.py       OpenAI's, Anthropic's and Google's SDKs over the transport
    takeover.py   the calls of agents that build their own client
    bodies.py     the JSON of a request's body, without holding the event loop
    connections.py    what a connection over HTTP may do, and for how long
    calls.py      the calls of one rollout that come over HTTP, and their retries
    server.py     the API over loopback HTTP, for other processes: its life, and its keys
    process.py    agents that are commands
    variables.py  the environment variables that a command gets
    commands.py   the commands of one episode, and all that they start
    supervisor.py   the process that runs one of them, and ends all of that
"""
