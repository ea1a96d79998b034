"""Token guarantees of ``ConversationBook``. ``test_oracle.py`` tests it with random episodes.

Sampled tokens are kept exactly as sampled, a conversation is recognised in every form in which
agents send it back, and every change that ends a lineage is counted once under its cause.
"""

import copy
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import openai
import pytest
from openai.types.chat import ChatCompletionMessage
from PIL import Image
from tests.kit import Patch, assistant, calling, system, tool, user
from tests.kit.renderers import MakeRenderer
from tinker_cookbook.renderers import Renderer
from tinker_cookbook.renderers.base import Message
from tinker_cookbook.renderers.qwen3 import Qwen3VLRenderer
from tinker_cookbook.rl.types import StopReason
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from evert.bridge.chat.reply import Reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients.dialects.chat_completions import completion
from evert.bridge.conversations.conversation import Conversation, Point
from evert.bridge.conversations.drift import Drift
from evert.bridge.conversations.matching import RECENT, ConversationBook
from evert.bridge.conversations.reading import Entry
from evert.bridge.tokens.actions import read_action
from evert.bridge.tokens.bases import default_renderer
from evert.bridge.tokens.prompt_limit import PromptLimit
from evert.bridge.tokens.renderer import PromptRenderer, prompt_renderer
from evert.bridge.tokens.token_log import flatten

Messages = list[Any]

ADD, EDIT = tool("add"), tool("edit")
HURRY = Message(role="user", content="Hurry!")
ONE_CALL = calling("add", x=1)


class Talk:
    """Plays both sides of an episode: the agent's requests and the policy's actions.

    Checks that every prompt starts with all earlier tokens of its lineage.
    """

    def __init__(
        self,
        renderer: Renderer | None = None,
        max_length: int | None = None,
        keeps_completed: bool = False,
    ) -> None:
        self.renderer: PromptRenderer = prompt_renderer(renderer)
        self.end = self.renderer.end_tokens[:1]
        self.actions = 0
        self._known: dict[int, list[Any]] = {}
        limit = PromptLimit(max_length, StopReason.CONTEXT_OVERFLOW)
        self.book = ConversationBook(self.renderer, limit, keeps_completed=keeps_completed)

    @property
    def met(self) -> tuple[int, dict[Drift, int]]:
        return self.book.lineages, {**self.book.drift}

    def ask(
        self, messages: Sequence[Any], caller: str = "main", tools: list[Any] | None = None
    ) -> Conversation:
        request = ChatRequest("policy", list(messages), tools)
        conversation = self.book.observe(request, caller, self.renderer)
        prefix = self._known.get(conversation.lineage, [])
        assert self.prompt(conversation)[: len(prefix)] == prefix
        return conversation

    def prompt(self, conversation: Conversation) -> list[Any]:
        return flatten(conversation.prompt().chunks)

    def read(self, conversation: Conversation) -> str:
        return self.renderer.decode(self.prompt(conversation))

    def is_renderers(self, conversation: Conversation) -> bool:
        """Return whether the prompt is identical to a full rendering of the messages."""
        return self.prompt(conversation) == self.renderer.full(conversation.messages)

    def take(self, conversation: Conversation, action: list[int], cut: bool = False) -> Reply:
        self.actions += 1
        prompt = self.prompt(conversation)
        reply, _ = read_action(
            action,
            self.renderer,
            ChatRequest("policy", []),
            truncated=cut,
            call_ids=f"call-{self.actions}",
            prompt_tokens=len(prompt),
        )
        conversation.record(action, reply, self.renderer)
        ended = action + self.renderer.missing_end(action)
        self._known[conversation.lineage] = prompt + ended
        return reply

    def say(self, conversation: Conversation, text: str) -> Reply:
        return self.take(conversation, self.renderer.encode(text) + self.end)

    def turn(
        self, messages: Messages, text: str | list[int], *, cut: bool = False, **options: Any
    ) -> Conversation:
        """Make a request and append its reply to the messages, without thoughts.

        Then append the results of the reply's tool calls or, if it has none, a question.
        """
        conversation = self.ask(messages, **options)
        ids = text if isinstance(text, list) else self.renderer.encode(text)
        reply = self.take(conversation, ids if cut else ids + self.end, cut)
        echo = completion(reply, id="", model="").choices[0].message.model_dump(exclude_none=True)
        echo.pop("reasoning_content", None)
        messages.append({"content": None, **echo})
        for tool_call in reply.tool_calls:
            messages.append({"role": "tool", "tool_call_id": tool_call.id, "content": "ok"})
        messages += [] if reply.tool_calls else [user("And?")]
        return conversation

    def spell(self, text: str) -> list[int]:
        """Return a different tokenisation of the text, with one token per character."""
        return [token for character in text for token in self.renderer.encode(character)]


