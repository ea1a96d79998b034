"""What ``ConversationBook`` promises about tokens.

1. Every prompt is what the renderer makes of the conversation, as long as nothing sampled differs
   from what the renderer would write: for every family, over any number of turns.
2. Sampled tokens are kept exactly as sampled, whatever their spelling.
3. A conversation is recognised in every form in which agents send it back.
4. A cut reply gets its end-of-turn token from the tail.
5. Drift is counted by cause, once, and starts a new lineage (except ``retokenised``). A reply that
   comes back in another history, or before other tools, is rendered as the policy gave it. A tool
   call that comes back with arguments added is kept as sampled where that is wanted.
6. Branches share the tokens sampled up to the fork, the hundredth as the first, and are no drift.
7. A refused request leaves no trace.
8. Another agent that goes on with a history, or begins its own, is no drift.
9. Images pass through as the renderer makes them, in branches too.
10. To find a conversation takes as many comparisons among many as among few.
"""

import base64
import copy
import io
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessage
from PIL import Image
from tinker_cookbook.renderers import Renderer, get_renderer
from tinker_cookbook.renderers.base import Message, TextPart, ThinkingPart
from tinker_cookbook.renderers.qwen3 import Qwen3VLRenderer
from tinker_cookbook.rl.types import StopReason
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from evert.bridge.chat.reply import Reply, read_reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients.dialects.chat_completions import completion
from evert.bridge.conversations.conversation import Conversation
from evert.bridge.conversations.drift import Drift
from evert.bridge.conversations.matching import ConversationBook
from evert.bridge.tokens.actions import read_action
from evert.bridge.tokens.bases import default_renderer
from evert.bridge.tokens.prompt_limit import PromptLimit
from evert.bridge.tokens.renderer import PromptRenderer, prompt_renderer
from evert.bridge.tokens.token_log import flatten

MakeRenderer = Callable[[str], Renderer]
Messages = list[dict[str, Any]]

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
    },
}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


class Talk:
    """Both sides of an episode: requests of agents, actions of a policy."""

    def __init__(
        self,
        renderer: Renderer | None = None,
        max_length: int | None = None,
        keeps_completed: bool = False,
    ) -> None:
        self.renderer: PromptRenderer = prompt_renderer(renderer)
        limit = PromptLimit(max_length, StopReason.CONTEXT_OVERFLOW)
        self.book = ConversationBook(self.renderer, limit, keeps_completed=keeps_completed)

    def ask(
        self, messages: Sequence[Any], caller: str = "main", tools: list[Any] | None = None
    ) -> Conversation:
        request = ChatRequest("policy", list(messages), tools)
        return self.book.observe(request, caller, self.renderer)

    def prompt(self, conversation: Conversation) -> list[Any]:
        return flatten(conversation.prompt().chunks)

    def read(self, prompt: list[Any]) -> str:
        return self.renderer.decode(prompt)

    def take(self, conversation: Conversation, action: list[int], cut: bool = False) -> Reply:
        ended = action + self.renderer.missing_end(action) if cut else action
        parsed, _ = self.renderer.parse(ended)
        reply = read_reply(
            parsed, truncated=cut, call_ids="call", prompt_tokens=0, completion_tokens=len(action)
        )
        conversation.record(action, reply, self.renderer)
        return reply

    def say(self, conversation: Conversation, text: str) -> Reply:
        return self.take(conversation, self.renderer.encode(text) + self.renderer.end_tokens[:1])

    def written(self, text: str) -> list[int]:
        """A reply as the renderer writes it, after a thought where its prompts open one."""
        question = Message(role="user", content="?")
        prompt = self.renderer.full([question])
        if not self.read(prompt).rstrip().endswith("<think>"):
            return self.renderer.encode(text) + self.renderer.end_tokens[:1]
        thought = ThinkingPart(type="thinking", thinking="hm")
        reply = Message(role="assistant", content=[thought, TextPart(type="text", text=text)])
        whole = self.renderer.renderer.build_supervised_example([question, reply])[0].to_ints()
        assert whole[: len(prompt)] == prompt
        return whole[len(prompt) : whole.index(self.renderer.end_tokens[0], len(prompt)) + 1]

    def spell(self, text: str) -> list[int]:
        """Another tokenisation of the text: one token a character."""
        return [token for character in text for token in self.renderer.encode(character)]


# -- 1. the renderer's own prompt ----------------------------------------------------------------


def test_every_prompt_is_the_renderers_own_in_every_family(family: Renderer) -> None:
    talk = Talk(family)
    messages: Messages = [{"role": "system", "content": "Be brief."}, user("Hi")]
    for turn in range(5):
        conversation = talk.ask(messages)
        prompt, whole = talk.prompt(conversation), talk.renderer.full(conversation.messages)
        if talk.book.drift[Drift.RETOKENISED]:  # the empty thoughts that some have in their history
            assert talk.read(prompt) == talk.read(whole).replace("<think></think>answer", "answer")
        else:
            assert prompt == whole
        reply = talk.take(conversation, talk.written(f"answer {turn}"))
        messages += [said(reply.text), user(f"question {turn}")]


KEEP_HISTORY = {
    "qwen3_instruct": "{}",
    "llama3": "{}",
    "deepseekv3": "{}",
    "qwen3_5_preserve_thinking": "hm\n</think>\n\n{}",
    "nemotron3_preserve_thinking": "hm\n</think>\n{}",
    "kimi_k26_preserve_thinking": "hm</think>{}",
    "glm5_3_low_reasoning": "hm</think>{}",
}
"""Renderers that show history as it was sampled, and what a reply looks like there."""


@pytest.mark.parametrize("name", KEEP_HISTORY)
def test_a_conversation_that_keeps_its_history_is_one_lineage(
    name: str, make_renderer: MakeRenderer
) -> None:
    talk = Talk(make_renderer(name))
    messages = [user("Hi")]
    for turn in range(5):
        conversation = talk.ask(messages)
        assert talk.prompt(conversation) == talk.renderer.full(conversation.messages)
        reply = talk.say(conversation, KEEP_HISTORY[name].format(f"answer {turn}"))
        assert reply.text == f"answer {turn}"
        messages += [said(reply.text), user(f"question {turn}")]
    assert (talk.book.lineages, talk.book.drift.total()) == (1, 0)


texts = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=30
).filter(lambda text: "<" not in text)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=6))
def test_any_texts_give_the_renderers_own_prompts(turns: list[tuple[str, str]]) -> None:
    talk = Talk()
    messages: Messages = []
    for question, answer in turns:
        messages.append(user(question))
        conversation = talk.ask(messages)
        whole = talk.renderer.full(conversation.messages)
        assert talk.read(talk.prompt(conversation)) == talk.read(whole)
        messages.append(said(talk.say(conversation, answer).text))
    assert talk.book.lineages == 1


# -- 2. sampled tokens ---------------------------------------------------------------------------


def test_sampled_tokens_are_kept_however_they_are_spelled() -> None:
    talk = Talk()
    first = talk.ask([user("Say Guess: 512")])
    before = talk.prompt(first)
    action = talk.spell("Guess: 512") + talk.renderer.end_tokens
    assert action != talk.renderer.encode("Guess: 512") + talk.renderer.end_tokens
    reply = talk.take(first, action)
    after = talk.prompt(talk.ask([user("Say Guess: 512"), said(reply.text), user("Too low")]))
    assert after[: len(before) + len(action)] == before + action
    assert talk.book.lineages == 1
    assert talk.book.drift == {Drift.RETOKENISED: 1}


