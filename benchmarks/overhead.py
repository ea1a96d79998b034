"""Measure the overhead of a turn without a model, in microseconds, with the Cookbook's runner.

All rows use the same game (guess-number with a target that is never guessed), renderer and scripted
policy, and are measured in the same run:

    nothing       an Env whose methods return immediately: the cost of the runner itself
    switch        suspending and resuming an agent, without rendering
    evert         ChatAgentEnv
    message env   the Cookbook's EnvFromMessageEnv with a hand-written MessageEnv
    cookbook      the Cookbook's hand-written GuessNumberEnv

In the second table, an agent has many conversations in one episode. The table shows the cost per
call for the first fifty and for the last fifty calls.

    new           each call starts a new conversation after the same system prompt
    branches      each call continues the same reply with a different message
    turns         each call adds a second turn to one of the conversations, in order

The third table compares renderers:

    cookbook        a Cookbook renderer
    appends         a chat template with the same format, which keeps the history unchanged
    cookbook whole  a Cookbook renderer that drops old thoughts, so each prompt is rendered in full
    whole           a chat template that drops old thoughts

    python benchmarks/overhead.py [--quick] [--turns 10 100 1000] [--repeats 5]
        [--conversations 1000]

Rows show the median over the repeats; the spread is (max - min) / median.
"""

import argparse
import asyncio
import copy
import statistics
import time
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

import tinker
from rich.console import Console
from rich.table import Table
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs
from tinker_cookbook.recipes.multiplayer_rl.guess_number import env as cookbook
from tinker_cookbook.renderers import Message, Renderer
from tinker_cookbook.renderers.qwen3 import Qwen3Renderer
from tinker_cookbook.rl.message_env import EnvFromMessageEnv, MessageEnv, MessageStepResult
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Action, ActionExtra, Env, StepResult

from evert import AgentClient, ChatAgentEnv
from evert.bridge.chat.reply import Reply
from evert.bridge.clients.dialects.endpoint import Endpoint
from evert.bridge.episode.agent import inspect_agent
from evert.bridge.episode.episode import Episode
from evert.bridge.episode.inbox import ParkedCall
from evert.bridge.tokens.bases import base_tokenizer, default_renderer
from evert.bridge.tokens.renderer import prompt_renderer
from evert.bridge.tokens.template import TemplateRenderer
from evert.envs.guess_number import SYSTEM_PROMPT, judge

TARGET = 777
GUESS = "Guess: 512"
EMPTY = tinker.ModelInput.empty()


class Scripted(TokenCompleter):
    """A policy that always samples the same pre-tokenized guess."""

    def __init__(self) -> None:
        tokens = default_renderer().tokenizer.encode(f"{GUESS}<|im_end|>")
        self._answer = TokensWithLogprobs(
            tokens=tokens, maybe_logprobs=[-1.0] * len(tokens), stop_reason="stop"
        )

    async def __call__(self, *_: Any, **__: Any) -> TokensWithLogprobs:
        """Return the guess."""
        return self._answer


class Nothing(Env):
    """An Env that only counts turns."""

    def __init__(self, turns: int) -> None:
        self._left = turns

    async def initial_observation(self) -> tuple[tinker.ModelInput, StopCondition]:
        """Return an empty prompt."""
        return EMPTY, []

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        """Count a turn."""
        self._left -= 1
        return StepResult(0.0, self._left == 0, EMPTY, [])


class SwitchOnly(Env):
    """An Env that suspends and resumes an agent with a fixed reply, without rendering."""

    def __init__(self, turns: int) -> None:
        self._agent = guesser(turns)
        message = Message(role="assistant", content=GUESS)
        self._reply = Reply(message, GUESS, None, (), (), "stop", 0, 0)
        self._call: ParkedCall | None = None

    async def initial_observation(self) -> tuple[tinker.ModelInput, StopCondition]:
        """Start the agent and wait for its first call."""
        form, loop = inspect_agent(self._agent), asyncio.get_running_loop()
        episode = Episode(form, loop, [["policy"]])
        self._inbox = episode.inboxes[0]
        endpoint = Endpoint(episode, "policy", prompt_renderer(None))
        episode.start(partial(self._agent, AgentClient(endpoint)), copy_context())
        await self._next()
        return EMPTY, []

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        """Answer the pending call and wait for the next one."""
        assert self._call is not None
        self._call.answer(self._reply)
        return StepResult(0.0, not await self._next(), EMPTY, [])

    async def _next(self) -> bool:
        event = await self._inbox.take(600.0)
        self._call = event if isinstance(event, ParkedCall) else None
        return self._call is not None


