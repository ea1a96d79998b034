"""A server of token ids and chat APIs for the engine, and clients of servers that take token ids.

Token ids are sent in vLLM's ``/v1/completions`` format, so that one client works with our own
service, vLLM and llama.cpp. In reading order:

    wire.py          writes and reads the bodies of requests and responses
    service.py       ``PolicyService``: serves this process's sampling clients to other processes
    chat.py          the chat APIs of served models, with the exact tokens of past conversations
    recording.py     records served conversations; programs set their rewards
    streaming.py     streams a reply as events while it is sampled
    connection.py    requests to a server, on HTTP sessions kept per event loop
    client.py        ``ServedSamplingClient``: a server as a sampling client
    policy.py        ``ServedPolicy``: a server as the Cookbook's ``TokenCompleter``
    server_check.py  a check that a server returns what training needs, and has our tokenizer
    errors.py        the errors of these modules
"""