def test_sampled_tokens_are_kept_by_templates_that_are_rendered_whole(
    make_renderer: MakeRenderer,
) -> None:
    talk = Talk(make_renderer("nemotron3_preserve_thinking"))
    messages = [user("Say hello")]
    conversation = talk.ask(messages)
    for turn in range(3):
        before = talk.prompt(conversation)
        action = talk.spell("hm\n") + talk.renderer.encode("</think>") + talk.spell("\nhello")
        reply = talk.take(conversation, action + talk.renderer.end_tokens)
        messages += [said(reply.text), user("More")]
        conversation = talk.ask(messages)
        assert talk.prompt(conversation)[: len(before) + len(action)] == before + action
        assert (talk.book.lineages, talk.book.drift) == (1, {Drift.RETOKENISED: turn + 1})


@pytest.mark.parametrize("name", ["qwen3_instruct", "qwen3", "deepseekv4_1_disable_thinking"])
def test_an_odd_spelling_is_counted_at_the_next_turn_and_at_no_later_one(
    name: str, make_renderer: MakeRenderer
) -> None:
    talk = Talk(make_renderer(name))
    messages = [user("Say hello")]
    for turn in range(4):
        spell = talk.spell if turn == 0 else talk.renderer.encode
        action = spell(f"hello {turn}") + talk.renderer.end_tokens[:1]
        messages.append(said(talk.take(talk.ask(messages), action).text))
        messages.append(user("More"))
    talk.ask(messages)
    assert (talk.book.lineages, talk.book.drift) == (1, {Drift.RETOKENISED: 1})


@pytest.mark.parametrize(
    ("name", "text"),
    [("qwen3_5", "hello"), ("qwen3_5", "again"), ("deepseekv3_thinking", "</think>hello")],
)
def test_an_opened_thought_that_is_not_shown_again_is_retokenised(
    name: str, text: str, make_renderer: MakeRenderer
) -> None:
    talk = Talk(make_renderer(name))
    messages, counted = [user("one?")], list[int]()
    for _ in range(3):
        conversation = talk.ask(messages)
        counted.append(talk.book.drift[Drift.RETOKENISED])
        messages += [said(talk.say(conversation, text).text), user("two?")]
    assert counted == [0, 1, 2]
    assert talk.book.lineages == 1


def test_messages_injected_after_an_odd_spelling_are_no_drift(
    make_renderer: MakeRenderer,
) -> None:
    talk = Talk(make_renderer("qwen3"))
    talk.take(talk.ask([user("Hi")]), talk.spell("Hello") + talk.renderer.end_tokens[:1])
    conversation = talk.ask([user("Hi"), said("Hello"), user("Bye")])
    prompt = talk.prompt(conversation)
    talk.book.inject(conversation, [{"role": "user", "content": "Hurry!"}], talk.renderer)
    assert "Hurry!" in talk.read(talk.prompt(conversation))
    shared = len(prompt) - len(talk.renderer.encode("<|im_start|>assistant\n"))
    assert talk.prompt(conversation)[:shared] == prompt[:shared]
    assert (talk.book.lineages, talk.book.drift) == (1, {Drift.RETOKENISED: 1})


def test_tool_calls_are_kept_as_sampled_though_the_template_would_space_them_otherwise() -> None:
    talk = Talk()
    messages = [user("2+2?")]
    first = talk.ask(messages, tools=[ADD])
    before = talk.prompt(first)
    text = '<tool_call>\n{"name":"add","arguments":{"x":2}}\n</tool_call>'
    action = talk.renderer.encode(text) + talk.renderer.end_tokens
    reply = talk.take(first, action)
    call = reply.tool_calls[0]
    messages += [
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "4"},
    ]
    after = talk.prompt(talk.ask(messages, tools=[ADD]))
    assert after[: len(before) + len(action)] == before + action
    assert talk.book.drift == {Drift.RETOKENISED: 1}


def test_a_conversation_of_a_hundred_turns_is_one_sequence_of_what_was_sampled() -> None:
    talk = Talk()
    messages = [user("Hi")]
    expected: list[Any] = []
    for turn in range(100):
        conversation = talk.ask(messages)
        prompt = talk.prompt(conversation)
        assert prompt[: len(expected)] == expected
        action = talk.spell(f"word {turn}") + talk.renderer.end_tokens
        expected = prompt + action
        messages += [said(talk.take(conversation, action).text), user("go on")]
    assert talk.book.lineages == 1


# -- 3. recognition ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "written",
    [
        {"role": "assistant", "content": "Fine."},
        {"role": "assistant", "content": "Fine.", "refusal": None, "tool_calls": None},
        {"role": "assistant", "content": [{"type": "text", "text": "Fine."}]},
        ChatCompletionMessage(role="assistant", content="Fine."),
    ],
)
def test_a_reply_is_recognised_in_every_form(written: Any) -> None:
    talk = Talk()
    talk.say(talk.ask([user("Hi")]), "Fine.")
    talk.ask([user("Hi"), written, user("Bye")])
    assert (talk.book.lineages, talk.book.drift.total()) == (1, 0)


@pytest.mark.parametrize("change", [str.strip, str.rstrip, str.lstrip, " {}\n".format])
def test_white_space_at_the_ends_of_a_reply_is_no_edit(change: Callable[[str], str]) -> None:
    talk = Talk()
    messages = [user("Hi")]
    expected: list[Any] = []
    for turn in range(4):
        conversation = talk.ask(messages)
        prompt = talk.prompt(conversation)
        assert prompt[: len(expected)] == expected
        action = talk.spell(f" word {turn}\n\n") + talk.renderer.end_tokens
        expected = prompt + action
        text = change(talk.take(conversation, action).text)
        messages += [said(text), user("go on")]
    assert talk.book.lineages == 1
    assert set(talk.book.drift) <= {Drift.RETOKENISED}


def test_white_space_inside_of_a_reply_is_the_repliers() -> None:
    talk = Talk()
    talk.say(talk.ask([user("Hi")]), "Two words")
    talk.ask([user("Hi"), said("Two  words"), user("Bye")])
    assert talk.book.drift == {Drift.HISTORY: 1}


def test_white_space_of_others_is_kept_to_the_letter() -> None:
    talk = Talk()
    example = [user("1+1"), said("2 "), user("Hi")]
    talk.say(talk.ask(example), "Fine.")
    other = talk.ask([user("1+1"), said("2"), user("Hi"), said("Fine."), user("Bye")])
    assert talk.prompt(other) == talk.renderer.full(other.messages)
    assert "assistant\n2<|im_end|>" in talk.read(talk.prompt(other))


def test_a_blank_beside_tool_calls_may_be_dropped() -> None:
    talk = Talk()
    call = '<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call>'
    reply = talk.say(talk.ask([user("1+1")], tools=[ADD]), f"{call}\n{call}")
    assert (reply.text, len(reply.tool_calls)) == ("", 2)
    calls = [call.model_dump() for call in reply.tool_calls]
    results = [{"role": "tool", "tool_call_id": one["id"], "content": "2"} for one in calls]
    for content in (None, "", "\n"):
        answer = {"role": "assistant", "content": content, "tool_calls": calls}
        talk.ask([user("1+1"), answer, *results], tools=[ADD])
    assert talk.book.drift[Drift.HISTORY] == 0


def test_a_history_written_in_another_form_each_time_is_recognised() -> None:
    talk = Talk()
    talk.say(talk.ask([user("Hi")]), "Fine.")
    talk.say(talk.ask([user("Hi"), said("Fine."), user("Bye")]), "See you.")
    rewritten = [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        ChatCompletionMessage(role="assistant", content="Fine."),
        {"role": "user", "content": "Bye", "name": None},
        said("See you."),
        user("Really"),
    ]
    talk.ask(rewritten)
    assert (talk.book.lineages, talk.book.drift.total()) == (1, 0)


def test_a_message_changed_in_place_is_seen() -> None:
    talk = Talk()
    messages = [user("Hi")]
    messages.append(said(talk.say(talk.ask(messages), "Fine.").text))
    messages.append(user("Bye"))
    messages.append(said(talk.say(talk.ask(messages), "See you.").text))
    messages[0]["content"] = "Hello"
    conversation = talk.ask([*messages, user("Really")])
    assert "Hello" in talk.read(talk.prompt(conversation))
    assert talk.book.lineages == 2