KEEP_HISTORY = {
    **dict.fromkeys(["qwen3_instruct", "llama3", "deepseekv3"], "{}"),
    "qwen3_5_preserve_thinking": "hm\n</think>\n\n{}",
    "nemotron3_preserve_thinking": "hm\n</think>\n{}",
    "kimi_k26_preserve_thinking": "hm</think>{}",
    "glm5_3_low_reasoning": "hm</think>{}",
    # These renderers keep a reply as sampled only if it contains no thought.
    **dict.fromkeys(["qwen3", "qwen3_8_disable_thinking", "kimi_k25_disable_thinking"], "{}"),
}
"""Renderers that keep the history as sampled, each with the format of its replies."""

BROKEN = 'Let me see.\n<tool_call>\n{"name": \n</tool_call>\nSo.'
REPLIES = {
    "plain": "Fine.",
    "no JSON": '<tool_call>\n{"name": "add", "arguments": {\n</tool_call>',
    "broken between texts": BROKEN,
    "broken beside a good one": f"<tool_call>\n{{bad}}\n</tool_call>\n{ONE_CALL}",
    "another format": "<tool_call>add\n<arg_key>x</arg_key>\n</tool_call>",
    "never closed": 'So\n<tool_call>\n{"name": "add"',
    "wide margins": "\n\n  Fine. \n",
    "only white space": "\n\n",
}
CUT = ["I wonder", "hm</think>Well, ", 'So <tool_call>\n{"name": "a']
"""Truncated replies. Replies of thinking models are mostly truncated inside the thought."""


@pytest.mark.parametrize("name", KEEP_HISTORY)
def test_replies_sent_back_keep_their_tokens(name: str, make_renderer: MakeRenderer) -> None:
    renderer, shape = make_renderer(name), KEEP_HISTORY[name]
    tools = None if name == "llama3" else [ADD]  # its renderer does not support tools
    outcomes = {}
    for kind, text in [*REPLIES.items(), *((text, text) for text in CUT)]:
        talk, messages, cut = Talk(renderer), [user("Hi")], kind in CUT
        if cut and shape == "{}":
            text = text.removeprefix("hm</think>")  # this template drops thoughts
        for _ in range(3):
            conversation = talk.turn(
                messages, text if cut else shape.replace("{}", text), tools=tools, cut=cut
            )
        conversation = talk.ask(messages, tools=tools)
        assert kind != "plain" or (talk.is_renderers(conversation) and not talk.book.drift)
        outcomes[kind] = (talk.book.lineages, talk.book.drift.keys() - {Drift.RETOKENISED})
    assert outcomes == dict.fromkeys(outcomes, (1, set()))


# -- sampled tokens --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["qwen3_instruct", "qwen3", "deepseekv4_1_disable_thinking", "nemotron3_preserve_thinking"],
)
def test_a_non_canonical_tokenisation_is_counted_once(
    name: str, make_renderer: MakeRenderer
) -> None:
    reply = "hm\n</think>\nhello" if name.startswith("nemotron") else "hello"
    talk, messages = Talk(make_renderer(name)), [user("Say hello")]
    odd = [id for part in reply.split("</think>") for id in [-1, *talk.spell(part)]][1:]
    mark = talk.renderer.encode("</think>")
    talk.turn(messages, [token for id in odd for token in ([id] if id >= 0 else mark)])
    for _ in range(3):
        talk.turn(messages, reply)
    assert talk.met == (1, {Drift.RETOKENISED: 1})


