"""A model call and its reply, whatever the API.

In reading order:

    bad_requests.py  the HTTP 400 errors that agents get
    fields.py        which fields of a request are supported, and their readers
    message_equality.py  when two messages are equal: hashable keys
    messages.py      agents' messages in the form that renderers take
    reply.py         the reply to a call
    schemas.py       checks replies against JSON schemas
    formats.py       required formats of a reply: response_format, forced tools
    request.py       a model call of any API
"""