class GuessMessages(MessageEnv):
    """Guess-number as a MessageEnv."""

    def __init__(self, turns: int) -> None:
        self._left = turns
        self._history: list[Message] = [Message(role="system", content=SYSTEM_PROMPT)]

    async def initial_observation(self) -> list[Message]:
        """Return the system prompt."""
        return self._history

    async def step(self, message: Message) -> MessageStepResult:
        """Score a guess."""
        self._left -= 1
        feedback, reward = judge(str(message["content"]), TARGET)
        self._history += [message, Message(role="user", content=feedback)]
        return MessageStepResult(reward, self._left == 0, self._history)


def guesser(turns: int) -> Callable[[AgentClient], Any]:
    """Return guess-number as an agent."""

    async def agent(client: AgentClient) -> float:
        messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM_PROMPT}]
        for _ in range(turns):
            completion = await client.chat.completions.create(messages=messages)
            answer = completion.choices[0].message.content or ""
            feedback, _reward = judge(answer, TARGET)
            messages += [
                {"role": "assistant", "content": answer},
                {"role": "user", "content": feedback},
            ]
        return 0.0

    return agent


def cookbook_env(turns: int) -> Env:
    """Return the Cookbook's guess-number Env with a higher turn limit."""
    cookbook.MAX_TURNS = turns
    return cookbook.GuessNumberEnv(TARGET, default_renderer())


ROWS: dict[str, Callable[[int], Env]] = {
    "nothing": Nothing,
    "switch": SwitchOnly,
    "evert": lambda turns: ChatAgentEnv(guesser(turns)),
    "message env": lambda turns: EnvFromMessageEnv(default_renderer(), GuessMessages(turns)),
    "cookbook": cookbook_env,
}


async def measure(make: Callable[[int], Env], turns: int, episodes: int) -> float:
    """Return the average microseconds per turn.

    Raises:
        RuntimeError: If an episode has the wrong number of turns.
    """
    policy = Scripted()
    start = time.perf_counter()
    for _ in range(episodes):
        trajectory = await do_single_rollout(policy, make(turns))
        if len(trajectory.transitions) != turns:
            raise RuntimeError(f"{len(trajectory.transitions)} turns instead of {turns}")
    return (time.perf_counter() - start) / (episodes * turns) * 1e6


def holder_of_many(kind: str, count: int) -> Callable[[AgentClient], Any]:
    """Return an agent that makes ``count`` calls, each in a different conversation."""
    system = {"role": "system", "content": SYSTEM_PROMPT}
    answer = {"role": "assistant", "content": GUESS}

    async def agent(client: AgentClient) -> float:
        async def ask(*messages: dict[str, Any]) -> None:
            await client.chat.completions.create(messages=list(messages))

        if kind == "branches":
            await ask(system)
        for number in range(count):
            question = {"role": "user", "content": f"Game {number}."}
            await ask(*((system, answer, question) if kind == "branches" else (system, question)))
        for number in range(count if kind == "turns" else 0):
            question = {"role": "user", "content": f"Game {number}."}
            await ask(system, question, answer, {"role": "user", "content": "Too low"})
        return 0.0

    return agent


async def first_and_last(kind: str, count: int) -> tuple[float, float]:
    """Return the median microseconds per call, for the first and last fifty of ``count`` calls."""
    env = ChatAgentEnv(holder_of_many(kind, count))
    action = (await Scripted()()).tokens
    await env.initial_observation()
    times: list[float] = []
    is_over = False
    while not is_over:
        start = time.perf_counter()
        is_over = (await env.step(action)).episode_done
        times.append((time.perf_counter() - start) * 1e6)
    calls = times[-count:-1]
    return statistics.median(calls[:50]), statistics.median(calls[-50:])