@pytest.mark.parametrize(
    ("name", "text"), [("qwen3_5", "hello"), ("deepseekv3_thinking", "</think>hello")]
)
def test_a_thought_that_the_template_hides_counts_as_retokenised(
    name: str, text: str, make_renderer: MakeRenderer
) -> None:
    talk, messages, counted = Talk(make_renderer(name)), [user("one?")], list[int]()
    for _ in range(3):
        talk.turn(messages, text)
        counted.append(talk.book.drift[Drift.RETOKENISED])
    assert (counted, talk.book.lineages) == ([0, 1, 2], 1)


def test_messages_injected_after_non_canonical_tokens_are_not_drift(
    make_renderer: MakeRenderer,
) -> None:
    talk = Talk(make_renderer("qwen3"))
    talk.take(talk.ask([user("Hi")]), talk.spell("Hello") + talk.end)
    conversation = talk.ask([user("Hi"), assistant("Hello"), user("Bye")])
    prompt = talk.prompt(conversation)
    talk.book.inject(conversation, [HURRY], talk.renderer)
    assert "Hurry!" in talk.read(conversation)
    shared = len(prompt) - len(talk.renderer.encode("<|im_start|>assistant\n"))
    assert talk.prompt(conversation)[:shared] == prompt[:shared]
    assert talk.met == (1, {Drift.RETOKENISED: 1})


def test_injected_messages_precede_the_reply_and_stay_in_the_history(family: Renderer) -> None:
    talk = Talk(family)
    conversation = talk.ask([user("Hi")])
    talk.book.inject(conversation, [HURRY], talk.renderer)
    assert talk.is_renderers(conversation)
    talk.say(conversation, "Fine.")
    after = talk.ask([user("Hi"), assistant("Fine."), user("Bye")])
    assert after is conversation
    assert talk.read(after).count("Hurry!") == 1


# -- continuing a conversation ---------------------------------------------------------------------


class Step(NamedTuple):
    lineage: int
    messages: Messages
    reply: str
    tools: list[Any] | None
    drift: Drift | None
    is_handed: bool


def on(
    lineage: int,
    *said: str | dict[str, Any],
    tools: list[Any] | None = None,
    drift: Drift | None = None,
    is_handed: bool = False,
) -> Step:
    """Build a step from alternating user and assistant texts. The last text is the policy's."""
    messages: Messages = []
    for item in said[:-1]:
        last = messages[-1]["role"] if messages else "system"
        text = user if last in ("system", "assistant") else assistant
        messages.append(text(item) if isinstance(item, str) else item)
    return Step(lineage, messages, str(said[-1]), tools, drift, is_handed)


BRIEF, WRITER, CRITIC = system("Be brief."), system("You write."), system("You criticise.")
TRIAGE, REFUNDS = [tool("transfer_to_refunds")], [tool("refund"), tool("transfer_to_triage")]
BEGUN = [on(0, BRIEF, "Hi", "Fine."), on(0, BRIEF, "Hi", "Fine.", "And you?", "Fine too.")]

