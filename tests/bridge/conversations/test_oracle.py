"""Plays random episodes with every Cookbook renderer and checks prompts against its output.

A random agent continues, retries and branches conversations, strips replies, sends them back in
other formats, drops its tools, and edits messages. After each of its calls:

1. Except where tokens are kept as sampled, the prompt has the text that the renderer produces for
   the conversation with the policy's original replies. The prompt may contain replies in the
   agent's words only if the drift is ``history`` or a different system prompt causes a handoff.
2. Without drift or a handoff, the prompt starts with the exact tokens of the latest turn.
3. An agent that changed nothing never causes ``tools`` or ``history`` drift.
"""

import inspect
import random
import re
from dataclasses import dataclass, field, replace
from typing import Any

import openai
import pytest
import tinker_cookbook.renderers as cookbook
from openai.types.chat import ChatCompletionMessage
from tests.kit import assistant, system, tool, user
from tests.kit.renderers import MakeRenderer
from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers.base import Message, TextPart, ThinkingPart, ToolCall

from evert.bridge.chat.messages import read_message, read_tools
from evert.bridge.chat.reply import Reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients.dialects.chat_completions import completion
from evert.bridge.conversations.conversation import Conversation
from evert.bridge.conversations.drift import Drift
from evert.bridge.conversations.matching import ConversationBook
from evert.bridge.tokens.actions import read_action
from evert.bridge.tokens.renderer import PromptRenderer
from evert.bridge.tokens.token_log import FlatPrompt, flatten

NAMES = re.findall(r'name == "([a-z0-9_]+)"', inspect.getsource(cookbook.get_renderer))
NOT_HERE = ("tml_v0", "kimi_k31_pro", "qwen3_vl")
"""Prefixes of renderers that need their own tokenizer or an image processor."""

WORDS = ("so", "it", "is", "said,", "red", "or", "blue", "both")

QUERY = {"type": "object", "properties": {"q": {"type": "string"}}}
TOOLS = [
    tool(name, description=f"The tool {name}.", parameters=QUERY) for name in ("search", "open")
]


@dataclass
class Said:
    """A reply, and the conversation that led to it."""

    reply: Reply
    before: list[Any]
    tools: list[Any] | None
    tokens: FlatPrompt
    is_own: bool = True


@dataclass
class Thread:
    """The agent's view of a conversation. ``said[i]`` is the policy's reply for ``messages[i]``."""

    messages: list[Any]
    said: list[Said | None]
    tools: list[Any] | None = None
    is_edited: bool = False

    def copy(self, count: int) -> "Thread":
        return Thread(self.messages[:count], self.said[:count], self.tools)

    def add(self, message: Any, said: Said | None = None) -> None:
        self.messages.append(message)
        self.said.append(said)

    def is_as_said(self) -> bool:
        """Whether every reply still has the history and tools that it was sampled with."""
        return not self.is_edited and all(
            said is None
            or (said.before == plain(self.messages[:index]) and said.tools == self.tools)
            for index, said in enumerate(self.said)
        )

    def forget_all_but(self, messages: list[Message]) -> None:
        """Mark the replies that are not in the conversation's messages as the agent's own."""
        for index in self.replies():
            said = self.said[index]
            if said is not None and not any(said.reply.parsed == parsed for parsed in messages):
                self.said[index] = replace(said, is_own=False)

    def replies(self) -> list[int]:
        return [index for index, said in enumerate(self.said) if said is not None]


def plain(messages: list[Any]) -> list[Any]:
    """Reduce messages to comparable tuples, ignoring surrounding whitespace."""
    fields = [read_message(message, 0, {}) for message in messages]
    return [
        (f["role"], cookbook.get_text_content(f).strip(), len(f.get("tool_calls", ())))
        for f in fields
    ]


