"""A call and a reply, in no API's form.

In reading order:

    bad_requests.py  the 400s
    fields.py        the policies of a request's fields, and their readers
    keys.py          messages as keys
    messages.py      messages of agents, as renderers take them
    reply.py         what is replied to it
    schemas.py       JSON schemas, held against replies
    formats.py       what a reply has to look like: response_format, forced tools
    request.py       a model call, whatever API it came by
"""