def test_an_sdk_message_changed_in_place_is_seen() -> None:
    talk = Talk()
    message = ChatCompletionMessage(role="assistant", content="Fine.")
    talk.say(talk.ask([user("Hi")]), "Fine.")
    talk.say(talk.ask([user("Hi"), message, user("Bye")]), "See you.")
    message.content = "Awful."
    conversation = talk.ask([user("Hi"), message, user("Bye"), said("See you."), user("Really")])
    assert "Awful." in talk.read(talk.prompt(conversation))
    assert talk.book.drift == {Drift.HISTORY: 1}


def test_reasoning_changed_in_place_in_an_sdk_message_is_seen() -> None:
    talk = Talk()
    message = ChatCompletionMessage.model_validate(
        {"role": "assistant", "content": "Fine.", "reasoning_content": "hm"}
    )
    talk.say(talk.ask([user("Hi")]), "<think>hm</think>Fine.")
    talk.say(talk.ask([user("Hi"), message, user("Bye")]), "See you.")
    assert message.model_extra is not None
    message.model_extra["reasoning_content"] = "something else"
    before = talk.book.lineages
    talk.ask([user("Hi"), message, user("Bye"), said("See you."), user("Really")])
    assert talk.book.lineages == before + 1


def test_equal_conversations_of_two_callers_stay_apart() -> None:
    talk = Talk()
    first = talk.ask([user("Hi")], "one")
    second = talk.ask([user("Hi")], "two")
    talk.take(first, talk.spell("Fine.") + talk.renderer.end_tokens)
    talk.say(second, "Fine.")
    after = [user("Hi"), said("Fine."), user("Bye")]
    assert talk.ask(after, "two") is second
    assert talk.ask(after, "one") is first
    assert talk.book.drift[Drift.HISTORY] == 0


def test_an_older_conversation_goes_on_though_a_newer_one_begins_alike() -> None:
    talk = Talk()
    first = talk.ask([user("Hi")])
    talk.say(first, "Fine.")
    after = [user("Hi"), said("Fine."), user("And you")]
    talk.say(talk.ask(after), "Fine too.")
    talk.say(talk.ask([user("Hi")]), "Fine.")  # the same again, and not gone on from
    assert talk.ask([*after, said("Fine too."), user("Bye")]) is first
    assert (talk.book.lineages, talk.book.drift.total()) == (2, 0)


def test_of_two_equal_replies_the_one_whose_thinking_is_sent_back_goes_on(
    make_renderer: MakeRenderer,
) -> None:
    talk = Talk(make_renderer("glm5_3_low_reasoning"))
    for thought in ("one", "two"):
        talk.say(talk.ask([user("Hi")]), f"{thought}</think>Fine.")
    reply = {**said("Fine."), "reasoning_content": "one"}
    after = talk.ask([user("Hi"), reply, user("Bye")], "another")
    assert "<think>one</think>Fine." in talk.read(talk.prompt(after))
    other = talk.ask([user("Hi"), {**reply, "reasoning_content": "three"}, user("Bye")], "another")
    assert "<think>three</think>Fine." in talk.read(talk.prompt(other))
    assert talk.book.drift == {Drift.HISTORY: 1}


def test_a_conversation_handed_to_another_task_goes_on() -> None:
    talk = Talk()
    first = talk.ask([user("Hi")], "one")
    talk.say(first, "Fine.")
    assert talk.ask([user("Hi"), said("Fine."), user("Bye")], "two") is first


# -- 4. cut replies ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["qwen3_instruct", "llama3", "deepseekv3"])
def test_a_cut_reply_gets_its_end_from_the_tail(name: str, make_renderer: MakeRenderer) -> None:
    talk = Talk(make_renderer(name))
    first = talk.ask([user("Tell me")])
    before = talk.prompt(first)
    action = talk.renderer.encode("Once upon a")
    reply = talk.take(first, action, cut=True)
    assert reply.finish_reason == "length"
    after = talk.ask([user("Tell me"), said(reply.text), user("Go on")])
    ended = before + action + talk.renderer.end_tokens
    assert talk.prompt(after)[: len(ended)] == ended
    assert talk.prompt(after) == talk.renderer.full(after.messages)
    assert talk.book.lineages == 1


def test_an_empty_reply_is_a_turn_like_any_other() -> None:
    talk = Talk()
    talk.take(talk.ask([user("Hi")]), [], cut=True)
    after = talk.ask([user("Hi"), said(""), user("Hello?")])
    assert talk.prompt(after) == talk.renderer.full(after.messages)


# -- 5. drift ------------------------------------------------------------------------------------


def two_turns() -> tuple[Talk, Messages]:
    """A conversation of two turns, ready for a third request."""
    talk = Talk()
    messages: Messages = [{"role": "system", "content": "Be brief."}, user("Hi")]
    messages.append(said(talk.say(talk.ask(messages), " Fine. ").text))
    messages.append(user("And you"))
    messages.append(said(talk.say(talk.ask(messages), "Fine too.").text))
    return talk, [*messages, user("Bye")]


def test_stripped_thinking_is_template_drift_and_the_renderer_is_followed(
    make_renderer: MakeRenderer,
) -> None:
    talk = Talk(make_renderer("qwen3"))
    reply = talk.say(talk.ask([user("Hi")]), "<think>\nhm\n</think>\n\nHello.")
    assert (reply.text, reply.reasoning) == ("Hello.", "hm")
    after = talk.ask([user("Hi"), said("Hello."), user("Bye")])
    assert talk.prompt(after) == talk.renderer.full(after.messages)
    assert (talk.book.lineages, talk.book.drift) == (2, {Drift.TEMPLATE: 1})


def test_thinking_under_an_instruct_template_is_template_drift_too() -> None:
    talk = Talk()  # claims the extension property, and strips thinking all the same
    talk.say(talk.ask([user("Hi")]), "<think>hm</think>Hello.")
    after = talk.ask([user("Hi"), said("Hello."), user("Bye")])
    assert talk.prompt(after) == talk.renderer.full(after.messages)
    assert talk.book.drift == {Drift.TEMPLATE: 1}


def test_a_conversation_goes_on_after_template_drift() -> None:
    talk = Talk()
    messages = [user("Hi")]
    for turn in range(3):
        reply = talk.say(talk.ask(messages), f"<think>{turn}</think>Hello {turn}.")
        messages += [said(reply.text), user("Bye")]
    for turn in range(3):
        reply = talk.say(talk.ask(messages), f"plain {turn}")
        messages += [said(reply.text), user("Bye")]
    assert talk.book.drift == {Drift.TEMPLATE: 3}
    assert talk.book.lineages == 4


def test_other_tools_are_drift() -> None:
    talk, messages = two_turns()
    after = talk.ask(messages, tools=[ADD])
    assert "add" in talk.read(talk.prompt(after))
    assert (talk.book.lineages, talk.book.drift) == (2, {Drift.TOOLS: 1})


def other_words(messages: Messages) -> None:
    messages[2]["content"] = "Splendid."


def other_latest_words(messages: Messages) -> None:
    messages[4]["content"] = "Splendid."


def another_question(messages: Messages) -> None:
    messages[3]["content"] = "And your cat"


def no_beginning(messages: Messages) -> None:
    del messages[1:3]


def a_summary(messages: Messages) -> None:
    messages[2:] = [user("Summary: we said hello."), user("Bye")]


def no_latest_reply(messages: Messages) -> None:
    del messages[4]


@pytest.mark.parametrize(
    "change",
    [
        other_words,
        other_latest_words,
        another_question,
        no_beginning,
        a_summary,
        no_latest_reply,
    ],
)
def test_another_history_is_drift(change: Callable[[Messages], None]) -> None:
    talk, messages = two_turns()
    change(messages)
    after = talk.ask(messages)
    assert talk.prompt(after) == talk.renderer.full(after.messages)
    assert (talk.book.lineages, talk.book.drift) == (2, {Drift.HISTORY: 1})
    assert talk.book.latest_drift is not None
    assert talk.book.latest_drift.cause is Drift.HISTORY