SCENES: dict[str, list[Step]] = {
    "the same request again is a new sample": [on(0, "Hi", "Fine."), on(1, "Hi", "So so.")],
    "another question after the same examples": [
        on(0, "1+1", "2", "0+1", "1"),
        on(1, "1+1", "2", "1+1", "2"),
        on(2, "1+1", "2", "2+1", "3"),
    ],
    "white space of others is kept to the letter": [
        on(0, "1+1", "2 ", "Hi", "Fine."),
        on(1, "1+1", "2", "Hi", "Fine.", "Bye", "Bye.", drift=Drift.HISTORY),
    ],
    "white space inside of a reply is the policy's": [
        on(0, "Hi", "Two words"),
        on(1, "Hi", "Two  words", "Bye", "Bye.", drift=Drift.HISTORY),
    ],
    "other words, and one lineage again after them": [
        *BEGUN,
        on(1, BRIEF, "Hi", "Bad.", "And you?", "Fine too.", "Bye", "Bye.", drift=Drift.HISTORY),
        on(1, BRIEF, "Hi", "Bad.", "And you?", "Fine too.", "Bye", "Bye.", "Oh", "So long."),
    ],
    "no beginning":
        [*BEGUN, on(1, BRIEF, "And you?", "Fine too.", "Bye", "Bye.", drift=Drift.HISTORY)],
    "a summary":
        [*BEGUN, on(1, BRIEF, "Hi", user("Summary."), user("Bye"), "Bye.", drift=Drift.HISTORY)],
    "tools that come and go make a lineage each": [
        on(0, "Hi", "1", tools=[ADD]),
        on(1, "Hi", "1", "more", "2", drift=Drift.TOOLS),
        on(0, "Hi", "1", "more", "2", "more", "3", tools=[ADD], drift=Drift.TOOLS),
        on(1, "Hi", "1", "more", "2", "more", "3", "more", "4", drift=Drift.TOOLS),
    ],
    "agents without system prompts are known by their tools": [
        on(0, "My money!", "To refunds.", tools=TRIAGE),
        on(1, "My money!", "To refunds.", "So?", "To triage.", tools=REFUNDS, is_handed=True),
        on(0, "My money!", "To refunds.", "So?", "To triage.", "So?", "Paid.", tools=TRIAGE),
    ],
    "agents without tools are known by their system prompts": [
        on(0, WRITER, "A poem.", "Roses."),
        on(1, CRITIC, "A poem.", "Roses.", "Well?", "Bad.", is_handed=True),
        on(0, WRITER, "A poem.", "Roses.", assistant("Bad."), "Again.", "Violets."),
    ],
    "a sub-agent is known by its first message, and its reply is no drift": [
        on(0, "Plan.", "I ask others."),
        on(1, "Find it.", "Found."),
        on(0, "Plan.", "I ask others.", assistant("Found."), "And?", "Done."),
    ],
    "an agent rewrites its own past after a handoff": [
        on(0, WRITER, "A poem.", "Roses."),
        on(1, CRITIC, "A poem.", "Roses.", "Well?", "Bad.", is_handed=True),
        on(2, CRITIC, "Summary.", "Roses.", "Well?", "Bad.", "So?", "Bad.", drift=Drift.HISTORY),
    ],
    "a system prompt that changes every turn shows as handoffs: the two look the same": [
        on(0, system("It is 12:00."), "Hi", "0"),
        on(1, system("It is 12:01."), "Hi", "0", "And now?", "1", is_handed=True),
        on(2, system("It is 12:02."), "Hi", "0", "And now?", "1", "Now?", "2", is_handed=True),
    ],
}  # fmt: skip


@pytest.mark.parametrize("scene", SCENES)
def test_a_request_continues_the_conversation_it_contains(scene: str) -> None:
    talk, handoffs = Talk(), 0
    for number, step in enumerate(SCENES[scene]):
        conversation = talk.ask(step.messages, tools=step.tools)
        latest, handoffs = talk.book.latest_drift, handoffs + step.is_handed
        drift = None if latest is None else latest.cause
        expected = (step.lineage, step.drift, handoffs)
        assert (conversation.lineage, drift, talk.book.handoffs) == expected, f"step {number}"
        assert talk.is_renderers(conversation), f"step {number}"
        in_prompt, requested = (
            [message["content"] for message in messages if message["role"] != "system"]
            for messages in (conversation.messages, step.messages)
        )
        assert in_prompt == requested, f"step {number}"
        talk.say(conversation, step.reply)


