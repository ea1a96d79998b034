"""What is chat completions' alone: fields that are arguments, and the SDK's object as it is given.

What all four APIs keep is in ``test_contract.py``."""

import time
from typing import Any

from openai.types.chat import ChatCompletion
from tests.bridge.dialects.apis import CHAT, HI, REPLIES, reply
from tests.bridge.sent_back import is_sent_back

from evert.bridge.clients.dialects.chat_completions import completion


def message(**said: Any) -> Any:
    return completion(reply(**said), id="c", model="policy").choices[0].message


def test_messages_are_not_copied_and_an_unknown_field_passes_over_the_wire() -> None:
    messages = [HI]

    assert CHAT.read(messages=messages).messages is messages
    assert CHAT.read(max_output_tokens=5) == CHAT.read()


def test_a_completion_round_trips_and_its_message_is_recognised_in_every_form() -> None:
    for row, said in REPLIES.items():
        made = completion(said, id="chatcmpl-evert-0", model="policy")
        assert type(made) is ChatCompletion, row
        assert ChatCompletion.model_validate(made.model_dump()) == made, row
        assert ChatCompletion.model_validate_json(made.model_dump_json()) == made, row
        own = made.choices[0].message
        for form in (own, own.model_dump(), own.model_dump(exclude_none=True), own.to_dict()):
            assert is_sent_back(said, form), row


def test_it_says_when_it_was_made_in_whole_seconds() -> None:
    before = int(time.time())
    created = completion(reply(), id="c", model="policy").created

    assert type(created) is int
    assert before <= created <= int(time.time())


def test_what_is_not_there_is_null_or_absent() -> None:
    assert message(reasoning="Hm.").model_dump()["reasoning_content"] == "Hm."
    assert not hasattr(message(), "reasoning_content")
    assert message().tool_calls is None
    assert message().refusal is None
    calls = (("add", "{}"),)
    assert message(text="", calls=calls).content is None
    assert message(text="Hi", calls=calls).content == "Hi"
    assert message(text="").content == ""
