"""The engine as a server of token ids and chat APIs, and clients of servers that take token ids.

Token ids travel in vLLM's ``/v1/completions``, so that one client works with our own service, vLLM
and llama.cpp. In reading order:

    wire.py        the bodies of requests and answers, written and read
    service.py     ``PolicyService``: sampling clients of this process, served to others
    chat.py        the chat APIs of served models, with the exact tokens of past conversations
    recording.py   what is served, as records that programs give rewards
    streaming.py   a reply as a stream of events while it is sampled
    connection.py  requests to a server, on HTTP sessions kept per event loop
    client.py      ``ServedSamplingClient``: a server as a sampling client
    policy.py      ``ServedPolicy``: a server as the Cookbook's ``TokenCompleter``
    fitness.py     a check that a server returns what training needs, and has our tokenizer
    errors.py      the errors of these modules
"""