def test_a_new_conversation_with_the_same_system_prompt_is_no_drift() -> None:
    talk, messages = two_turns()
    talk.ask([messages[0], user("Something else")])
    assert (talk.book.lineages, talk.book.drift.total()) == (2, 0)


def test_a_drop_of_the_tools_keeps_the_thinking_of_the_replies(
    make_renderer: MakeRenderer,
) -> None:
    talk = Talk(make_renderer("glm5_3_low_reasoning"))
    messages = [user("Hi")]
    messages.append(said(talk.say(talk.ask(messages, tools=[ADD]), "hm</think>Fine.").text))
    after = talk.ask([*messages, user("Bye")])
    assert "<think>hm</think>Fine." in talk.read(talk.prompt(after))
    assert (talk.book.lineages, talk.book.drift) == (2, {Drift.TOOLS: 1})


def test_an_edit_keeps_the_thinking_of_the_replies_around_it(make_renderer: MakeRenderer) -> None:
    talk = Talk(make_renderer("glm5_3_low_reasoning"))
    messages = [user("Hi")]
    for turn in range(3):
        reply = talk.say(talk.ask(messages), f"thought {turn}</think>answer {turn}")
        messages += [said(reply.text), user(f"question {turn}")]
    messages[2]["content"] = "another question"
    read = talk.read(talk.prompt(talk.ask(messages)))
    assert [f"thought {turn}" in read for turn in range(3)] == [True, False, True]
    assert talk.book.drift == {Drift.HISTORY: 1}  # answer 1 was given to the question of before


def test_a_reply_that_stands_in_another_conversation_by_chance_gets_no_thinking(
    make_renderer: MakeRenderer,
) -> None:
    talk = Talk(make_renderer("glm5_3_low_reasoning"))
    talk.say(talk.ask([user("Is it so?")]), "hm</think>yes")
    other = talk.ask([user("Is 1 a number?"), said("yes"), user("Is a?")])
    assert "hm" not in talk.read(talk.prompt(other))


def test_tools_that_come_and_go_make_a_lineage_each() -> None:
    talk = Talk()
    messages = [user("Hi")]
    lineages = []
    for turn in range(4):
        conversation = talk.ask(messages, tools=[ADD] if turn % 2 == 0 else None)
        lineages.append(conversation.lineage)
        messages += [said(talk.say(conversation, f"answer {turn}").text), user("more")]
    assert lineages == [0, 1, 0, 1]
    assert talk.book.drift == {Drift.TOOLS: 3}


def test_another_question_after_the_same_system_prompt_is_no_drift() -> None:
    talk = Talk()
    for number in range(3):
        examples = [user("1+1"), said("2")]
        talk.say(talk.ask([*examples, user(f"{number}+1")]), str(number + 1))
    assert (talk.book.lineages, talk.book.drift.total()) == (3, 0)


BROKEN = {
    "no JSON": '<tool_call>\n{"name": "add", "arguments": {\n</tool_call>',
    "between texts": 'Let me see.\n<tool_call>\n{"name": \n</tool_call>\nSo.',
    "beside a good one": "<tool_call>\n{bad}\n</tool_call>\n"
    '<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call>',
    "another format": "<tool_call>add\n<arg_key>x</arg_key>\n</tool_call>",
    "never closed": 'So\n<tool_call>\n{"name": "add"',
    "wide margins": "\n\n  Fine. \n",
    "only white space": "\n\n",
}

SHOW_HISTORY = [*KEEP_HISTORY, "qwen3", "qwen3_8_disable_thinking", "kimi_k25_disable_thinking"]
"""Renderers that show a reply without a thought as it was sampled."""


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("name", SHOW_HISTORY)
def test_a_broken_reply_that_comes_back_as_it_was_keeps_its_tokens(
    name: str, broken: str, make_renderer: MakeRenderer
) -> None:
    talk = Talk(make_renderer(name))
    tools = None if name == "llama3" else [ADD]  # it has none
    messages: Messages = [user("Hi")]
    expected: list[Any] = []
    for _ in range(3):
        conversation = talk.ask(messages, tools=tools)
        prompt = talk.prompt(conversation)
        assert prompt[: len(expected)] == expected
        text = KEEP_HISTORY.get(name, "{}").replace("{}", BROKEN[broken])
        action = talk.renderer.encode(text) + talk.renderer.end_tokens[:1]
        expected = [*prompt, *action]
        message = completion(talk.take(conversation, action), id="", model="").choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        calls = [(call["id"], "ok") for call in messages[-1].get("tool_calls", ())]
        messages += [{"role": "tool", "tool_call_id": id, "content": ok} for id, ok in calls]
        messages += [] if calls else [user("Again")]
    talk.ask(messages, tools=tools)
    assert talk.book.lineages == 1
    assert set(talk.book.drift) <= {Drift.RETOKENISED}


@pytest.mark.parametrize("cut", ["I wonder", "hm</think>Well, ", 'So <tool_call>\n{"name": "a'])
@pytest.mark.parametrize("name", KEEP_HISTORY)
def test_a_cut_reply_that_comes_back_as_it_was_keeps_its_tokens(
    name: str, cut: str, make_renderer: MakeRenderer
) -> None:
    """Most replies of a thinking model that are cut are cut in their thought."""
    if "think" in cut and KEEP_HISTORY[name] == "{}":
        cut = cut.removeprefix("hm</think>")  # its template shows no thoughts at all
    talk = Talk(make_renderer(name))
    messages = [user("Hi")]
    expected: list[Any] = []
    for _ in range(3):
        conversation = talk.ask(messages)
        prompt, action = talk.prompt(conversation), talk.renderer.encode(cut)
        assert prompt[: len(expected)] == expected
        expected = prompt + action
        messages += [said(talk.take(conversation, action, cut=True).text), user("Go on")]
    talk.ask(messages)
    assert talk.book.lineages == 1
    assert set(talk.book.drift) <= {Drift.RETOKENISED}


@pytest.mark.parametrize("name", ["qwen3", "qwen3_5", "deepseekv3_thinking", "nemotron3"])
def test_a_thought_that_the_template_strips_is_template_drift_in_a_broken_reply_too(
    name: str, make_renderer: MakeRenderer
) -> None:
    talk = Talk(make_renderer(name))
    opened = talk.read(talk.renderer.full([{"role": "user", "content": "Hi"}])).rstrip()
    start = "" if opened.endswith("<think>") else "<think>\n"
    reply = talk.say(talk.ask([user("Hi")]), f"{start}hm\n</think>\n\n{BROKEN['no JSON']}")
    assert reply.reasoning is not None
    after = talk.ask([user("Hi"), said(reply.text), user("Bye")])
    assert talk.prompt(after) == talk.renderer.full(after.messages)
    assert talk.book.drift == {Drift.TEMPLATE: 1}


def test_a_broken_call_is_in_the_history_that_is_rendered_anew() -> None:
    talk = Talk()
    reply = talk.say(talk.ask([user("Hi")], tools=[ADD]), f"So.\n{BROKEN['no JSON']}")
    after = talk.ask([user("Hi"), said(reply.text), user("Bye")])
    assert talk.read(talk.prompt(after)).count('{"name": "add", "arguments": {\n') == 1
    assert talk.book.drift == {Drift.TOOLS: 1}


