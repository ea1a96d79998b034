"""How an agent's model calls reach evert: through evert's client, an SDK or HTTP.

In reading order:

    httpx_transport.py    in-process transport for httpx and httpx2
    aiohttp_transport.py  in-process transport for aiohttp
    lm15_transport.py     in-process transport for lm15, the HTTP client built into DSPy
    sdks.py               OpenAI, Anthropic and Google SDK clients that use the transport
    takeover.py           intercepts calls from agents that build their own client
    client.py             the client passed to agents: native calls, real SDKs, rewards and logs
    dialects/             the supported APIs
    http/                 a loopback HTTP server for agents in other processes
"""
