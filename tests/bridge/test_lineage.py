"""What ``ConversationBook`` promises about tokens.

1. Every prompt is what the renderer makes of the conversation, as long as nothing sampled differs
   from what the renderer would write: for every family, over any number of turns.
2. Sampled tokens are kept exactly as sampled, whatever their spelling.
3. A conversation is recognised in every form in which agents send it back.
4. A cut reply gets its end-of-turn token from the tail.
5. Drift is counted by cause, once, and starts a new lineage (except ``retokenised``).
6. Branches share the tokens sampled up to the fork, and are no drift.
7. A refused request leaves no trace.
8. Images pass through as the renderer makes them.
"""

import base64
import copy
import io
from collections.abc import Callable, Sequence
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessage
from PIL import Image
from tinker_cookbook.renderers import Renderer, get_renderer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from evert.bridge.base import default_renderer
from evert.bridge.conversation import Conversation, Drift
from evert.bridge.lineage import ConversationBook
from evert.bridge.messages import Reply, read_reply
from evert.bridge.rendering import PromptRenderer, prompt_renderer
from evert.bridge.requests import ChatRequest
from evert.bridge.tokens import flatten

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

    def __init__(self, renderer: Renderer | None = None, max_length: int | None = None) -> None:
        self.renderer: PromptRenderer = prompt_renderer(renderer)
        self.book = ConversationBook(self.renderer, max_length)

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

    def spell(self, text: str) -> list[int]:
        """Another tokenisation of the text: one token a character."""
        return [token for character in text for token in self.renderer.encode(character)]


# -- 1. the renderer's own prompt ----------------------------------------------------------------


def test_every_prompt_is_the_renderers_own_in_every_family(family: Renderer) -> None:
    talk = Talk(family)
    messages: Messages = [{"role": "system", "content": "Be brief."}, user("Hi")]
    for turn in range(5):
        conversation = talk.ask(messages)
        assert talk.prompt(conversation) == talk.renderer.full(conversation.messages)
        reply = talk.say(conversation, f" answer {turn}")
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


def another_system_prompt(messages: Messages) -> None:
    messages[0]["content"] = "Be long."


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
        another_system_prompt,
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
    assert talk.book.latest_drift is Drift.HISTORY


def test_a_new_conversation_with_the_same_system_prompt_is_no_drift() -> None:
    talk, messages = two_turns()
    talk.ask([messages[0], user("Something else")])
    assert (talk.book.lineages, talk.book.drift.total()) == (2, 0)


def test_a_conversation_after_drift_is_one_lineage_again() -> None:
    talk, messages = two_turns()
    other_words(messages)
    for turn in range(4):
        reply = talk.say(talk.ask(messages), f"answer {turn}")
        messages += [said(reply.text), user("more")]
    assert (talk.book.lineages, talk.book.drift) == (2, {Drift.HISTORY: 1})


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
    talk.say(talk.ask([user("Hi")]), "Fine.")
    talk.say(talk.ask([user("Hi"), said("Fine."), user("A")]), "a")
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


# -- images --------------------------------------------------------------------------------------


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


def tokenizer_with_vision() -> Any:
    tokenizer = copy.deepcopy(default_renderer().tokenizer)
    names = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": names})
    return tokenizer