def test_a_reply_that_cannot_be_parsed_is_history_like_any_other() -> None:
    talk = Talk()
    deep = '<tool_call>\n{"name": "f", "arguments": ' + "[" * 3000 + "}\n</tool_call>"
    first = talk.ask([user("Hi")])
    reply, _ = read_action(
        talk.spell(deep) + talk.renderer.end_tokens,
        talk.renderer,
        ChatRequest("policy", []),
        truncated=False,
        call_ids="call",
        prompt_tokens=0,
    )
    first.record(talk.spell(deep) + talk.renderer.end_tokens, reply, talk.renderer)
    after = talk.ask([user("Hi"), said(reply.text), user("Pardon?")])
    assert talk.read(talk.prompt(after)).endswith("Pardon?<|im_end|>\n<|im_start|>assistant\n")


def test_a_conversation_after_drift_is_one_lineage_again() -> None:
    talk, messages = two_turns()
    other_words(messages)
    for turn in range(4):
        reply = talk.say(talk.ask(messages), f"answer {turn}")
        messages += [said(reply.text), user("more")]
    assert (talk.book.lineages, talk.book.drift) == (2, {Drift.HISTORY: 1})


# -- completed arguments -------------------------------------------------------------------------

EDIT = {
    "type": "function",
    "function": {
        "name": "edit",
        "description": "Edits.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    },
}
SAMPLED = {
    "path": "a.py",
    "new": "x = 1  \ny = 2\n",
    "at": [{"line": 3}],
    "count": 1,
    "limit": "20",
}


def edits(talk: Talk, arguments: Any = SAMPLED) -> tuple[Messages, dict[str, Any]]:
    """A conversation in which the policy has called a tool, and the call as it was delivered."""
    messages: Messages = [user("Edit!")]
    written = json.dumps({"name": "edit", "arguments": arguments})
    action = f"I edit.\n<tool_call>\n{written}\n</tool_call>"
    reply = talk.say(talk.ask(messages, tools=[EDIT]), action)
    return messages, completion(reply, id="", model="").choices[0].message.model_dump(
        exclude_none=True
    )


def with_arguments(message: dict[str, Any], arguments: Any) -> dict[str, Any]:
    """A reply with other arguments in its only tool call."""
    changed = copy.deepcopy(message)
    changed["tool_calls"][0]["function"]["arguments"] = json.dumps(arguments)
    return changed


def sent_back(talk: Talk, messages: Messages, message: dict[str, Any]) -> Conversation:
    """The reply comes back, with its tool's result."""
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "ok"}
    messages += [message, result]
    return talk.ask(messages, tools=[EDIT])


COMPLETED = {
    "an argument more": {"replace_all": False, **SAMPLED},
    "one more at depth": {**SAMPLED, "at": [{"line": 3, "column": None}]},
    "tidied lines": {**SAMPLED, "new": "x = 1\ny = 2"},
    "a number read from its text": {**SAMPLED, "limit": 20},
    "another number's spelling": {**SAMPLED, "count": 1.0, "all": True},
}

REWRITTEN = {
    "another value": {**SAMPLED, "path": "b.py"},
    "one less": {"path": "a.py"},
    "another depth": {**SAMPLED, "at": [{"line": 3}, {"line": 4}]},
    "another indentation": {**SAMPLED, "new": "  x = 1\ny = 2\n"},
    "another number": {**SAMPLED, "limit": 30},
    "text read as nothing": {**SAMPLED, "path": None},
    "another type": {**SAMPLED, "count": True},
    "another kind": {**SAMPLED, "at": {"line": 3}},
    "no object": [SAMPLED],
}


@pytest.mark.parametrize("arguments", COMPLETED.values(), ids=COMPLETED)
def test_completed_arguments_are_kept_as_sampled_where_that_is_wanted(arguments: Any) -> None:
    talk = Talk(keeps_completed=True)
    messages, message = edits(talk)
    known = talk.prompt(talk.book._latest["main"])
    [point] = talk.book._latest["main"].points
    after = sent_back(talk, messages, with_arguments(message, arguments))
    assert talk.prompt(after)[: point.log.length] == flatten(point.log.followed_by([]).chunks)
    assert len(known) == point.log.length
    assert "replace_all" not in talk.read(talk.prompt(after))
    assert (talk.book.lineages, talk.book.drift) == (1, {Drift.COMPLETED_ARGUMENTS: 1})


def test_completed_arguments_are_counted_at_the_next_turn_and_at_no_later_one() -> None:
    talk = Talk(keeps_completed=True)
    messages, message = edits(talk)
    conversation = sent_back(talk, messages, with_arguments(message, {**SAMPLED, "all": False}))
    for turn in range(3):
        messages += [said(talk.say(conversation, f"done {turn}").text), user("And?")]
        assert talk.ask(messages, tools=[EDIT]) is conversation
    assert (talk.book.lineages, talk.book.drift) == (1, {Drift.COMPLETED_ARGUMENTS: 1})


def test_every_call_of_a_long_conversation_may_come_back_completed() -> None:
    talk = Talk(keeps_completed=True)
    messages: Messages = [user("Edit!")]
    expected: list[Any] = []
    for turn in range(6):
        conversation = talk.ask(messages, tools=[EDIT])
        prompt = talk.prompt(conversation)
        assert prompt[: len(expected)] == expected
        call = json.dumps({"name": "edit", "arguments": {"path": f"{turn}.py"}})
        action = talk.renderer.encode(f"<tool_call>\n{call}\n</tool_call>")
        action += talk.renderer.end_tokens
        expected = [*prompt, *action]
        parsed, _ = talk.renderer.parse(action)
        reply = read_reply(
            parsed, truncated=False, call_ids=f"{turn}", prompt_tokens=0, completion_tokens=1
        )
        conversation.record(action, reply, talk.renderer)
        message = completion(reply, id="", model="").choices[0].message.model_dump()
        messages.append(with_arguments(message, {"all": False, "path": f"{turn}.py"}))
        [made] = message["tool_calls"]
        messages.append({"role": "tool", "tool_call_id": made["id"], "content": "ok"})
    talk.ask(messages, tools=[EDIT])
    assert (talk.book.lineages, talk.book.drift) == (1, {Drift.COMPLETED_ARGUMENTS: 6})
    branch = talk.ask([*messages[:-1], {**messages[-1], "content": "no"}], tools=[EDIT])
    assert talk.prompt(branch)[: len(expected)] == expected
    assert (talk.book.lineages, talk.book.drift) == (2, {Drift.COMPLETED_ARGUMENTS: 6})


def test_a_branch_after_a_completed_call_shares_what_was_sampled() -> None:
    talk = Talk(keeps_completed=True)
    messages, message = edits(talk)
    completed = with_arguments(message, {**SAMPLED, "all": False})
    talk.say(sent_back(talk, messages, completed), "done")
    [first, _] = talk.book._latest["main"].points
    branch = talk.ask([messages[0], completed, {**messages[2], "content": "no"}], tools=[EDIT])
    shared = flatten(first.log.followed_by([]).chunks)
    assert talk.prompt(branch)[: len(shared)] == shared
    assert (talk.book.lineages, talk.book.drift) == (2, {Drift.COMPLETED_ARGUMENTS: 1})


def test_without_the_option_a_completed_call_is_shown_as_sent_and_named() -> None:
    talk = Talk()
    messages, message = edits(talk)
    after = sent_back(talk, messages, with_arguments(message, {**SAMPLED, "all": False}))
    assert '"all": false' in talk.read(talk.prompt(after))
    assert talk.prompt(after) == talk.renderer.full(after.messages)
    assert (talk.book.lineages, talk.book.drift) == (2, {Drift.COMPLETED_ARGUMENTS: 1})
    messages += [said(talk.say(after, "done").text), user("And?")]
    assert talk.ask(messages, tools=[EDIT]) is after
    assert (talk.book.lineages, talk.book.drift) == (2, {Drift.COMPLETED_ARGUMENTS: 1})


@pytest.mark.parametrize("arguments", REWRITTEN.values(), ids=REWRITTEN)
def test_rewritten_arguments_are_an_edit_whatever_the_option(arguments: Any) -> None:
    talk = Talk(keeps_completed=True)
    messages, message = edits(talk)
    after = sent_back(talk, messages, with_arguments(message, arguments))
    assert talk.prompt(after) == talk.renderer.full(after.messages)
    assert (talk.book.lineages, talk.book.drift) == (2, {Drift.HISTORY: 1})