@dataclass
class Episode:
    """A random agent and a random policy that share a ``ConversationBook``."""

    renderer: PromptRenderer
    dice: random.Random
    threads: list[Thread] = field(default_factory=list)
    observed: int = 0
    count: int = 0

    def __post_init__(self) -> None:
        self.book = ConversationBook(self.renderer)

    def text(self) -> str:
        self.count += 1
        words = self.dice.choices(WORDS, k=3)
        return f"{' '.join(words)} {self.count}"

    # -- the agent ---------------------------------------------------------------------------

    def start(self) -> Thread:
        thread = Thread([], [], self.dice.choice([None, None, TOOLS]))
        if self.dice.random() < 0.5:
            thread.add(system("Be brief."))
        thread.add(user(self.text()))
        return thread

    def go_on(self, thread: Thread) -> Thread:
        """Append the agent's next messages: tool results, or a question if there are no calls."""
        last = thread.said[-1]
        calls = last.reply.tool_calls if last is not None else ()
        for call in calls:
            thread.add({"role": "tool", "tool_call_id": call.id, "content": self.text()})
        if not calls:
            if self.dice.random() < 0.1:
                thread.add(assistant(self.text()))
            thread.add(user(self.text()))
        return thread

    def next_request(self) -> Thread:
        chance = self.dice.random()
        if not self.threads or chance < 0.1:
            return self.start()
        thread = self.dice.choice(self.threads[-4:])
        if chance < 0.6:
            return self.go_on(thread.copy(len(thread.messages)))
        back = self.dice.choice(thread.replies())
        if chance < 0.65:
            return thread.copy(back)
        branch = thread.copy(back + 1)
        if chance < 0.85:
            return self.go_on(branch)
        if chance < 0.92:
            branch.tools = None if branch.tools else TOOLS[: self.dice.choice([1, 2])]
            return self.go_on(branch)
        return self.go_on(self.edited(branch))

    def edited(self, thread: Thread) -> Thread:
        index = self.dice.randrange(len(thread.messages))
        role = plain(thread.messages)[index][0]
        thread.messages[index] = {"role": role, "content": self.text()}
        if role == "tool":
            thread.messages[index]["tool_call_id"] = "call-of-old"
        thread.said[index] = None
        thread.is_edited = True
        return thread

    def sent_back(self, reply: Reply) -> Any:
        message = completion(reply, id="", model="").choices[0].message
        fields = message.model_dump(exclude_none=True)
        if self.dice.random() < 0.5:
            fields.pop("reasoning_content", None)
        if isinstance(fields.get("content"), str) and self.dice.random() < 0.3:
            fields["content"] = fields["content"].strip()
        return fields if self.dice.random() < 0.7 else ChatCompletionMessage.model_validate(fields)

    # -- the policy --------------------------------------------------------------------------

    def action(self, request: Thread) -> tuple[list[int], bool]:
        margins = self.dice.choice([("", ""), ("", ""), (" ", ""), ("", "\n")])
        text = self.text().join(margins)
        parts: list[Any] = [TextPart(type="text", text=text)]
        if self.dice.random() < 0.5:
            parts.insert(0, ThinkingPart(type="thinking", thinking=self.text()))
        message = Message(role="assistant", content=parts if len(parts) > 1 else text)
        if request.tools and self.dice.random() < 0.5:
            function = ToolCall.FunctionBody(name="search", arguments='{"q": "x"}')
            call = ToolCall(id=f"functions.search:{self.count}", function=function)
            message["tool_calls"] = [call]
        action = self.spelled(message) if self.dice.random() < 0.8 else None
        if action is None:  # one token per character
            [stop, *_] = self.renderer.stop
            odd = [t for character in text for t in self.renderer.encode(character)]
            action = odd + ([stop] if isinstance(stop, int) else self.renderer.encode(stop))
        if self.dice.random() < 0.1:
            return action[: max(1, len(action) // 2)], True
        return action, False

    def spelled(self, message: Message) -> list[int] | None:
        """Return the renderer's tokens for a reply, or None if it cannot render the reply."""
        question = [Message(role="user", content="q")]
        raw = self.renderer.renderer
        try:
            prompt = raw.build_generation_prompt(question).to_ints()
            tokens = raw.build_supervised_example([*question, message])[0].to_ints()
        except (RendererError, AssertionError, ValueError):
            return None
        action = tokens[len(prompt) :]
        ends = [index for index, token in enumerate(action) if token in self.renderer.stop]
        return action[: ends[0] + 1] if tokens[: len(prompt)] == prompt and ends else None

    # -- one call ----------------------------------------------------------------------------

    def play(self) -> None:
        thread = self.next_request()
        request = ChatRequest("policy", list(thread.messages), thread.tools)
        caller, handoffs = self.dice.choice(["one", "two"]), self.book.handoffs
        try:
            conversation = self.book.observe(request, caller, self.renderer)
        except openai.BadRequestError:
            return
        self.observed += 1
        prompt = flatten(conversation.prompt().chunks)
        self.check(thread, conversation, prompt, self.book.handoffs > handoffs)
        thread.is_edited = False  # the edit is part of the history from now on
        action, is_cut = self.action(thread)
        reply, _ = read_action(
            action,
            self.renderer,
            request,
            truncated=is_cut,
            call_ids=f"call-{self.observed}",
            prompt_tokens=len(prompt),
        )
        conversation.record(action, reply, self.renderer)
        tokens = [*prompt, *action, *self.renderer.missing_end(action)]
        said = Said(reply, plain(thread.messages), thread.tools, tokens)
        thread.add(self.sent_back(reply), said)
        self.threads.append(thread)

    def check(
        self, thread: Thread, conversation: Conversation, prompt: FlatPrompt, is_handed: bool
    ) -> None:
        latest = self.book.latest_drift
        drift = None if latest is None else latest.cause
        if drift is Drift.HISTORY or is_handed:
            assert not thread.is_as_said()
            thread.forget_all_but(conversation.messages)
        prefix: FlatPrompt = []
        for said in thread.said:
            if said is not None and prompt[: len(said.tokens)] == said.tokens:
                prefix = said.tokens
        expected = self.read(self.renderer.full(self.own_messages(thread)))
        if prefix:
            assert expected.endswith(self.read(prompt[len(prefix) :]))
        else:
            assert self.read(prompt) == expected
        if drift is Drift.TOOLS:
            assert not thread.is_as_said()
        if drift in (None, Drift.RETOKENISED) and thread.replies() and not is_handed:
            said = thread.said[thread.replies()[-1]]
            assert said is not None
            assert prefix == said.tokens

    def read(self, prompt: FlatPrompt) -> str:
        return self.renderer.decode([token for token in prompt if isinstance(token, int)])

    def own_messages(self, thread: Thread) -> list[Message]:
        """Return the messages for the renderer, with the policy's original replies."""
        names: dict[str, str] = {}
        messages: list[Message] = []
        for index, (sent, said) in enumerate(zip(thread.messages, thread.said, strict=True)):
            message = read_message(sent, index, names)
            names |= {call.id or "": call.function.name for call in message.get("tool_calls", ())}
            messages.append(said.reply.parsed if said is not None and said.is_own else message)
        if thread.tools:
            system = ""
            if messages[0]["role"] == "system":
                system = str(messages.pop(0)["content"])
            messages[:0] = self.renderer.tool_prefix(read_tools(thread.tools), system)
        return messages


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith(NOT_HERE)])
def test_prompts_match_the_renderer(name: str, seed: int, make_renderer: MakeRenderer) -> None:
    episode = Episode(PromptRenderer(make_renderer(name)), random.Random(f"{name} {seed}"))
    for _ in range(30):
        episode.play()
    assert episode.observed >= 8
