"""Which token sequence a call goes on.

In reading order:

    prefix_tree.py      which beginnings of conversations are known
    completed_calls.py  tool calls that come back completed, or under other ids
    differences.py      the first message that is another, in words
    drift.py            what keeps a known reply from going on, and where
    conversation.py     one conversation, in messages and in exact tokens
    matching.py         which conversation a call continues; drift
    reading.py          the messages of a request, read and keyed once
"""
