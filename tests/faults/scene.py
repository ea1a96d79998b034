"""Plays faults and reports what the trainer, the agent and the process see.

A ``Fault`` is a row of the table. It states who does what and when, and what the trainer, the agent
and the process see, as one line of text for each of the three. ``…`` matches anything. ``perform``
plays a row with the Cookbook's own runner and a scripted model, in its own event loop, and returns
the three lines.
"""

import asyncio
import concurrent.futures
import faulthandler
import gc
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import psutil
from tests.faults import stalls
from tests.leftovers import children
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import (
    STOP_METRIC_PREFIX,
    InitialObservationOverflow,
    StepResult,
    Trajectory,
    TrajectoryGroup,
)

from evert import ChatAgentEnv, ScriptedPolicy
from evert.bridge.clients import takeover
from evert.bridge.env.endings import CUT
from evert.bridge.tokens.renderer import prompt_renderer

NOTHING = "nothing"
"""Stated in nearly all rows: the episode leaves nothing behind in the process."""

PATIENCE = 100.0
"""Timeout in seconds for playing a row."""

Agent = Callable[..., Any]


class Sampler(ScriptedPolicy):
    """A scripted policy that takes a few loop iterations per reply, like a real sampler."""

    async def __call__(self, *args: Any, **options: Any) -> TokensWithLogprobs:
        for _ in range(3):
            await asyncio.sleep(0)
        return await super().__call__(*args, **options)


class Raising(Sampler):
    """A policy that raises in its second call."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__(lambda prompt: "Fine.")
        self._error = error

    async def __call__(self, *args: Any, **options: Any) -> TokensWithLogprobs:
        if self.actions:
            raise self._error("no engine")
        return await super().__call__(*args, **options)


def saying(*texts: str) -> Callable[[], TokenCompleter]:
    return lambda: Sampler(texts)


def fine() -> TokenCompleter:
    return Sampler(lambda prompt: "Fine.")


@dataclass(eq=False)
class Scene:
    """State while a row is played. The agent gets the scene as its task and notes what it sees."""

    fault: "Fault"
    saw: list[str] = field(default_factory=list)  # what the agent saw, in order
    over: threading.Event = field(default_factory=threading.Event)  # lets hanging agents stop
    kept: list[Any] = field(default_factory=list)  # objects that should outlive the agent

    def env(self, **options: Any) -> ChatAgentEnv:
        return ChatAgentEnv(self.fault.agent, self, **{**QUICK, **self.fault.options, **options})

    async def ask(self, client: Any, text: str = "Hi", **fields: Any) -> str:
        with self.noted():
            completion = await client.chat.completions.create(**asking(text, **fields))
        return self._said(completion)

    def ask_blocking(self, client: Any, text: str = "Hi", **fields: Any) -> str:
        with self.noted():
            completion = client.chat.completions.create(**asking(text, **fields))
        return self._said(completion)

    @contextmanager
    def noted(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.saw.append(name_of(error))
            raise

    def _said(self, completion: Any) -> str:
        text = completion.choices[0].message.content or ""
        self.saw.append(text)
        return text


def agents(calls: int, end: Callable[[], Any] = lambda: 1.0, pause: float = 0) -> list[Agent]:
    """Return an async agent and a sync agent. Both make some calls, pausing before the last call,
    and then call ``end``."""

    async def agent(client: Any, scene: Scene) -> Any:
        for number in range(calls):
            if pause and number == calls - 1:
                await asyncio.sleep(pause)
            await scene.ask(client)
        return end()

    def in_a_thread(client: Any, scene: Scene) -> Any:
        for number in range(calls):
            if pause and number == calls - 1:
                time.sleep(pause)
            scene.ask_blocking(client)
        return end()

    return [agent, in_a_thread]


def throw(error: BaseException) -> Any:
    raise error


PLACES = ("", " in a thread")
QUICK: Mapping[str, Any] = {"close_timeout": 0.2, "agent_timeout": 10.0}

Play = Callable[[Scene], Awaitable[object]]


def tokens(text: str, *, ended: bool = True) -> list[int]:
    renderer = prompt_renderer(None)
    return renderer.encode(text) + (renderer.end_tokens[:1] if ended else [])


async def rollout(scene: Scene) -> Trajectory:
    env = scene.env()
    try:
        return await do_single_rollout(scene.fault.policy(), env)
    finally:
        await env.close()


async def stepped_and_closed(scene: Scene) -> list[object]:
    """Take one step, abandon the rollout, and close the Env twice."""
    env = scene.env()
    await env.initial_observation()
    result = await env.step(tokens("Fine."))
    await env.close()
    await env.close()
    return [result, "closed"]


async def outcome(moment: Awaitable[object]) -> object:
    try:
        return await moment
    except BaseException as error:
        return error


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A row of the table: who does what and when, and what trainer, agent and process see."""

    name: str
    moment: str
    trainer_sees: str  # an exception, or a stop reason and a reward
    agent_sees: str = ""  # results of the agent's calls, in order
    process_sees: str = NOTHING  # what is left after the Env is closed
    agent: Agent  # called with (client, scene)
    policy: Callable[[], TokenCompleter] = fine
    play: Play = rollout  # what the trainer does
    options: Mapping[str, Any] = field(default_factory=dict)  # options of the Env

    def __str__(self) -> str:
        return f"{self.moment}: {self.name}"


