"""Whether a reply is recognised when an agent sends it back."""

import openai

from evert.bridge.chat.reply import Reply
from evert.bridge.conversations.reading import hear


def is_sent_back(reply: Reply, message: object) -> bool:
    """Whether a message of a later request is the reply."""
    try:
        [heard] = hear([message], 0, {})
    except openai.BadRequestError:
        return False
    return reply.is_sent_back_as(*heard)
