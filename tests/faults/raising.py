"""Agents that raise all kinds of exceptions at different moments, in tasks and in threads."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import openai
from tests.faults.scene import PLACES, Agent, Fault, Scene, agents, stepped_and_closed, throw

from evert import AgentAborted, EnvClosedError, EpisodeEndedError


class Odd(BaseException):
    """A custom subclass of ``BaseException``."""


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class MuteForGood(Exception):
    """An exception that can never be converted to text."""

    def __str__(self) -> str:
        raise Odd("no words at all")


class Sealed(Exception):
    def __init__(self) -> None:
        super().__init__("sealed")
        self.lock = threading.Lock()


class Particular(Exception):
    """An exception that cannot be unpickled, because it does not store a required argument."""

    def __init__(self, *, wanted: str) -> None:
        super().__init__(f"wanted {wanted}")


class Coded(Exception):
    @property
    def code(self) -> str:
        raise ValueError("no code")


def looped() -> Exception:
    first, second = ValueError("one"), KeyError("two")
    first.__cause__, second.__cause__ = second, first
    return first


def deep() -> Exception:
    def down() -> None:
        down()

    try:
        down()
    except RecursionError as error:
        return error
    return ValueError()


def refused() -> Exception:
    response: Any = type("Response", (), {"request": None, "status_code": 400, "headers": {}})()
    return openai.BadRequestError("not here", response=response, body=None)


ERRORS: dict[str, tuple[Callable[[], BaseException], str]] = {
    "a ValueError": (lambda: ValueError("boom"), "ValueError boom"),
    "a KeyError": (lambda: KeyError("boom"), "KeyError 'boom'"),
    "SystemExit": (lambda: SystemExit("bye"), "SystemExit bye"),
    "CancelledError": (lambda: asyncio.CancelledError("mine"), "CancelledError mine"),
    "GeneratorExit": (lambda: GeneratorExit("done"), "GeneratorExit done"),
    "a BaseException": (lambda: Odd("odd"), "Odd odd"),
    "an ExceptionGroup": (lambda: ExceptionGroup("all", [ValueError("one"), KeyError("two")]),
        "ExceptionGroup all (2 sub-exceptions); ValueError: one; KeyError: 'two'"),
    "a BaseExceptionGroup": (lambda: BaseExceptionGroup("all", [Odd("one"), SystemExit(2)]),
        "BaseExceptionGroup all (2 sub-exceptions); Odd: one; SystemExit: 2"),
    "an error that does not pickle": (Sealed, "Sealed sealed"),
    "an error that does not unpickle":
        (lambda: Particular(wanted="more"), "Particular wanted more"),
    "an error whose str() fails": (Mute, "Mute (its message cannot be read: ValueError)"),
    "an error whose str() raises a BaseException":
        (MuteForGood, "MuteForGood (its message cannot be read: Odd)"),
    "an error whose code cannot be read": (lambda: Coded("coded"), "Coded coded"),
    "a cycle of causes": (looped, "ValueError one"),
    "a RecursionError": (deep, "RecursionError maximum recursion depth exceeded"),
    "a MemoryError": (MemoryError, "MemoryError "),
    "a TimeoutError": (lambda: TimeoutError("slow"), "TimeoutError slow"),
    "a 400 of another service": (refused, "BadRequestError not here"),
    "evert's own EnvClosedError": (lambda: EnvClosedError("fake"), "EnvClosedError fake"),
    "evert's own EpisodeEndedError": (lambda: EpisodeEndedError("fake"), "EpisodeEndedError fake"),
    "evert's own AgentAborted": (lambda: AgentAborted("fake"), "AgentAborted fake"),
    "ten megabytes": (lambda: ValueError("x" * 10**7), "ValueError xxx…"),
}  # fmt: skip
"""Exceptions raised by agents, with the type and message shown in the trainer's error."""


def raising(make: Callable[[], BaseException], calls: int) -> list[tuple[Agent, str]]:
    return [*zip(agents(calls, lambda: throw(make())), PLACES, strict=True)]