def test_a_message_changed_in_place_is_detected() -> None:
    fine = {"role": "assistant", "content": "Fine.", "reasoning_content": "hm"}
    sdk_message = ChatCompletionMessage.model_validate
    extras = {"reasoning_content": "something else"}
    changes: list[tuple[Any, Callable[[Any], object], bool]] = [
        (dict(fine), lambda message: message.update(content="Awful."), True),
        (sdk_message(fine), lambda message: setattr(message, "content", "Awful."), True),
        (sdk_message(fine), lambda message: message.model_extra.update(extras), False),
    ]
    for message, change, is_shown in changes:
        talk, messages = Talk(), [user("Hi"), message, user("Bye")]
        talk.say(talk.ask(messages[:1]), "<think>hm</think>Fine.")
        talk.say(talk.ask(messages), "See you.")
        before = talk.book.lineages
        change(message)
        prompt = talk.read(talk.ask([*messages, assistant("See you."), user("Really")]))
        assert (talk.book.lineages - before, "Awful." in prompt) == (1, is_shown)


def test_equal_conversations_of_two_callers_stay_separate() -> None:
    talk = Talk()
    first, second = talk.ask([user("Hi")], "one"), talk.ask([user("Hi")], "two")
    talk.take(first, talk.spell("Fine.") + talk.end)
    talk.say(second, "Fine.")
    after = [user("Hi"), assistant("Fine."), user("Bye")]
    assert talk.ask(after, "two") is second
    assert talk.ask(after, "one") is first
    assert talk.book.drift[Drift.HISTORY] == 0


# -- drift -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["qwen3_instruct", "qwen3", "qwen3_5", "deepseekv3_thinking", "nemotron3"]
)
@pytest.mark.parametrize("text", ["Hello.", BROKEN])
def test_stripping_a_thought_is_template_drift(
    text: str, name: str, make_renderer: MakeRenderer
) -> None:
    """The instruct renderer claims the extension property, but it strips thinking."""
    talk, messages = Talk(make_renderer(name)), [user("Hi")]
    opened = talk.read(Talk(make_renderer(name)).ask(messages)).rstrip().endswith("<think>")
    start = "" if opened else "<think>\n"
    talk.turn(messages, f"{start}hm\n</think>\n\n{text}")
    assert talk.is_renderers(talk.ask(messages))
    assert talk.met == (2, {Drift.TEMPLATE: 1})


def test_a_conversation_continues_after_template_drift() -> None:
    talk, messages = Talk(), [user("Hi")]
    for text in [*(f"<think>{turn}</think>Hello {turn}." for turn in range(3)), "a", "b", "c"]:
        talk.turn(messages, text)
    assert talk.met == (4, {Drift.TEMPLATE: 3})


def test_replies_keep_thinking_when_history_or_tools_change(make_renderer: MakeRenderer) -> None:
    renderer = make_renderer("glm5_3_low_reasoning")
    talk, messages = Talk(renderer), [user("Hi")]
    talk.turn(messages, "hm</think>Fine.", tools=[ADD])
    assert "<think>hm</think>Fine." in talk.read(talk.ask(messages))
    assert talk.met == (2, {Drift.TOOLS: 1})

    talk, messages = Talk(renderer), [user("Hi")]
    for turn in range(3):
        talk.turn(messages, f"thought {turn}</think>answer {turn}")
    messages[2] = user("another question")
    prompt = talk.read(talk.ask(messages))
    assert [f"thought {turn}" in prompt for turn in range(3)] == [True, False, True]
    assert talk.met == (2, {Drift.HISTORY: 1})  # answer 1 was given to a different question

    talk = Talk(renderer)
    talk.say(talk.ask([user("Is it so?")]), "hm</think>yes")
    by_chance = [user("Is 1 a number?"), assistant("yes"), user("Is a?")]
    assert "hm" not in talk.read(talk.ask(by_chance))


def test_thinking_determines_which_of_two_equal_replies_is_continued(
    make_renderer: MakeRenderer,
) -> None:
    talk = Talk(make_renderer("glm5_3_low_reasoning"))
    for thought in ("one", "two"):
        talk.say(talk.ask([user("Hi")]), f"{thought}</think>Fine.")
    for thought in ("one", "three"):
        reply = {**assistant("Fine."), "reasoning_content": thought}
        after = talk.ask([user("Hi"), reply, user("Bye")], "another")
        assert f"<think>{thought}</think>Fine." in talk.read(after)
    assert talk.book.drift == {Drift.HISTORY: 1}