def another_id(message: dict[str, Any]) -> None:
    message["tool_calls"][0]["id"] = "another"


def another_name(message: dict[str, Any]) -> None:
    message["tool_calls"][0]["function"]["name"] = "write"


def another_text(message: dict[str, Any]) -> None:
    message["content"] = "I do it."


def one_call_more(message: dict[str, Any]) -> None:
    message["tool_calls"].append({**message["tool_calls"][0], "id": "call-9"})


@pytest.mark.parametrize("change", [another_id, another_name, another_text, one_call_more])
def test_a_completed_call_has_to_be_ours_and_the_rest_the_same(
    change: Callable[[dict[str, Any]], None],
) -> None:
    talk = Talk(keeps_completed=True)
    messages, message = edits(talk)
    changed = with_arguments(message, {**SAMPLED, "all": False})
    change(changed)
    sent_back(talk, messages, changed)
    assert (talk.book.lineages, talk.book.drift) == (2, {Drift.HISTORY: 1})


def test_a_template_that_strips_thinking_is_named_and_not_what_was_completed(
    make_renderer: MakeRenderer,
) -> None:
    talk = Talk(make_renderer("qwen3"), keeps_completed=True)
    written = json.dumps({"name": "edit", "arguments": SAMPLED})
    action = f"<think>\nhm\n</think>\n\n<tool_call>\n{written}\n</tool_call>"
    messages: Messages = [user("Edit!")]
    reply = talk.say(talk.ask(messages, tools=[EDIT]), action)
    message = completion(reply, id="", model="").choices[0].message.model_dump(exclude_none=True)
    del message["reasoning_content"]
    messages.append(with_arguments(message, {**SAMPLED, "all": False}))
    messages.append({"role": "tool", "tool_call_id": reply.tool_calls[0].id, "content": "ok"})
    messages.append(user("And now?"))
    after = talk.ask(messages, tools=[EDIT])
    assert talk.prompt(after) == talk.renderer.full(after.messages)
    assert (talk.book.lineages, talk.book.drift) == (2, {Drift.TEMPLATE: 1})


# -- 6. branches ---------------------------------------------------------------------------------


def test_the_same_request_again_is_a_new_sample_and_no_drift() -> None:
    talk = Talk()
    first = talk.ask([user("Hi")])
    prompt = talk.prompt(first)
    talk.say(first, "Fine.")
    again = talk.ask([user("Hi")])
    assert talk.prompt(again) == prompt
    assert (talk.book.lineages, talk.book.drift.total()) == (2, 0)


def test_a_branch_shares_the_tokens_sampled_before_it() -> None:
    talk = Talk()
    first = talk.ask([user("Hi")])
    beginning = talk.prompt(first)
    action = talk.spell("Fine.") + talk.renderer.end_tokens
    talk.take(first, action)
    talk.say(talk.ask([user("Hi"), said("Fine."), user("And you")]), "Fine too.")
    branch = talk.ask([user("Hi"), said("Fine."), user("Something else")])
    assert talk.prompt(branch)[: len(beginning + action)] == beginning + action
    assert (talk.book.lineages, talk.book.drift[Drift.HISTORY]) == (2, 0)


@pytest.mark.parametrize("name", ["qwen3_instruct", "deepseekv4_1_disable_thinking"])
@pytest.mark.parametrize("ends", [[""] * 100, [str(number) for number in range(100)]])
def test_the_hundredth_branch_shares_tokens_as_the_first_does(
    name: str, ends: list[str], make_renderer: MakeRenderer
) -> None:
    talk = Talk(make_renderer(name))
    first = talk.ask([user("Hi")])
    beginning = talk.prompt(first) + talk.spell("Fine.") + talk.renderer.end_tokens[:1]
    talk.take(first, talk.spell("Fine.") + talk.renderer.end_tokens[:1])
    for end in ends:
        branch = talk.ask([user("Hi"), said("Fine."), user(f"And you{end}")])
        assert talk.prompt(branch)[: len(beginning)] == beginning
        talk.say(branch, "Fine too.")
    assert (talk.book.lineages, talk.book.drift) == (100, {Drift.RETOKENISED: 1})


def test_a_branch_off_a_branch_shares_what_both_share() -> None:
    talk = Talk()
    messages, prompt = [user("Hi")], []
    for turn in range(4):
        for _ in range(2):
            conversation = talk.ask([*messages])
            prompt = talk.prompt(conversation)
            talk.take(conversation, talk.spell(f"answer {turn}") + talk.renderer.end_tokens)
        messages += [said(f"answer {turn}"), user("more")]
    known = prompt[: -len(talk.renderer.encode("more<|im_end|>\n<|im_start|>assistant\n"))]
    branch = talk.ask([*messages[:-3], user("something else")], "another")
    assert talk.prompt(branch)[: len(known)] == known
    assert talk.book.drift[Drift.HISTORY] == 0


@pytest.mark.parametrize("name", ["glm5_3_low_reasoning", "qwen3", "gpt_oss_no_sysprompt"])
def test_branches_of_a_template_that_restarts_show_what_the_template_shows(
    name: str, make_renderer: MakeRenderer
) -> None:
    talk = Talk(make_renderer(name))
    reply = talk.say(talk.ask([user("Hi")]), "hm</think>Fine.")
    for question in "ABC":
        branch = talk.ask([user("Hi"), said(reply.text), user(question)])
        own: list[Any] = [user("Hi"), reply.parsed, user(question)]
        assert talk.read(talk.prompt(branch)) == talk.read(talk.renderer.full(own))
    assert set(talk.book.drift) <= {Drift.TEMPLATE}


def test_a_branch_goes_on_by_itself() -> None:
    talk = Talk()
    talk.say(talk.ask([user("Hi")]), "Fine.")
    talk.say(talk.ask([user("Hi"), said("Fine."), user("A")]), "a")
    branch = talk.ask([user("Hi"), said("Fine."), user("B")])
    talk.say(branch, "b")
    assert talk.ask([user("Hi"), said("Fine."), user("B"), said("b"), user("C")]) is branch
    other = talk.ask([user("Hi"), said("Fine."), user("A"), said("a"), user("C")])
    assert (other.lineage, branch.lineage) == (0, 1)


def test_a_branch_after_a_cut_reply_keeps_its_end() -> None:
    talk = Talk()
    talk.take(talk.ask([user("Hi")]), talk.renderer.encode("Once"), cut=True)
    talk.say(talk.ask([user("Hi"), said("Once"), user("A")]), "a")
    branch = talk.ask([user("Hi"), said("Once"), user("B")])
    assert talk.prompt(branch) == talk.renderer.full(branch.messages)


def test_a_branch_of_a_template_rendered_whole_is_the_renderers_prompt(
    make_renderer: MakeRenderer,
) -> None:
    talk = Talk(make_renderer("nemotron3_preserve_thinking"))
    talk.take(talk.ask([user("Hi")]), talk.written("Fine."))
    talk.take(talk.ask([user("Hi"), said("Fine."), user("A")]), talk.written("a"))
    branch = talk.ask([user("Hi"), said("Fine."), user("B")])
    assert talk.prompt(branch) == talk.renderer.full(branch.messages)


# -- hidden messages -----------------------------------------------------------------------------


def test_injected_messages_stand_before_the_reply_and_stay() -> None:
    talk = Talk()
    conversation = talk.ask([user("Hi")])
    talk.book.inject(conversation, [{"role": "user", "content": "Hurry!"}], talk.renderer)
    prompt = talk.prompt(conversation)
    assert prompt == talk.renderer.full(conversation.messages)
    talk.say(conversation, "Fine.")
    after = talk.ask([user("Hi"), said("Fine."), user("Bye")])
    assert after is conversation
    assert talk.prompt(after)[: len(prompt)] == prompt


