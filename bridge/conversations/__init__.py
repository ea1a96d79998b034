"""Finds the token sequence that a call continues.

In reading order:

    prefix_tree.py      an index of the prefixes of known conversations
    completed_calls.py  tool calls that an agent sends back completed, or with other ids
    differences.py      describes the first message that differs
    drift.py            the causes of drift
    conversation.py     one conversation, as messages and as exact tokens
    matching.py         the conversation that a call continues; drift
    reading.py          reads the messages of a request, and computes their keys
"""
