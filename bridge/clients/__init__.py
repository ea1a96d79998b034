"""How an agent's model calls reach evert: evert's client, real SDKs, take-over, HTTP.

In reading order:

    httpx_transport.py    the in-process API, as a transport for httpx and httpx2
    aiohttp_transport.py  the in-process API for aiohttp
    lm15_transport.py     the in-process API for lm15, the HTTP client of DSPy's own engine
    sdks.py               OpenAI's, Anthropic's and Google's SDKs over the transport
    takeover.py           the calls of agents that build their own client
    client.py             the client that agents get: native calls, real SDKs, notes
    dialects/             the APIs that agents use
    http/                 the API over loopback HTTP, for other processes
"""