def asking(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


def is_as(seen: str, expected: str) -> bool:
    pattern = ".*".join(map(re.escape, expected.split("…")))
    return re.fullmatch(pattern, seen, re.DOTALL) is not None


# -- results as a line of text ---------------------------------------------------------------------


def name_of(error: BaseException) -> str:
    code = getattr(error, "code", None)
    return f"{type(error).__name__} {code}" if isinstance(code, str) else type(error).__name__


def line(result: object) -> str:
    if isinstance(result, BaseExceptionGroup):
        return f"{type(result).__name__}: {', '.join(map(line, result.exceptions))}"
    if isinstance(result, BaseException):
        return f"{type(result).__name__}: {result}"
    if isinstance(result, Trajectory):
        total = sum(transition.reward for transition in result.transitions)
        return f"{result.stop_reason} {total:g} in {len(result.transitions)}"
    if isinstance(result, TrajectoryGroup):
        errors = [f"({error.error_type})" for error in result.rollout_errors]
        return " | ".join([*map(line, result.trajectories_G), *errors])
    if isinstance(result, StepResult):
        return f"{_reason(result.metrics)} {result.reward:g}" if result.episode_done else "goes on"
    if isinstance(result, InitialObservationOverflow):
        return f"{_reason(result.metrics or {})} {result.reward:g} without a turn"
    if isinstance(result, list):
        return "; ".join(map(line, result))
    return str(result) if isinstance(result, str) else type(result).__name__


def _reason(metrics: Mapping[str, Any]) -> str:
    reasons = [name for name in metrics if name.startswith(STOP_METRIC_PREFIX) and name != CUT]
    return ",".join(name.removeprefix(STOP_METRIC_PREFIX) for name in reasons)


@dataclass
class Inventory:
    """Process resources that an episode might leave behind."""

    tasks: set[Any]
    threads: set[threading.Thread]
    descriptors: set[str]
    children: set[psutil.Process]
    folders: set[Path]
    functions: dict[str, Any]

    @classmethod
    def now(cls) -> "Inventory":
        """Return the current resources, except for threads of shared pools."""
        try:
            tasks = asyncio.all_tasks()
        except RuntimeError:  # no running loop
            tasks = set()
        return cls(
            tasks,
            {thread for thread in threading.enumerate() if not thread.name.startswith(POOLS)},
            open_descriptors(),
            children(),
            set(Path(tempfile.gettempdir()).glob("evert-*")),
            {name: get() for name, get in FUNCTIONS.items()},
        )

    def since(self, before: "Inventory") -> str:
        """Summarise in one line what was left behind since ``before``."""
        counts: list[tuple[int, str]] = [
            (len(self.tasks - before.tasks), "task"),
            (len(self.threads - before.threads), "thread"),
            (len(self.descriptors - before.descriptors), "descriptor"),
            (len(self.children - before.children), "child"),
            (len(self.folders - before.folders), "folder"),
        ]
        changed = [n for n, value in self.functions.items() if value != before.functions[n]]
        counted = [f"{count} {what}{'s' * (count > 1)}" for count, what in counts if count]
        return ", ".join([*counted, *changed]) or NOTHING


POOLS = ("asyncio_", "evert off loop")


def open_descriptors() -> set[str]:
    """Return this process's open file descriptors, except for the one used to list them."""
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    return {name for name in os.listdir(folder) if os.path.exists(f"{folder}/{name}")}


FUNCTIONS: dict[str, Callable[[], Any]] = {
    "Thread.start": lambda: threading.Thread.start,
    "Thread.run": lambda: threading.Thread.run,
    "ThreadPoolExecutor.submit": lambda: concurrent.futures.ThreadPoolExecutor.submit,
    "httpx.Client": lambda: httpx.Client._transport_for_url,
    "httpx.AsyncClient": lambda: httpx.AsyncClient._transport_for_url,
    "aiohttp": lambda: aiohttp.ClientSession._request,
    "excepthook": lambda: sys.excepthook,
    "threading.excepthook": lambda: threading.excepthook,
    "unraisablehook": lambda: sys.unraisablehook,
    "SIGINT": lambda: signal.getsignal(signal.SIGINT),
    "SIGTERM": lambda: signal.getsignal(signal.SIGTERM),
    "SIGCHLD": lambda: signal.getsignal(signal.SIGCHLD),
    "recursion limit": sys.getrecursionlimit,
    "stdout": lambda: sys.stdout,
}
"""Global state that an episode might change without restoring it."""


async def settled(before: Inventory, expected: str) -> str:
    """Wait until the leftovers are as expected or time is up, and return the leftovers."""
    for _ in range(round(PATIENCE / 0.005)):
        if is_as(Inventory.now().since(before), expected):
            break
        await asyncio.sleep(0.005)
    return Inventory.now().since(before)


# -- playing a row ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """What was actually seen when a row was played."""

    trainer: str
    agent: str
    process: str
    at_last: str  # what is left after the event loop is closed
    complaints: list[str]  # messages to the loop's exception handler


def perform(fault: Fault) -> Seen:
    takeover.install()
    gc.collect()
    before, scene, complaints = Inventory.now(), Scene(fault), list[str]()
    with _guarded():
        trainer, process = asyncio.run(_perform(scene, complaints))
    gc.collect()
    end = time.monotonic() + 2
    while (remains := Inventory.now().since(before)) != NOTHING and time.monotonic() < end:
        time.sleep(0.01)
    return Seen(trainer, "; ".join(scene.saw), process, remains, complaints)


async def _perform(scene: Scene, complaints: list[str]) -> tuple[str, str]:
    loop, fault = asyncio.get_running_loop(), scene.fault
    loop.set_exception_handler(lambda loop, context: complaints.append(str(context)))
    async with stalls.watched() as stall:
        before = Inventory.now()
        try:
            async with asyncio.timeout(PATIENCE):
                trainer = line(await fault.play(scene))
        except BaseException as error:
            trainer = line(error)
            del error
        finally:
            process = await settled(before, fault.process_sees)
            scene.over.set()
            scene.kept.clear()
    if stall.longest > stalls.LONGEST:
        complaints.append(f"The event loop was blocked for {stall.longest:.2f} s.")
    return trainer, process


@contextmanager
def _guarded() -> Iterator[None]:
    """Print stack traces if a row blocks its loop."""
    faulthandler.dump_traceback_later(2 * PATIENCE, exit=False)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