def _says(text: str, calls: int) -> str:
    name, _, message = text.partition(" ")
    return f"AgentError.{name}: The agent … raised {name} after {calls} model calls: {message}"


MOMENTS = {0: "before the first call", 1: "between calls"}

RAISED = [
    Fault(name=f"the agent raises {what}{place}", moment=moment, agent=agent,
        trainer_sees=_says(text, calls), agent_sees="; ".join(["Fine."] * calls))
    for what, (make, text) in ERRORS.items()
    for calls, moment in MOMENTS.items()
    for agent, place in raising(make, calls)
]  # fmt: skip

SCORED = [
    Fault(name=f"the agent raises {what}, which is scored", moment="between calls",
        agent=raising(make, 1)[0][0], trainer_sees="agent_error -1 in 1", agent_sees="Fine.",
        options={"on_agent_error": -1.0})
    for what, (make, _) in ERRORS.items()
]  # fmt: skip

INTERRUPTED = [
    Fault(name=f"the agent raises KeyboardInterrupt{place}", moment=moment,
        agent=agent, trainer_sees="KeyboardInterrupt: stop",
        agent_sees="; ".join(["Fine."] * calls),
        options={"on_agent_error": -1.0})  # Ctrl-C is never scored
    for calls, moment in MOMENTS.items()
    for agent, place in raising(lambda: KeyboardInterrupt("stop"), calls)
]  # fmt: skip


async def stops_iterating(client: Any, scene: Scene) -> float:
    await scene.ask(client)
    raise StopIteration("no more")


async def raises_in_a_parallel_call(client: Any, scene: Scene) -> float:
    async def fails() -> None:
        await scene.ask(client, "a")
        raise ValueError("boom")

    async with asyncio.TaskGroup() as group:
        group.create_task(fails())
        group.create_task(scene.ask(client, "b"))
        group.create_task(scene.ask(client, "c"))
    return 1.0


def raises_in_a_pool(client: Any, scene: Scene) -> float:
    threads = [threading.Thread(target=scene.ask_blocking, args=(client,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    raise ValueError("boom")


async def raises_when_closed(client: Any, scene: Scene) -> float:
    try:
        await scene.ask(client)
        await scene.ask(client)
    except asyncio.CancelledError:
        raise ValueError("not like this") from None
    return 1.0


def raises_when_closed_in_a_thread(client: Any, scene: Scene) -> float:
    try:
        scene.ask_blocking(client)
        scene.ask_blocking(client)
    except EnvClosedError:
        raise SystemExit("not like this") from None
    return 1.0


async def exits_when_closed(client: Any, scene: Scene) -> float:
    with contextlib.suppress(asyncio.CancelledError):
        await scene.ask(client)
        await scene.ask(client)
    raise SystemExit("leave me alone")


ELSEWHERE = [
    Fault(name="the agent raises StopIteration", moment="between calls", agent=stops_iterating,
        trainer_sees="AgentError.RuntimeError: … raised RuntimeError after 1 model calls: "
        "coroutine raised StopIteration", agent_sees="Fine."),
    Fault(name="one of three tasks raises", moment="in parallel calls",
        agent=raises_in_a_parallel_call,
        trainer_sees="AgentError.ValueError: … raised ValueError after … model calls: boom",
        agent_sees="Fine.; CancelledError; CancelledError"),
    Fault(name="the agent raises beside three threads", moment="in parallel calls",
        agent=raises_in_a_pool, trainer_sees="AgentError.ValueError: … after 3 model calls: boom",
        agent_sees="Fine.; Fine.; Fine."),
    *(
        Fault(name=name, moment="in close", agent=agent, play=stepped_and_closed,
            trainer_sees="goes on; closed", agent_sees=f"Fine.; {ending}")
        for name, agent, ending in (
            ("the agent raises instead of ending", raises_when_closed, "CancelledError"),
            ("the agent exits instead of ending", exits_when_closed, "CancelledError"),
            ("a thread exits", raises_when_closed_in_a_thread, "EnvClosedError"),
        )
    ),
]  # fmt: skip

FAULTS = [*RAISED, *SCORED, *INTERRUPTED, *ELSEWHERE]
