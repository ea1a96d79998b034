"""Control tokens that the policy quotes remain text when the reply is sent back.

The policy spells out a control token's text with ordinary tokens, in its text, its thinking, or the
arguments of a call. The agent sends the reply back in different formats, continues, branches, and
edits the history, so that everything is rendered again. Each prompt must contain the same control
tokens as if the policy had written harmless letters instead.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessage
from tests.bridge.tokens.flagged_tokenizers import CLASSES, make_renderer
from tests.bridge.tokens.injection_matrix import Matrix, innocent
from tests.bridge.tokens.request_shapes import (
    PLAIN_SCHEMA,
    filled,
    prompt_renderer,
    text_tokens,
    tool,
)
from tests.kit import Patch
from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers.base import Message, TextPart, ThinkingPart, ToolCall

from evert.bridge.chat.reply import Reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients.dialects.anthropic_messages import AnthropicMessages
from evert.bridge.clients.dialects.chat_completions import completion
from evert.bridge.conversations.matching import ConversationBook
from evert.bridge.tokens.actions import read_action
from evert.bridge.tokens.renderer import PromptRenderer

pytestmark = [
    pytest.mark.filterwarnings("ignore:Tool message missing"),
    pytest.mark.filterwarnings("ignore:use_system_prompt=True"),
]

QUOTE = "quotehere"
"""Placeholder in a reply for the text that the policy quotes."""

TOOLS = [filled(tool(PLAIN_SCHEMA), {})]


def call(arguments: Any) -> list[ToolCall]:
    function = ToolCall.FunctionBody(name="tool", arguments=json.dumps(arguments))
    return [ToolCall(id="functions.tool:0", function=function)]


def thinking(thought: str, *texts: str) -> list[Any]:
    texts_after = [TextPart(type="text", text=text) for text in texts]
    return [ThinkingPart(type="thinking", thinking=thought), *texts_after]


REPLIES: dict[str, Message] = {
    "text": Message(role="assistant", content=f"so {QUOTE} so"),
    "all of a text": Message(role="assistant", content=QUOTE),
    "thinking": Message(role="assistant", content=thinking(f"so {QUOTE} so", "Fine.")),
    "after thinking": Message(role="assistant", content=thinking("Hm.", f"so {QUOTE}")),
    "arguments": Message(role="assistant", content="", tool_calls=call({"x": f"so {QUOTE} so"})),
    "all of an argument": Message(role="assistant", content="", tool_calls=call({"x": QUOTE})),
    "a key": Message(role="assistant", content="", tool_calls=call({QUOTE: 1})),
    "text and call": Message(
        role="assistant", content=thinking("Hm.", f"so {QUOTE}"), tool_calls=call({"x": "y"})
    ),
}


def action_of(name: str, message: Message, quote: str) -> list[int] | None:
    """Return a reply's tokens, with the quote spelled letter by letter.

    Returns None if the renderer cannot render the reply.
    """
    raw, renderer = make_renderer(name), prompt_renderer(name)
    question = [Message(role="user", content="q")]
    try:
        prompt = raw.build_generation_prompt(question).to_ints()
        tokens = raw.build_supervised_example([*question, message])[0].to_ints()
    except (RendererError, AssertionError, ValueError, NotImplementedError):
        return None
    action = tokens[len(prompt) :]
    ends = [index for index, token in enumerate(action) if token in renderer.end_tokens]
    if tokens[: len(prompt)] != prompt or not ends:
        return None
    before, quote_found, after = renderer.decode(action[: ends[0] + 1]).partition(QUOTE)
    spelled = [token for letter in quote for token in renderer.encode(letter)]
    return [*renderer.encode(before), *spelled, *renderer.encode(after)] if quote_found else None


def message_of(reply: Reply) -> dict[str, Any]:
    message = completion(reply, id="", model="").choices[0].message
    return message.model_dump(exclude_none=True)


def as_object(reply: Reply) -> Any:
    return ChatCompletionMessage(**message_of(reply))


def without_thinking(reply: Reply) -> Any:
    return {k: v for k, v in message_of(reply).items() if k != "reasoning_content"}


def dumped_again(reply: Reply) -> Any:
    message = message_of(reply)
    for tool_call in message.get("tool_calls", ()):
        arguments = json.loads(tool_call["function"]["arguments"])
        tool_call["function"]["arguments"] = json.dumps(arguments, indent=1, ensure_ascii=False)
    return message


def by_anthropic(reply: Reply) -> Any:
    dialect = AnthropicMessages("policy")
    request = ChatRequest("policy", [{"role": "user", "content": "q"}])
    content = dialect.write(reply, request, "1", {})["content"]
    body = {"max_tokens": 9, "messages": [{"role": "assistant", "content": content}]}
    return dialect.read(body).messages[0]


def as_a_users_text(reply: Reply) -> Any:
    return {"role": "user", "content": f"You said: {reply.text}{reply.reasoning or ''}"}


ECHOES: dict[str, Callable[[Reply], Any]] = {
    "dict": message_of,
    "object": as_object,
    "without thinking": without_thinking,
    "dumped again": dumped_again,
    "anthropic": by_anthropic,
    "quoted by the user": as_a_users_text,
}


@dataclass
class Talk:
    """An episode with a reply by the policy and the agent's subsequent requests."""

    name: str
    renderer: PromptRenderer = field(init=False)

    def __post_init__(self) -> None:
        self.renderer = prompt_renderer(self.name)
        self.book = ConversationBook(self.renderer)
        self.reply: Reply | None = None

    def ask(self, messages: list[Any], tools: Any, action: list[int]) -> list[int] | None:
        """Make a request and answer it with ``action``. Returns the prompt, or None on a 400."""
        request = ChatRequest("policy", list(messages), tools)
        try:
            conversation = self.book.observe(request, "", self.renderer)
        except openai.BadRequestError:
            return None
        prompt = text_tokens(conversation.prompt())
        self.reply, _ = read_action(
            action, self.renderer, request, truncated=False, call_ids="c", prompt_tokens=len(prompt)
        )
        conversation.record(action, self.reply, self.renderer)
        return prompt

    def play(self, action: list[int], fine: list[int], echo: str) -> Iterator[list[int] | None]:
        """Yield the prompts as an agent continues, branches twice, edits, and drops its tools."""
        tools = None if self.name == "llama3" else TOOLS
        opening = [{"role": "user", "content": "Quote it."}]
        self.ask(opening, tools, action)
        if self.reply is None:
            return
        history = [*opening, ECHOES[echo](self.reply)]
        if echo != "quoted by the user":
            history += [
                {"role": "tool", "tool_call_id": tool_call.id, "content": "ok"}
                for tool_call in self.reply.tool_calls
            ]
        more = [*history, {"role": "user", "content": "And?"}]
        yield self.ask(more, tools, fine)
        longer = [*more, {"role": "assistant", "content": "Fine."}]
        yield self.ask([*longer, {"role": "user", "content": "So?"}], tools, fine)
        for number in (1, 2):
            yield self.ask([*history, {"role": "user", "content": f"Or {number}?"}], tools, fine)
        yield self.ask([{"role": "user", "content": "Edited."}, *more[1:]], tools, fine)
        yield self.ask(more, None, fine)


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "role_colon"])
def test_control_tokens_quoted_by_the_policy_remain_text_when_sent_back(name: str) -> None:
    matrix, checked = Matrix(name), 0
    renderer = prompt_renderer(name)
    fine = renderer.encode("Fine.") + renderer.end_tokens[:1]
    for where, reply in REPLIES.items():
        for number, literal in enumerate(matrix.literals):
            echo = [*ECHOES][(number + len(where)) % len(ECHOES)]
            action = action_of(name, reply, literal)
            harmless = action_of(name, reply, innocent(literal))
            if action is None or harmless is None:
                continue
            prompts = Talk(name).play(action, fine, echo)
            expected = Talk(name).play(harmless, fine, echo)
            for step, (prompt, letters) in enumerate(zip(prompts, expected, strict=True)):
                if letters is None:
                    continue
                checked += 1
                place = f"{name} | {where} | {echo} | step {step} | {literal}"
                if prompt is None:
                    matrix.findings.append(f"{place} | refused")
                else:  # fewer control tokens are fine: the Cookbook may parse quoted markup
                    more = matrix.control(prompt) - matrix.control(letters)
                    matrix.compare(place, [*letters, *more.elements()], matrix.control(letters))
    matrix.report()
    assert checked >= 100


def test_the_matrix_has_findings_if_quotes_are_not_escaped(monkeypatch: Patch) -> None:
    monkeypatch.setattr(PromptRenderer, "escape", lambda self, message: message)
    with pytest.raises(pytest.fail.Exception, match=r"[1-9][0-9]+ findings"):
        test_control_tokens_quoted_by_the_policy_remain_text_when_sent_back("deepseekv3")
