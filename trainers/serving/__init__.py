"""Sampling over HTTP by token ids: the engine as a server, and clients of such servers.

Everything speaks vLLM's ``/v1/completions``, so that one client serves our own workers, vLLM and
llama.cpp.
"""
