"""API-independent types for model calls and their replies.

In reading order:

    bad_requests.py  the HTTP errors returned to agents
    fields.py        which request fields are supported, and functions that read them
    message_equality.py  hashable keys for comparing messages
    messages.py      converts agents' messages to the Cookbook's message format
    reply.py         the reply to a call
    schemas.py       validates replies against JSON schemas
    formats.py       output formats that a request can require: response_format, forced tools
    request.py       a parsed model call
"""
