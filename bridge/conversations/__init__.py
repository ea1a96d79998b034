"""Finds the token sequence that a call continues.

In reading order:

    prefix_tree.py      the known beginnings of conversations
    completed_calls.py  tool calls that come back completed, or under other ids
    differences.py      describes the first message that differs
    drift.py            the causes of drift
    conversation.py     one conversation, as messages and as exact tokens
    matching.py         the conversation that a call continues; drift
    reading.py          the messages of a request, each with its key
"""
