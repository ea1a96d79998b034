"""A model call and its reply, for every API.

In reading order:

    bad_requests.py  the HTTP 400 errors that agents get
    fields.py        which fields of a request are supported, and their readers
    message_equality.py  hashable keys, which are equal if two messages are equal
    messages.py      converts agents' messages to the form that renderers take
    reply.py         the reply to a call
    schemas.py       checks replies against JSON schemas
    formats.py       formats that a reply must have: response_format, forced tools
    request.py       a model call of any API
"""