async def many_conversations(count: int, repeats: int) -> Table:
    """Measure and return the second table."""
    table = Table(title=f"Microseconds per call among {count:,} conversations (median of repeats)")
    for column in ("row", "first 50", "last 50", "last / first"):
        table.add_column(column, justify="left" if column == "row" else "right")
    for kind in ("new", "branches", "turns"):
        runs = [await first_and_last(kind, count) for _ in range(repeats)]
        first, last = (statistics.median(times) for times in zip(*runs, strict=True))
        ratio = statistics.median(after / before for before, after in runs)
        table.add_row(kind, f"{first:,.1f}", f"{last:,.1f}", f"x{ratio:.2f}")
    return table


def template_renderer(template: str) -> TemplateRenderer:
    """Return a renderer for a chat template, with the tokenizer of ``evert-tiny``."""
    tokenizer = copy.deepcopy(base_tokenizer())
    tokenizer.chat_template = template
    return TemplateRenderer(tokenizer)


MESSAGE = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
OPENS = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
APPENDS = f"{{% for m in messages %}}{MESSAGE}{{% endfor %}}{OPENS}"
WHOLE = (
    "{% for m in messages %}{% if loop.last and m.reasoning_content %}<think>"
    "{{ m.reasoning_content }}</think>{% endif %}" + MESSAGE + "{% endfor %}" + OPENS
)


def env_with(renderer: Renderer, turns: int) -> Env:
    """Return guess-number with the given renderer."""
    return ChatAgentEnv(guesser(turns), renderer=renderer)


async def by_renderer(turn_counts: list[int], repeats: int) -> Table:
    """Measure and return the third table."""
    renderers = {
        "cookbook": default_renderer(),
        "appends": template_renderer(APPENDS),
        "cookbook whole": Qwen3Renderer(base_tokenizer()),
        "whole": template_renderer(WHOLE),
    }
    table = Table(title="Microseconds per turn by renderer (median), and relative to cookbook")
    for column in ("row", *(f"{turns} turns" for turns in turn_counts)):
        table.add_column(column, justify="left" if column == "row" else "right")
    medians: dict[tuple[str, int], float] = {}
    for name, renderer in renderers.items():
        make = partial(
            lambda renderer, turns: ChatAgentEnv(guesser(turns), renderer=renderer), renderer
        )
        cells = [name]
        for turns in turn_counts:
            await measure(make, min(turns, 10), 2)  # warm up
            times = [await measure(make, turns, max(1, 400 // turns)) for _ in range(repeats)]
            medians[name, turns] = statistics.median(times)
            ratio = medians[name, turns] / medians["cookbook", turns]
            cells.append(f"{medians[name, turns]:,.1f}  x{ratio:.2f}")
        table.add_row(*cells)
    return table


async def run(turn_counts: list[int], repeats: int, skip_slow: bool) -> dict[tuple[str, int], Any]:
    """Measure all rows; return (row, turns) -> microseconds per turn of each repeat."""
    results: dict[tuple[str, int], list[float]] = {}
    for turns in turn_counts:
        for name, make in ROWS.items():
            slow = name in ("message env", "cookbook")
            if slow and skip_slow and turns > 100:
                continue
            episodes = 1 if slow and turns >= 100 else max(1, 2000 // turns)
            times = 1 if slow and turns > 100 else repeats
            await measure(make, min(turns, 10), 2)  # warm up
            results[name, turns] = [await measure(make, turns, episodes) for _ in range(times)]
    return results


def main() -> None:
    """Run the benchmark and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--turns", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--conversations", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="two repeats, no slow rows at 1000")
    options = parser.parse_args()
    repeats = 2 if options.quick else options.repeats
    results = asyncio.run(run(options.turns, repeats, options.quick))
    table = Table(title="Microseconds per turn (median, spread), and relative to evert")
    table.add_column("row")
    for turns in options.turns:
        table.add_column(f"{turns} turns", justify="right")
    for name in ROWS:
        cells = []
        for turns in options.turns:
            times = results.get((name, turns))
            if times is None:
                cells.append("-")
                continue
            median = statistics.median(times)
            spread = (max(times) - min(times)) / median
            ratio = median / statistics.median(results["evert", turns])
            cells.append(f"{median:,.1f} ±{spread:.0%}  x{ratio:.2f}")
        table.add_row(name, *cells)
    Console().print(table)
    Console().print(asyncio.run(many_conversations(options.conversations, repeats)))
    Console().print(asyncio.run(by_renderer([10, 40], repeats)))


if __name__ == "__main__":
    main()
