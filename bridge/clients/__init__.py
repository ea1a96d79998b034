"""How a call gets in: the handle, real SDKs, take-over, HTTP.

In reading order:

    httpx_transport.py    the API in process: a transport for httpx and httpx2
    aiohttp_transport.py  and for aiohttp
    lm15_transport.py     and for the client below DSPy's own engine
    sdks.py               OpenAI's, Anthropic's and Google's SDKs over the transport
    takeover.py           the calls of agents that build their own client
    client.py             the handle agents are given: native calls, real SDKs, notes
    dialects/             the APIs that agents speak
    http/                 the API over loopback HTTP, for other processes
"""
