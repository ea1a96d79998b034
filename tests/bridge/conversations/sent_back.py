"""Check whether a reply is recognised when an agent sends it back."""

import openai

from evert.bridge.chat.reply import Reply
from evert.bridge.conversations.reading import read_entries


def is_sent_back(reply: Reply, message: object) -> bool:
    try:
        [entry] = read_entries([message], 0, {})
    except openai.BadRequestError:
        return False
    return reply.is_sent_back_as(*entry)