def test_a_broken_call_stays_in_a_rerendered_history() -> None:
    talk, messages = Talk(), [user("Hi")]
    talk.turn(messages, f"So.\n{REPLIES['no JSON']}", tools=[ADD])
    assert talk.read(talk.ask(messages)).count('{"name": "add", "arguments": {\n') == 1
    assert talk.book.drift == {Drift.TOOLS: 1}


# -- completed arguments ---------------------------------------------------------------------------

SAMPLED: dict[str, Any] = {"path": "a.py", "new": "x = 1  \ny = 2\n", "count": 1}
SAMPLED |= {"at": [{"line": 3}], "limit": "20"}
ADDED = {**SAMPLED, "all": False}


def edit(arguments: Any = SAMPLED) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'edit', 'arguments': arguments})}\n</tool_call>"


def with_arguments(message: dict[str, Any], arguments: Any) -> dict[str, Any]:
    edited = copy.deepcopy(message)
    edited["tool_calls"][0]["function"]["arguments"] = json.dumps(arguments)
    return edited


def edits(talk: Talk, arguments: Any = ADDED) -> Messages:
    """Play a conversation, change the arguments in its reply, and return the messages."""
    messages = [user("Edit!")]
    talk.turn(messages, f"I edit.\n{edit()}", tools=[EDIT])
    messages[1] = with_arguments(messages[1], arguments)
    return messages


COMPLETED: dict[str, Any] = {
    "an argument more": {"replace_all": False, **SAMPLED},
    "one more at depth": {**SAMPLED, "at": [{"line": 3, "column": None}]},
    "tidied lines": {**SAMPLED, "new": "x = 1\ny = 2"},
    "a number read from its text": {**SAMPLED, "limit": 20},
    "another number's spelling": {**SAMPLED, "count": 1.0, "all": True},
}