def test_injected_messages_reach_templates_that_are_rendered_whole(family: Renderer) -> None:
    talk = Talk(family)
    conversation = talk.ask([user("Hi")])
    talk.book.inject(conversation, [{"role": "user", "content": "Hurry!"}], talk.renderer)
    assert talk.prompt(conversation) == talk.renderer.full(conversation.messages)


# -- 7. refusals ---------------------------------------------------------------------------------


def test_a_refused_request_leaves_no_trace() -> None:
    talk = Talk(max_length=60)
    conversation = talk.ask([user("Hi")])
    talk.say(conversation, "Fine.")
    before = (talk.prompt(conversation), list(conversation.messages), list(conversation.sent))
    with pytest.raises(openai.BadRequestError) as refusal:
        talk.ask([user("Hi"), said("Fine."), user("word " * 100)])
    assert refusal.value.code == "context_length_exceeded"
    assert before == (
        talk.prompt(conversation),
        list(conversation.messages),
        list(conversation.sent),
    )
    assert talk.ask([user("Hi"), said("Fine."), user("Bye")]) is conversation


def test_refused_requests_are_no_lineages_and_no_drift(make_renderer: MakeRenderer) -> None:
    talk = Talk(make_renderer("qwen3"), max_length=200)
    talk.say(talk.ask([user("Hi")]), "<think>\nhm\n</think>\n\nyes")
    for count in (400, 400, 1):
        messages = [user("Hi"), said("yes"), user("long " * count)]
        if count > 1:
            with pytest.raises(openai.BadRequestError, match="too long"):
                talk.ask(messages)
            with pytest.raises(openai.BadRequestError, match="too long"):
                talk.ask([*messages, said("yes")])
        else:
            talk.ask(messages)
    assert (talk.book.lineages, talk.book.drift) == (2, {Drift.TEMPLATE: 1})


class Unfriendly:
    """What agents put into messages: nothing of it is JSON."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("The truth value of an array is ambiguous.")

    __hash__ = None  # type: ignore[assignment]

    def __deepcopy__(self, memo: object) -> "Unfriendly":
        return self

    def __bool__(self) -> bool:
        raise ValueError("The truth value of an array is ambiguous.")

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def model_dump(self, **options: object) -> object:
        raise RuntimeError("no fields")


def test_a_value_that_cannot_be_compared_is_no_obstacle() -> None:
    talk = Talk()
    messages: Messages = [{**user("Hi"), "embedding": Unfriendly()}]
    messages.append(said(talk.say(talk.ask(messages, tools=[ADD]), "Fine.").text))
    messages.append(user("Bye"))
    tools = [{**ADD, "strict": Unfriendly()}]
    talk.ask(messages, tools=[ADD])
    assert (talk.book.lineages, talk.book.drift.total()) == (1, 0)
    talk.ask(messages, tools=tools)
    talk.ask(messages, tools=tools)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "Hi", "lock": threading.Lock()},
        {"role": "user", "content": "Hi", "name": Unfriendly()},
        {"role": "assistant", "content": "Hi", "tool_calls": Unfriendly()},
        {"role": "tool", "content": "Hi", "tool_call_id": Unfriendly()},
        Unfriendly(),
    ],
)
def test_what_raises_when_it_is_read_is_the_agents_400(message: Any) -> None:
    talk = Talk()
    with pytest.raises(
        openai.BadRequestError, match=r"^messages(\[0\])? cannot be read; send plain"
    ):
        talk.ask([message])
    talk.say(talk.ask([user("Hi")]), "Fine.")
    with pytest.raises(
        openai.BadRequestError, match=r"messages(\[2\])? cannot be read; send plain"
    ):
        talk.ask([user("Hi"), said("Fine."), message])
    talk.ask([user("Hi"), said("Fine."), user("Bye")])
    assert (talk.book.lineages, talk.book.drift.total()) == (1, 0)


def test_tools_that_cannot_be_kept_are_the_agents_400() -> None:
    for tool in ({**ADD, "lock": threading.Lock()}, {**ADD, "function": Unfriendly()}):
        with pytest.raises(openai.BadRequestError, match="tools"):
            Talk().ask([user("Hi")], tools=[tool])


def test_an_overlong_first_request_leaves_no_trace() -> None:
    talk = Talk(max_length=20)
    with pytest.raises(openai.BadRequestError, match="prompt is too long.*maximum.*20 tokens"):
        talk.ask([user("word " * 100)])
    assert talk.book.lineages == 0


def test_what_the_renderer_cannot_express_is_a_400(make_renderer: MakeRenderer) -> None:
    talk = Talk(make_renderer("role_colon"))
    with pytest.raises(openai.BadRequestError, match="cannot express.*tool support"):
        talk.ask([user("Hi")], tools=[ADD])


def test_the_default_renderer_is_the_base_models() -> None:
    assert Talk().renderer.renderer is default_renderer()


# -- 8. other agents -----------------------------------------------------------------------------


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


def hands_over(talk: Talk, messages: Messages, to: str, tools: list[Any]) -> None:
    """The policy calls the tool that hands over, and the framework says that it has."""
    action = f'<tool_call>\n{{"name": "transfer_to_{to}", "arguments": {{}}}}\n</tool_call>'
    conversation = talk.ask(messages, tools=tools)
    parsed, _ = talk.renderer.parse(talk.renderer.encode(action) + talk.renderer.end_tokens)
    reply = read_reply(
        parsed,
        truncated=False,
        call_ids=f"call-{talk.book.lineages}-{len(messages)}",
        prompt_tokens=0,
        completion_tokens=1,
    )
    conversation.record(
        talk.renderer.encode(action) + talk.renderer.end_tokens, reply, talk.renderer
    )
    [call] = reply.tool_calls
    message = completion(reply, id="", model="").choices[0].message.model_dump(exclude_none=True)
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": f'{{"to": "{to}"}}'}]


TRIAGE, REFUNDS = [tool("transfer_to_refunds")], [tool("refund"), tool("transfer_to_triage")]


def test_a_handoff_of_the_openai_agents_sdk_is_a_new_conversation_and_no_drift() -> None:
    """It puts the next agent's system prompt in the place of the last one's, with its tools."""
    talk = Talk()
    history: Messages = [system("You are triage."), user("My money!")]
    hands_over(talk, history, "refunds", TRIAGE)
    history[0] = system("You are refunds.")
    hands_over(talk, history, "triage", REFUNDS)
    assert (talk.book.lineages, talk.book.drift.total(), talk.book.handoffs) == (2, 0, 1)
    history[0] = system("You are triage.")
    back = talk.ask(history, tools=TRIAGE)
    assert back.lineage == 0  # triage goes on where it stood
    assert (talk.book.lineages, talk.book.drift.total(), talk.book.handoffs) == (2, 0, 1)


def test_a_handoff_between_agents_without_system_prompts_is_known_by_their_tools() -> None:
    talk = Talk()
    history: Messages = [user("My money!")]
    hands_over(talk, history, "refunds", TRIAGE)
    hands_over(talk, history, "triage", REFUNDS)
    assert talk.ask(history, tools=TRIAGE).lineage == 0
    assert (talk.book.lineages, talk.book.drift.total(), talk.book.handoffs) == (2, 0, 1)


def test_a_handoff_between_agents_without_tools_is_known_by_their_prompts() -> None:
    talk = Talk()
    history: Messages = [system("You write."), user("A poem.")]
    history.append(said(talk.say(talk.ask(history), "Roses.").text))
    criticism = [system("You criticise."), *history[1:]]
    talk.say(talk.ask(criticism), "Bad.")
    again = talk.ask([*history, said("Bad."), user("Again.")])
    assert again.lineage == 0
    assert (talk.book.lineages, talk.book.drift.total(), talk.book.handoffs) == (2, 0, 1)


def test_langgraphs_supervisor_goes_on_with_what_its_worker_said() -> None:
    """A worker gets the supervisor's messages; its answer comes back as an assistant's message."""
    talk = Talk()
    supervisor, worker = [tool("transfer_to_math")], [ADD]
    state: Messages = [user("2+2?")]
    asked = [system("You are the supervisor."), *state]
    hands_over(talk, asked, "math", supervisor)
    state = asked[1:]
    answer = talk.say(talk.ask([system("You do maths."), *state], tools=worker), "It is 4.")
    named = {"name": "transfer_back_to_supervisor", "arguments": "{}"}
    back = {"id": "x", "type": "function", "function": named}
    state += [
        {**said(answer.text), "name": "math"},
        {"role": "assistant", "content": "Transferring back.", "tool_calls": [back]},
        {"role": "tool", "tool_call_id": "x", "content": "Successfully transferred."},
    ]
    after = talk.ask([system("You are the supervisor."), *state], tools=supervisor)
    assert after.lineage == 0
    assert "It is 4." in talk.read(talk.prompt(after))
    assert (talk.book.lineages, talk.book.drift.total(), talk.book.handoffs) == (2, 0, 1)


def test_two_agents_that_alternate_over_the_same_question_are_no_drift() -> None:
    talk = Talk()
    agents: list[tuple[Messages, list[Any] | None]] = [
        ([user("Solve it.")], [ADD]),
        ([user("Solve it."), user("Be quick.")], [EDIT]),
        ([system("You check."), user("Solve it.")], None),
        ([user("You plan: solve it.")], None),
    ]
    for turn in range(3):
        for messages, tools in agents:
            reply = talk.say(talk.ask(messages, tools=tools), f"{len(messages)} at {turn}")
            messages += [said(reply.text), user("Go on.")]
    assert (talk.book.lineages, talk.book.drift.total(), talk.book.handoffs) == (4, 0, 0)


def test_a_sub_agents_reply_after_the_main_agents_own_is_no_drift() -> None:
    """Neither has a system prompt or tools: their first messages tell them apart."""
    talk = Talk()
    main: Messages = [user("Plan.")]
    main.append(said(talk.say(talk.ask(main), "I ask others.").text))
    answer = talk.say(talk.ask([user("Find it.")]), "Found.").text
    after = talk.ask([*main, said(answer), user("And?")])
    assert after.lineage == 0
    assert (talk.book.lineages, talk.book.drift.total(), talk.book.handoffs) == (2, 0, 0)


def test_an_agent_that_rewrites_its_own_past_after_a_handoff_is_drift() -> None:
    talk = Talk()
    history: Messages = [system("You are triage."), user("My money!")]
    hands_over(talk, history, "refunds", TRIAGE)
    history[0] = system("You are refunds.")
    history.append(said(talk.say(talk.ask(history, tools=REFUNDS), "How much?").text))
    history[1] = user("Summary: money.")
    talk.ask([*history, user("10")], tools=REFUNDS)
    assert (talk.book.lineages, talk.book.drift) == (3, {Drift.HISTORY: 1})
    assert talk.book.handoffs == 1


def test_a_system_prompt_that_changes_every_turn_shows_as_handoffs() -> None:
    """It costs a datum a turn, as a handoff does; the two look the same."""
    talk = Talk()
    messages: Messages = [system("It is 12:00."), user("Hi")]
    for minute in range(4):
        messages[0] = system(f"It is 12:0{minute}.")
        messages += [said(talk.say(talk.ask(messages), f"{minute}").text), user("And now?")]
    assert (talk.book.lineages, talk.book.drift.total(), talk.book.handoffs) == (4, 0, 3)


def test_a_refused_handoff_is_not_counted() -> None:
    talk = Talk(max_length=60)
    history: Messages = [system("You write."), user("A poem.")]
    history.append(said(talk.say(talk.ask(history), "Roses.").text))
    with pytest.raises(openai.BadRequestError, match="too long"):
        talk.ask([system("word " * 100), *history[1:]])
    assert (talk.book.lineages, talk.book.handoffs) == (1, 0)


# -- 9. images -------------------------------------------------------------------------------------


def red_square() -> dict[str, Any]:
    """A part of a user's message with a real little image."""
    file = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def test_images_pass_through_as_the_renderer_makes_them() -> None:
    renderer = get_renderer(
        "qwen3_vl_instruct",
        tokenizer_with_vision(),
        image_processor=Qwen2VLImageProcessorPil(),
        model_name="test",
    )
    talk = Talk(renderer)
    messages: Messages = [
        {"role": "user", "content": [red_square(), {"type": "text", "text": "What is it?"}]}
    ]
    first = talk.ask(messages)
    images = [chunk for chunk in first.prompt().chunks if not hasattr(chunk, "tokens")]
    assert len(images) == 1
    assert first.length == first.prompt().length
    reply = talk.say(first, "A square.")
    messages += [said(reply.text), user("What colour?")]
    after = talk.ask(messages)
    assert talk.prompt(after) == talk.renderer.full(after.messages)
    assert talk.book.lineages == 1


