"""Matches each model call to the token sequence that it continues.

In reading order:

    prefix_tree.py      an index of all known conversation prefixes
    completed_calls.py  recognises tool calls that come back with extra arguments or new ids
    differences.py      describes the first difference between two requests
    drift.py            the causes of drift
    conversation.py     one conversation, as messages and as exact tokens
    matching.py         finds the conversation that a call continues, and detects drift
    reading.py          reads a request's messages and computes their keys
"""