REWRITTEN: dict[str, Any] = {
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


@pytest.mark.parametrize("kind", [*COMPLETED, *REWRITTEN])
def test_completed_arguments_are_kept_as_sampled_but_rewritten_ones_are_drift(kind: str) -> None:
    talk = Talk(keeps_completed=True)
    messages = edits(talk, {**COMPLETED, **REWRITTEN}[kind])
    after = talk.ask(messages, tools=[EDIT])
    assert talk.is_renderers(after) == (kind in REWRITTEN)
    rewritten = (2, {Drift.HISTORY: 1})
    assert talk.met == (rewritten if kind in REWRITTEN else (1, {Drift.COMPLETED_ARGUMENTS: 1}))


def test_a_completed_call_is_drift_if_anything_else_in_its_message_changes() -> None:
    changes: list[Callable[[dict[str, Any], dict[str, Any]], object]] = [
        lambda message, call: call.update(id="another"),
        lambda message, call: call["function"].update(name="write"),
        lambda message, call: message.update(content="I do it."),
        lambda message, call: message["tool_calls"].append({**call, "id": "call-9"}),
    ]
    for number, change in enumerate(changes):
        talk = Talk(keeps_completed=True)
        messages = edits(talk)
        change(messages[1], messages[1]["tool_calls"][0])
        messages[2]["tool_call_id"] = messages[1]["tool_calls"][0]["id"]
        talk.ask(messages, tools=[EDIT])
        assert talk.met == (2, {Drift.HISTORY: 1}), number


def test_each_completed_call_of_a_long_conversation_counts_once() -> None:
    talk, messages = Talk(keeps_completed=True), [user("Edit!")]
    for turn in range(6):
        talk.turn(messages, edit({"path": f"{turn}.py"}), tools=[EDIT])
        messages[-2] = with_arguments(messages[-2], {"all": False, "path": f"{turn}.py"})
    for _ in range(2):
        talk.turn(messages, "done", tools=[EDIT])
    talk.ask(messages, tools=[EDIT])
    assert talk.met == (1, {Drift.COMPLETED_ARGUMENTS: 6})


def test_a_branch_after_a_completed_call_shares_the_sampled_tokens() -> None:
    talk = Talk(keeps_completed=True)
    messages = edits(talk)
    [first] = talk.book._latest["main"].points
    messages[2:] = [{**messages[2], "content": "no"}]
    for result in ("ok", "no"):
        branch = talk.ask([*messages[:2], {**messages[2], "content": result}], tools=[EDIT])
        shared = flatten(first.log.followed_by([]).chunks)
        assert talk.prompt(branch)[: len(shared)] == shared
        talk.say(branch, "done")
    assert talk.met == (2, {Drift.COMPLETED_ARGUMENTS: 1})


def test_a_completed_call_without_thinking_is_template_drift(make_renderer: MakeRenderer) -> None:
    talk, messages = Talk(make_renderer("qwen3"), keeps_completed=True), [user("Edit!")]
    talk.turn(messages, f"<think>\nhm\n</think>\n\n{edit()}", tools=[EDIT])
    messages[1] = with_arguments(messages[1], ADDED)
    assert talk.is_renderers(talk.ask([*messages, user("And now?")], tools=[EDIT]))
    assert talk.met == (2, {Drift.TEMPLATE: 1})


@pytest.mark.parametrize("name", ["qwen3_instruct", "deepseekv4_1_disable_thinking"])
def test_a_hundred_branches_share_their_tokens(name: str, make_renderer: MakeRenderer) -> None:
    for ends in ([""] * 100, [str(number) for number in range(100)]):
        talk = Talk(make_renderer(name))
        first = talk.ask([user("Hi")])
        beginning = talk.prompt(first) + talk.spell("Fine.") + talk.end
        talk.take(first, talk.spell("Fine.") + talk.end)
        for end in ends:
            branch = talk.ask([user("Hi"), assistant("Fine."), user(f"And you{end}")])
            assert talk.prompt(branch)[: len(beginning)] == beginning
            talk.say(branch, "Fine too.")
        assert talk.met == (100, {Drift.RETOKENISED: 1})


# -- rejected requests -----------------------------------------------------------------------------


def test_rejected_requests_leave_no_trace(make_renderer: MakeRenderer) -> None:
    talk, messages = Talk(make_renderer("qwen3"), max_length=200), [user("Hi")]
    with pytest.raises(openai.BadRequestError, match="prompt is too long.*maximum.*200 tokens"):
        talk.ask([user("word " * 400)])
    assert talk.met == (0, {})
    conversation = talk.turn(messages, "<think>\nhm\n</think>\n\nyes")
    before = (talk.prompt(conversation), [*conversation.messages], [*conversation.agent_view])
    long: Messages = [*messages[:-1], user("long " * 400)]
    for refused in (long, long, [*long, assistant("yes")], [system("You check."), *long]):
        with pytest.raises(openai.BadRequestError) as refusal:
            talk.ask(refused)
        assert refusal.value.code == "context_length_exceeded"
    after = (talk.prompt(conversation), [*conversation.messages], [*conversation.agent_view])
    assert (before, talk.met, talk.book.handoffs) == (after, (1, {}), 0)
    assert talk.ask(messages) is conversation
    assert talk.met == (2, {Drift.TEMPLATE: 1})


class Unfriendly:
    """An object that raises on every use and cannot be serialised to JSON."""

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


UNREADABLE: list[Any] = [
    {**user("Hi"), "lock": threading.Lock()},
    {**user("Hi"), "name": Unfriendly()},
    {**assistant("Hi"), "tool_calls": Unfriendly()},
    {"role": "tool", "content": "Hi", "tool_call_id": Unfriendly()},
    Unfriendly(),
]


@pytest.mark.parametrize("message", UNREADABLE, ids=map(str, range(5)))
def test_a_message_that_raises_when_read_gets_a_400(message: Any) -> None:
    talk, messages = Talk(), [user("Hi")]
    with pytest.raises(openai.BadRequestError, match=r"^messages(\[0\])? could not be read; send"):
        talk.ask([message])
    talk.turn(messages, "Fine.")
    with pytest.raises(openai.BadRequestError, match=r"messages(\[2\])? could not be read; send"):
        talk.ask([*messages[:2], message])
    talk.ask(messages)
    assert talk.met == (1, {})


def test_a_message_that_cannot_be_compared_is_accepted_but_such_a_tool_gets_a_400(
    make_renderer: MakeRenderer,
) -> None:
    talk = Talk()
    messages: Messages = [{**user("Hi"), "embedding": Unfriendly()}]
    talk.turn(messages, "Fine.", tools=[ADD])
    talk.ask(messages, tools=[ADD])
    assert talk.met == (1, {})
    for _ in range(2):
        talk.ask(messages, tools=[{**ADD, "strict": Unfriendly()}])
    for unreadable in ({**ADD, "lock": threading.Lock()}, {**ADD, "function": Unfriendly()}):
        with pytest.raises(openai.BadRequestError, match="tools"):
            Talk().ask([user("Hi")], tools=[unreadable])
    with pytest.raises(openai.BadRequestError, match="cannot render.*does not support tools"):
        Talk(make_renderer("role_colon")).ask([user("Hi")], tools=[ADD])
    with pytest.raises(openai.BadRequestError, match="half of a surrogate pair.*Replace it"):
        Talk().ask([user("Well \ud83d")])


def test_an_image_object_is_recognised_by_its_pixels() -> None:
    tokenizer = copy.deepcopy(default_renderer().tokenizer)
    names = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": names})
    talk = Talk(Qwen3VLRenderer(tokenizer, Qwen2VLImageProcessorPil()))

    def question(colour: str) -> dict[str, Any]:
        image = Image.new("RGB", (64, 64), colour)
        return {"role": "user", "content": [{"type": "image", "image": image}]}

    talk.say(talk.ask([question("red")]), "A square.")
    for colour, lineage in (("blue", 1), ("red", 0)):
        after = talk.ask([question(colour), assistant("A square."), user("Which?")])
        assert after.lineage == lineage


def test_the_number_of_comparisons_does_not_grow_with_the_number_of_conversations(
    monkeypatch: Patch,
) -> None:
    compared: list[Any] = []

    def counted(method: Callable[..., bool]) -> Callable[..., bool]:
        def count(*arguments: Any) -> bool:
            compared.append(arguments)
            return method(*arguments)

        return count

    for kind_of, name in ((Conversation, "is_continued_by"), (Reply, "is_sent_back_as")):
        monkeypatch.setattr(kind_of, name, counted(getattr(kind_of, name)))
    counts = []
    for others in (50, 400):
        talk = Talk()
        for number in range(others):
            talk.say(talk.ask([user("Hi"), user(f"Question {number}")]), "Fine.")
        for request in (
            [user("Hi"), user("Another")],
            [user("Hi"), user("Question 0"), assistant("Fine."), user("And?")],
            [user("Hi"), user("Question 7"), assistant("Fine."), user("And?")],
        ):
            compared.clear()
            talk.ask(request)
            counts.append(len(compared))
    assert counts[:3] == counts[3:]


def test_a_request_is_only_compared_with_the_latest_of_equal_replies(monkeypatch: Patch) -> None:
    talk, compared, is_within = Talk(), list[Point](), Point.is_within
    for _ in range(3 * RECENT):
        talk.say(talk.ask([HURRY]), "Yes.")

    def noted(point: Point, entries: Sequence[Entry]) -> bool:
        compared.append(point)
        return is_within(point, entries)

    monkeypatch.setattr(Point, "is_within", noted)
    monkeypatch.setattr(talk.book, "_recent", {})
    prompt = talk.prompt(talk.ask([HURRY, assistant("Yes."), HURRY], caller="another"))
    assert len(compared) == RECENT
    assert talk.renderer.decode(prompt).count("Yes.") == 1