def test_branches_with_images_share_no_more_than_their_beginning() -> None:
    renderer = Qwen3VLRenderer(
        tokenizer_with_vision(), Qwen2VLImageProcessorPil(), strip_thinking_from_history=False
    )
    talk = Talk(renderer)
    question = {"role": "user", "content": [red_square(), {"type": "text", "text": "What?"}]}
    talk.say(talk.ask([question]), "A square.")
    for number in range(3):
        branch = talk.ask([question, said("A square."), user(f"question {number}")])
        assert talk.prompt(branch) == talk.renderer.full(branch.messages)
        talk.say(branch, f"answer {number}")
    again = [copy.deepcopy(question), said("A square."), user("question 1"), said("answer 1")]
    assert talk.ask([*again, user("Bye")]).lineage == 1
    assert (talk.book.lineages, talk.book.drift.total()) == (3, 0)


def test_an_image_object_is_known_again_by_its_pixels() -> None:
    talk = Talk(
        get_renderer(
            "qwen3_vl_instruct",
            tokenizer_with_vision(),
            image_processor=Qwen2VLImageProcessorPil(),
            model_name="test",
        )
    )

    def question(colour: str) -> dict[str, Any]:
        image = Image.new("RGB", (64, 64), colour)
        return {"role": "user", "content": [{"type": "image", "image": image}]}

    talk.say(talk.ask([question("red")]), "A square.")
    other = talk.ask([question("blue"), said("A square."), user("Which?")])
    assert talk.ask([question("red"), said("A square."), user("Which?")]).lineage == 0
    assert other.lineage == 1


def tokenizer_with_vision() -> Any:
    tokenizer = copy.deepcopy(default_renderer().tokenizer)
    names = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": names})
    return tokenizer


# -- 10. many conversations ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["another question", "a branch", "an older one"])
def test_finding_takes_as_many_comparisons_among_many_as_among_few(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = 0

    def counted(method: Callable[..., bool]) -> Callable[..., bool]:
        def count(*arguments: Any, **options: Any) -> bool:
            nonlocal compared
            compared += 1
            return method(*arguments, **options)

        return count

    for kind_of, name in ((Conversation, "is_continued_by"), (Reply, "is_sent_back_as")):
        monkeypatch.setattr(kind_of, name, counted(getattr(kind_of, name)))
    counts = []
    for others in (50, 400):
        talk = Talk()
        for number in range(others):
            talk.say(talk.ask([user("Hi"), user(f"Question {number}")]), "Fine.")
        compared = 0
        request = {
            "another question": [user("Hi"), user("Another")],
            "a branch": [user("Hi"), user("Question 0"), said("Fine."), user("And?")],
            "an older one": [user("Hi"), user("Question 7"), said("Fine."), user("And?")],
        }[kind]
        talk.ask(request)
        counts.append(compared)
    assert counts[0] == counts[1]
