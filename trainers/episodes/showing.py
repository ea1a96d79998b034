"""``PrintingPolicy``: prints an episode to the terminal while it is played, turn by turn."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import tinker
from rich.console import Console
from rich.text import Text
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs
from tinker_cookbook.renderers.base import Message
from tinker_cookbook.rl.rollout_runner import RolloutHooks, RolloutState
from tinker_cookbook.rl.types import Trajectory, Transition

from evert.bridge.chat.messages import read_message
from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.env.seats import SeatEnv
from evert.bridge.records.explain import block, calling, earned, explain, harmless
from evert.bridge.tokens.actions import read_action
from evert.bridge.tokens.renderer import prompt_renderer


@dataclass(eq=False)
class PrintingPolicy(TokenCompleter, RolloutHooks):
    """Prints each request's new messages, the reply, and the turn's reward and metrics.

    It wraps another policy, and also implements the hooks for that policy's rollout.
    """

    policy: TokenCompleter
    env: ChatAgentEnv
    console: Console
    turn: asyncio.Lock
    """Held while a turn is printed, so that the output of concurrent calls isn't mixed."""
    transitions: Sequence[Transition] = field(default=(), init=False)
    """The transitions so far."""
    _ended: int = field(default=0, init=False)  # number of turns whose rewards have been printed
    _prefixes: set[int] = field(default_factory=set, init=False)  # hashes of printed messages
    _tools: list[str] = field(default_factory=list, init=False)

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        """Print the request and the wrapped policy's reply."""
        async with self.turn:
            request = self.env.request_of(model_input)
            assert request is not None  # policies are only called while a call is pending
            messages = [read_message(m, n, {}) for n, m in enumerate(request.messages)]
            end = self._show(messages)
            tools = [_signature(tool["function"]) for tool in request.tools or ()]
            if tools != self._tools:
                self._print("tools", "\n".join(tools), "magenta")
                self._tools = tools
            action = await self.policy(model_input, stop, max_tokens=max_tokens)
            reply, _ = read_action(
                [*action.tokens],
                prompt_renderer(self.env.renderer),
                request,
                truncated=action.stop_reason == "length",
                call_ids="shown",
                prompt_tokens=0,
            )
            self._show([read_message(reply.as_message(), 0, {})], end, self._title)
            return action

    @property
    def _title(self) -> str:
        """The seat's name, or "reply"."""
        return self.env.seat if isinstance(self.env, SeatEnv) else "reply"

    async def on_turn_begin(self, state: RolloutState) -> None:
        """Print the previous turn's reward and metrics."""
        self.transitions = state.transitions
        for number in range(self._ended, len(self.transitions)):
            turn = self.transitions[number]
            text = Text(f"turn {number}", style="bold").append_text(calling(turn, turn.ob.length))
            self.console.print(harmless(text.append("\n").append_text(earned(turn))))
        self._ended = len(self.transitions)

    async def on_artifacts(self, state: RolloutState) -> None:
        """Print the last turn's reward and metrics."""
        await self.on_turn_begin(state)

    def explain(self) -> None:
        """Print the finished turns as tokens, with their stop reasons."""
        if not self.transitions:
            return
        trajectory = Trajectory([*self.transitions], tinker.ModelInput.empty())
        self.console.print(Text(f"\n{self._title}, as tokens", style="bold"))
        explain(trajectory, renderer=self.env.renderer, console=self.console)

    def _show(self, messages: Sequence[Message], prefix: int = 0, name: str = "") -> int:
        """Print the messages that are new. Return a hash of ``prefix`` and the messages."""
        for message in messages:
            text = "\n".join(_parts(message))
            prefix = hash((prefix, message["role"], text))
            if prefix not in self._prefixes:
                self._prefixes.add(prefix)
                self._print(name or message["role"], text, "green" if name else "cyan")
        return prefix

    def _print(self, name: str, text: str, style: str) -> None:
        self.console.print(harmless(block(name, text, style)))


def _parts(message: Message) -> Iterator[str]:
    content = message["content"]
    if isinstance(content, str):
        yield content
    else:
        for part in content:
            thought = "thinking" if part["type"] == "thinking" else "text"
            yield str(part.get(thought, f"[{part['type']}]"))
    for call in message.get("tool_calls") or ():
        yield f"-> {call.function.name} {call.function.arguments}"


def _signature(function: dict[str, Any]) -> str:
    properties = (function.get("parameters") or {}).get("properties") or {}
    kinds = [
        f"{k}: {v.get('type', 'any')}" if isinstance(v, dict) else k for k, v in properties.items()
    ]
    return f"{function['name']}({', '.join(kinds)})"
