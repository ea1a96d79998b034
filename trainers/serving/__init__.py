"""A server that offers token-id and chat APIs for the engine, and clients for token-id servers.

Token ids are sent in the format of vLLM's ``/v1/completions``, so that the same client works with
our own service, vLLM and llama.cpp. Modules:

    wire.py          encodes and decodes request and response bodies
    service.py       ``PolicyService``: serves this process's sampling clients to other processes
    chat.py          chat APIs for served models, preserving the exact tokens of past turns
    recording.py     records served conversations, so that programs can set their rewards
    streaming.py     streams a reply as events while it is sampled
    connection.py    sends requests to a server, with HTTP sessions kept per event loop
    client.py        ``ServedSamplingClient``: uses a server as a sampling client
    policy.py        ``ServedPolicy``: uses a server as a Cookbook ``TokenCompleter``
    server_check.py  checks that a server returns what training needs and uses our tokenizer
    errors.py        the exceptions raised by these modules
"""
