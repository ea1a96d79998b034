"""Sampling over HTTP by token ids: the engine as a server, and clients of such servers.

Everything speaks vLLM's ``/v1/completions``, so that one client serves our own workers, vLLM and
llama.cpp. In reading order:

    wire.py        the body of a request and of its answer, both ways
    service.py     ``PolicyService``: sampling clients of this process, served to others
    connection.py  requests to a server, on kept-alive sessions of each loop
    client.py      ``ServedSamplingClient``: a server in the place of a sampling client
    policy.py      ``ServedPolicy``: a server as the Cookbook's ``TokenCompleter``
    fitness.py     whether a server returns what it must, and has the tokenizer we have
    errors.py      the errors of all this
"""
