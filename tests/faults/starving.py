"""Agents that would monopolise the event loop or its threads, but must not delay other episodes."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

from tests.faults.scene import Agent, Fault, Scene, asking, rollout, stepped_and_closed
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import ChatAgentEnv, ScriptedPolicy

MANY = 2000
WORDS = "The quick brown fox. " * 100_000
LETTERS = "a" * 2_000_000


async def begun_and_closed(scene: Scene) -> list[object]:
    env = scene.env()
    first = asyncio.create_task(env.initial_observation())
    await asyncio.sleep(0.05)
    await env.close()
    return [(await asyncio.gather(first, return_exceptions=True))[0], "closed"]


async def beside_two_that_are_closed(scene: Scene) -> list[object]:
    """Close two episodes whose texts take seconds to render, while a third renders its own text."""
    closing = [asyncio.create_task(begun_and_closed(scene)) for _ in range(2)]
    await asyncio.sleep(0.02)

    async def third(client: Any) -> float:
        await client.chat.completions.create(**asking("y " * 15_000))
        return 1.0

    env = ChatAgentEnv(third, agent_timeout=10.0)
    result = await do_single_rollout(ScriptedPolicy(["Fine."]), env)
    await asyncio.gather(*closing)
    return [result]


# -- agents that retry -----------------------------------------------------------------------------


async def retries(client: Any, scene: Scene) -> float:
    while not scene.over.is_set():
        with contextlib.suppress(BaseException):
            await client.chat.completions.create(**asking("Hi"))
    return 1.0


def retrying_in_a_thread(error: type[BaseException], **fields: Any) -> Agent:
    """Return a sync agent that keeps repeating a call, even if the call raises this error."""

    def agent(client: Any, scene: Scene) -> float:
        while not scene.over.is_set():
            with contextlib.suppress(error):
                client.chat.completions.create(**asking("Hi", **fields))
        return 1.0

    return agent


def persistent(*, sdk: bool = False, **fields: Any) -> Agent:
    async def agent(client: Any, scene: Scene) -> float:
        while True:
            with contextlib.suppress(Exception):
                calls = (client.openai if sdk else client).chat.completions
                await calls.create(**asking("Hi", **fields))

    return agent


async def retries_in_new_tasks(client: Any, scene: Scene) -> float:
    while not scene.over.is_set():
        with contextlib.suppress(BaseException):
            await asyncio.wait_for(client.chat.completions.create(**asking("Hi")), 10)
    return 1.0


async def _refused(client: Any, scene: Scene, **fields: Any) -> None:
    calls = [client.chat.completions.create(**asking("Hi", **fields)) for _ in range(MANY)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    scene.saw.append(f"{sum(isinstance(result, BaseException) for result in results)} refused")


async def asks_for_many_when_closed(client: Any, scene: Scene) -> float:
    await scene.ask(client)
    try:
        await scene.ask(client)
    finally:
        await _refused(client, scene)
    return 1.0


async def asks_for_many(client: Any, scene: Scene) -> float:
    await scene.ask(client)
    await _refused(client, scene, n=2)
    return 1.0


NEVER = "AgentTimeoutError: The agent … neither called the model nor ended within …"
NO_TWO = "…'n'=2 is not supported"
SHORT = {"agent_timeout": 0.3, "close_timeout": 0.1}
TWO_TURNS = {"limits": RolloutLimits(max_turns=2), "close_timeout": 0.1}

RETRIES = [
    *(
        Fault(name=f"the agent repeats its call forever, {how}", moment="after the end",
            agent=agent, trainer_sees="max_turns 0 in 2", process_sees=remains, options=TWO_TURNS)
        for how, agent, remains in (
            ("whatever the result", retries, "nothing"),
            ("each time in a new task", retries_in_new_tasks, "1 task"),
            ("in a thread", retrying_in_a_thread(BaseException), "1 thread"),
        )
    ),
    *(
        Fault(name=f"the agent repeats a bad call forever, {how}", moment="before the first call",
            agent=agent, trainer_sees=f"{NEVER}Its latest requests were refused: {why}…",
            process_sees=remains, options={**SHORT, "models": {"judge": lambda messages: "Yes."}})
        for how, agent, why, remains in (
            ("with n=2", persistent(n=2), NO_TWO, "nothing"),
            ("with an SDK", persistent(sdk=True, model="policy", n=2), NO_TWO, "nothing"),
            ("in a thread", retrying_in_a_thread(Exception, n=2), NO_TWO, "1 thread"),
            ("to an unknown model", persistent(model="none"), "…'none'", "nothing"),
        )
    ),
    Fault(name="the agent makes two thousand concurrent calls", moment="in close",
        agent=asks_for_many_when_closed, play=stepped_and_closed, trainer_sees="goes on; closed",
        agent_sees=f"Fine.; CancelledError; {MANY} refused", options={"close_timeout": 10.0}),
    Fault(name="the agent makes two thousand invalid calls", moment="between calls",
        agent=asks_for_many, trainer_sees="completed 1 in 1", agent_sees=f"Fine.; {MANY} refused"),
]  # fmt: skip


def sending(text: str) -> Agent:
    async def agent(client: Any, scene: Scene) -> float:
        with contextlib.suppress(Exception):
            await scene.ask(client, text)
        await scene.ask(client)
        return 1.0

    return agent


LONG = [
    *(
        Fault(name=f"the agent sends two megabytes of {what}", moment="before the first call",
            agent=sending(text), trainer_sees="completed 1 in 1",
            agent_sees="BadRequestError context_length_exceeded; Fine.",
            options={"context_length": 4096})
        for what, text in (("words", WORDS), ("one letter", LETTERS))
    ),
    Fault(name="the Env is closed while its prompt is rendered", moment="in close",
        agent=sending(WORDS), play=begun_and_closed,
        trainer_sees="EnvClosedError: The Env was closed before its prompt was rendered.; "
        "closed",
        agent_sees="…"),
    Fault(name="two Envs with slow prompts are closed", moment="in close",
        agent=sending(WORDS), play=beside_two_that_are_closed, trainer_sees="completed 1 in 1",
        agent_sees="…"),
]  # fmt: skip


# -- slow finalizers and misleading strings --------------------------------------------------------


class Slow:
    """An object whose finalizer waits for the event loop."""

    def __init__(self, scene: Scene, turn: threading.Event) -> None:
        self._given = scene, turn

    def __del__(self) -> None:
        scene, turn = self._given
        scene.saw.append("a turn" if turn.wait(10) else "no turn")


def finalizes_slowly(client: Any, scene: Scene) -> float:
    scene.ask_blocking(client)
    local, turn = threading.local(), threading.Event()
    scene.kept += [local, turn]
    local.slow = Slow(scene, turn)
    return 1.0


async def with_a_turn(scene: Scene) -> object:
    playing = asyncio.create_task(rollout(scene))
    for _ in range(1000):
        await asyncio.sleep(0.01)
        if len(scene.kept) == 2:
            break
    await asyncio.sleep(0.1)  # the thread should be finishing now
    scene.kept[1].set()
    return await playing


class Unequal(str):
    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError


class Short(str):
    __slots__ = ()

    def __len__(self) -> int:
        return 1


class Endless(str):
    __slots__ = ()

    def __len__(self) -> int:
        raise ZeroDivisionError


def saying_twice(text: str) -> Agent:
    """Return an agent that sends a string of a custom class in two calls."""

    async def agent(client: Any, scene: Scene) -> float:
        messages = asking(text)["messages"]
        await scene.ask(client, text)
        more = [*messages, {"role": "assistant", "content": "Fine."}, *messages]
        await scene.ask(client, "", messages=more)
        return 1.0

    return agent


def offering(kind: Callable[[str], str]) -> Agent:
    """Return an agent that offers a tool with strings of a custom class in two calls."""

    async def agent(client: Any, scene: Scene) -> float:
        messages = asking("Hi")["messages"]
        for more in ([], [{"role": "assistant", "content": "Fine."}, *messages]):
            function = {"name": kind("add"), "description": kind("Adds.")}
            tools = [{"type": "function", "function": function}]
            await scene.ask(client, "", messages=[*messages, *more], tools=tools)
        return 1.0

    return agent


def noting(text: str) -> Agent:
    async def agent(client: Any, scene: Scene) -> float:
        await scene.ask(client)
        client.log(**{text: text})
        client.metric(text, 1.0)
        return 1.0

    return agent


async def write_notes(scene: Scene) -> object:
    """Play a rollout, and check that its logs and metrics can be encoded as UTF-8."""
    trajectory = await rollout(scene)
    notes = {**trajectory.transitions[-1].logs, **trajectory.transitions[-1].metrics}
    "".join([*notes, *map(str, notes.values())]).encode()
    return trajectory


class Unsearchable(str):
    __slots__ = ()

    def __contains__(self, other: object) -> bool:
        raise ZeroDivisionError


class Uncounted(list[Any]):
    def __iter__(self) -> Any:
        raise ZeroDivisionError


async def sends_what_cannot_be_read(client: Any, scene: Scene) -> float:
    await scene.ask(client, messages=Uncounted(asking("Hi")["messages"]))
    return 1.0


LIES = [
    Fault(name="the agent sends a list that cannot be iterated over",
        moment="before the first call", agent=sends_what_cannot_be_read,
        trainer_sees="AgentError.ZeroDivisionError: …", agent_sees="ZeroDivisionError"),
    Fault(name="the agent offers a tool whose name cannot be compared", moment="between calls",
        agent=offering(Unequal), trainer_sees="completed 1 in 2", agent_sees="Fine.; Fine."),
    *(
        Fault(name=f"the agent notes {what}", moment="between calls", agent=noting(text),
            play=write_notes, trainer_sees="completed 1 in 1", agent_sees="Fine.")
        for what, text in (
            ("a string that cannot be searched", Unsearchable("Hi")),
            ("half of a surrogate pair", "\ud800"),
        )
    ),
    Fault(name="a thread's finalizer waits for the event loop", moment="after its return",
        agent=finalizes_slowly, play=with_a_turn, trainer_sees="completed 1 in 1",
        agent_sees="Fine.; a turn"),
    *(
        Fault(name=f"the agent sends a string that {what}", moment="between calls",
            agent=saying_twice(text), trainer_sees="completed 1 in 2", agent_sees="Fine.; Fine.")
        for what, text in (
            ("cannot be compared", Unequal("Hi")),
            ("reports a length of 1", Short("y " * 100_000)),
            ("has no length", Endless("Hi")),
        )
    ),
]  # fmt: skip

FAULTS = [*RETRIES, *LONG, *LIES]
