"""Misbehaving agents: invalid return values, hanging, leftovers, and problematic calls."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from tests.faults.scene import PLACES, Agent, Fault, Scene, agents, stepped_and_closed

from evert import AgentClient, EnvClosedError, EpisodeEndedError, Outcome


class Unwritable:
    """An object whose ``repr`` raises."""

    def __repr__(self) -> str:
        raise ValueError("no words")


class NoNumber(Fraction):
    """An object that claims to be a number but cannot be converted to a float."""

    def __float__(self) -> float:
        raise KeyError("no float")


# -- return values ---------------------------------------------------------------------------------


def _made(value: Any) -> Any:
    return value() if callable(value) else value


async def _later() -> float:
    return 1.0


def _generator() -> Iterator[float]:
    yield 1.0


NO_NUMBER = "RewardError: The reward returned by the agent … is …; expected a finite number…"

RETURNS: dict[str, tuple[Any, str]] = {
    "nothing": (None, "RewardError: The agent … ended without a reward: it returned None…"),
    "NaN": (float("nan"), NO_NUMBER),
    "infinity": (float("-inf"), NO_NUMBER),
    "text": ("1.0", NO_NUMBER),
    "a list": ([1.0], NO_NUMBER),
    "a dict": ({"reward": 1.0}, NO_NUMBER),
    "a complex number": (1j, NO_NUMBER),
    "an array": (np.ones(3), NO_NUMBER),
    "an int too large for a float": (10**400, NO_NUMBER),
    "an object": (lambda: object(), NO_NUMBER),
    "an object whose repr() fails": (Unwritable, NO_NUMBER),
    "a number whose float() fails": (lambda: NoNumber(1, 2), NO_NUMBER),
    "a coroutine": (_later, "RewardError: The agent … returned an awaitable, not a reward…"),
    "a generator": (_generator, NO_NUMBER),
    "an exception": (lambda: ValueError("boom"), NO_NUMBER),
    "its class": (lambda: Outcome, NO_NUMBER),
    "an Outcome without a reward":
        (Outcome, "RewardError: The agent … ended without a reward: it returned Outcome(…"),
    "an Outcome with a string metric": (
        lambda: Outcome(1.0, {"m": "x"}),  # type: ignore[dict-item]
        "RewardError: The metric 'm' in the Outcome of the agent … is 'x' (str)…",
    ),
    "an Outcome with metrics=None": (
        lambda: Outcome(1.0, None),  # type: ignore[arg-type]
        "RewardError: The metrics in the Outcome of the agent … are None; expected a dict…",
    ),
    "an Outcome with logs=5": (
        lambda: Outcome(1.0, {}, 5),  # type: ignore[arg-type]
        "RewardError: The logs in the Outcome of the agent … are 5; expected a dict…",
    ),
    "an Outcome in an Outcome": (lambda: Outcome(Outcome(1.0)), NO_NUMBER),  # type: ignore[arg-type]
}  # fmt: skip

RETURNED = [
    Fault(name=f"the agent returns {what}{place}", moment="at its return", agent=agent,
        trainer_sees=expected, agent_sees="Fine.")
    for what, (value, expected) in RETURNS.items()
    for agent, place in zip(agents(1, partial(_made, value)), PLACES, strict=True)
]  # fmt: skip


async def notes_nonsense(client: Any, scene: Scene) -> float:
    for value in ("1", float("nan"), None, Unwritable()):
        try:
            client.reward(value)
        except Exception as error:
            scene.saw.append(type(error).__name__)
    await scene.ask(client)
    client.log(lock=threading.Lock(), words=Unwritable())
    return 1.0


# -- hanging ---------------------------------------------------------------------------------------


async def hangs(client: Any, scene: Scene) -> float:
    await scene.ask(client)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        scene.saw.append("CancelledError")
        raise
    return 1.0


async def hangs_at_once(client: Any, scene: Scene) -> float:
    await asyncio.Event().wait()
    return 1.0


async def swallows_once(client: Any, scene: Scene) -> float:
    await scene.ask(client)
    for _ in range(2):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            scene.saw.append("CancelledError")
    return 1.0


async def swallows_for_ever(client: Any, scene: Scene) -> float:
    await scene.ask(client)
    while not scene.over.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.01)
    return 1.0


def hangs_in_a_thread(client: Any, scene: Scene) -> float:
    scene.ask_blocking(client)
    scene.over.wait()
    return 1.0


def sleeps_in_a_thread(client: Any, scene: Scene) -> float:
    scene.ask_blocking(client)
    time.sleep(0.2)
    with contextlib.suppress(EnvClosedError):
        scene.ask_blocking(client)
    return 1.0


async def hangs_in_its_finally(client: Any, scene: Scene) -> float:
    try:
        await scene.ask(client)
        await scene.ask(client)
    finally:
        while not scene.over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
    return 1.0


async def hangs_in_a_thread_of_its_own(client: Any, scene: Scene) -> float:
    await scene.ask(client)
    await asyncio.to_thread(scene.over.wait, 20)
    return 1.0


async def waits_for_a_call_of_its_own_thread(client: Any, scene: Scene) -> float:
    with contextlib.suppress(Exception):
        scene.ask_blocking(client.blocking)
    await scene.ask(client)
    return 1.0


def _gives_up(agent: Agent, calls: str, remains: str = "nothing", **options: Any) -> list[Fault]:
    """Return two faults for an agent that times out: one is an error, the other is scored."""
    error = "AgentTimeoutError: The agent … neither called the model nor ended within …"
    timeouts = {"agent_timeout": 0.05, "close_timeout": 0.05, **options}
    return [
        Fault(name=f"the agent {agent.__name__.replace('_', ' ')}{end}", moment="between calls",
            agent=agent, trainer_sees=trainer, agent_sees=calls, process_sees=remains,
            options={**score, **timeouts})
        for end, trainer, score in (
            ("", error, {}),
            (", which is scored", "agent_timeout -1 in …", {"on_agent_error": -1.0}),
        )
    ]  # fmt: skip


WAITS = [
    *_gives_up(hangs, "Fine.; CancelledError"),
    *_gives_up(hangs_at_once, ""),
    *_gives_up(swallows_once, "Fine.; CancelledError; CancelledError"),
    *_gives_up(swallows_for_ever, "Fine.", "1 task"),
    *_gives_up(hangs_in_a_thread, "Fine.", "1 thread"),
    *_gives_up(sleeps_in_a_thread, "Fine.; EnvClosedError", close_timeout=1.0),
    *_gives_up(hangs_in_a_thread_of_its_own, "Fine."),
]


# -- leftovers -------------------------------------------------------------------------------------


async def leaves_a_call(client: Any, scene: Scene) -> float:
    await scene.ask(client)
    scene.kept.append(asyncio.create_task(_late_call(scene, client)))
    return 1.0


async def _late_call(scene: Scene, client: Any) -> None:
    with contextlib.suppress(EpisodeEndedError):
        await scene.ask(client)


async def leaves_a_loop_of_calls(client: Any, scene: Scene) -> float:
    async def again() -> None:
        while True:
            with contextlib.suppress(Exception):
                await scene.ask(client)

    await scene.ask(client)
    task = asyncio.create_task(again())
    task.add_done_callback(lambda task: scene.saw.append(type(task.exception()).__name__))
    scene.kept.append(task)
    return 1.0


async def leaves_a_task(client: Any, scene: Scene) -> float:
    async def waits() -> None:
        while not scene.over.is_set():  # noqa: ASYNC110 (also set from outside the event loop)
            await asyncio.sleep(0.01)

    await scene.ask(client)
    scene.kept.append(asyncio.create_task(waits()))
    return 1.0


def leaves_a_thread(client: Any, scene: Scene) -> float:
    scene.ask_blocking(client)
    threading.Thread(target=scene.over.wait, args=(20,)).start()
    return 1.0


def leaves_a_calling_thread(client: Any, scene: Scene) -> float:
    def again() -> None:
        time.sleep(0.02)
        while True:
            try:
                scene.ask_blocking(client)
            except Exception:
                continue
            except BaseException:
                return

    scene.ask_blocking(client)
    threading.Thread(target=again).start()
    return 1.0


async def leaves_a_served_address(client: Any, scene: Scene) -> float:
    assert client.base_url
    await scene.ask(client)
    return 1.0


async def leaves_an_sdk_open(client: Any, scene: Scene) -> float:
    scene.kept.append(client.openai)
    await scene.ask(client.openai, model="policy")
    return 1.0


def forks(client: Any, scene: Scene) -> float:
    scene.ask_blocking(client)
    child = os.fork()
    if child == 0:
        os._exit(7)
    scene.saw.append(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
    scene.ask_blocking(client)
    return 1.0


LEFT = [
    Fault(name=f"the agent {agent.__name__.replace('_', ' ')}", moment="after its return",
        agent=agent, trainer_sees="completed 1 in …", agent_sees=calls, process_sees=remains)
    for agent, calls, remains in (
        (leaves_a_call, "Fine.; EpisodeEndedError", "nothing"),
        (leaves_a_loop_of_calls,
            "Fine.; EpisodeEndedError; EpisodeEndedError; EpisodeEndedError; AgentAborted; "
            "AgentAborted", "nothing"),
        (leaves_a_task, "Fine.", "1 task"),
        (leaves_a_thread, "Fine.", "1 thread"),
        (leaves_a_calling_thread, "Fine.; …EpisodeEndedError; AgentAborted", "nothing"),
        (leaves_a_served_address, "Fine.", "nothing"),
        (leaves_an_sdk_open, "Fine.", "nothing"),
        (forks, "Fine.; 7; Fine.", "nothing"),
    )
]  # fmt: skip


# -- model calls -----------------------------------------------------------------------------------


async def cancels_itself(client: Any, scene: Scene) -> float:
    await scene.ask(client)
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await scene.ask(client)
    return 1.0


async def gives_up_a_call_and_asks_again(client: Any, scene: Scene) -> float:
    call = asyncio.create_task(scene.ask(client, "slow"))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait({call})
    await scene.ask(client, "again")
    return 1.0


async def gives_up_its_calls_and_returns(client: Any, scene: Scene, step: int = 1) -> float:
    calls = [asyncio.create_task(scene.ask(client, str(n))) for n in range(5)]
    await asyncio.sleep(0)
    for call in calls[step - 1 :: step]:
        call.cancel()
    await asyncio.wait(calls)
    return 1.0


async def gives_up_some_of_its_calls(client: Any, scene: Scene) -> float:
    return await gives_up_its_calls_and_returns(client, scene, step=2)


def calls_from_another_loop(client: Any, scene: Scene) -> float:
    async def elsewhere() -> None:
        await asyncio.gather(*(scene.ask(AgentClient(client._endpoint)) for _ in range(3)))

    asyncio.run(elsewhere())
    return 1.0


async def calls_from_threads(client: Any, scene: Scene) -> float:
    calls = [asyncio.to_thread(scene.ask_blocking, client.blocking) for _ in range(8)]
    await asyncio.gather(*calls)
    return 1.0


def leaves_another_loop_with_a_call(client: Any, scene: Scene) -> float:
    """Close a call's event loop while the trainer is sampling the reply."""

    async def elsewhere() -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(scene.ask(AgentClient(client._endpoint)), 0.02)

    asyncio.run(elsewhere())
    time.sleep(0.05)
    return 1.0


async def changes_its_messages(client: Any, scene: Scene) -> float:
    messages: list[Any] = [{"role": "user", "content": "Hi"}]
    for turn in range(3):
        call = asyncio.create_task(client.chat.completions.create(messages=messages))
        await asyncio.sleep(0)
        messages[0]["content"] = f"changed {turn}"
        messages.append({"role": "user", "content": "more"})
        scene.saw.append((await call).choices[0].message.content)
    return 1.0


async def takes_the_loop_policy_away(client: Any, scene: Scene) -> float:
    await scene.ask(client)
    asyncio.set_event_loop_policy(None)
    asyncio.set_event_loop(None)
    await scene.ask(client)
    return 1.0


async def closes_the_sdk(client: Any, scene: Scene) -> float:
    sdk = client.openai
    await scene.ask(sdk, model="policy")
    await sdk.close()
    with contextlib.suppress(Exception):
        await scene.ask(sdk, model="policy")
    await scene.ask(client)
    return 1.0


CALLS = [
    Fault(name=f"the agent {agent.__name__.replace('_', ' ')}", moment=moment, agent=agent,
        trainer_sees=trainer, agent_sees=calls)
    for agent, moment, trainer, calls in (
        (cancels_itself, "in a call",
            "AgentError.CancelledError: … raised CancelledError after 2 model calls: ",
            "Fine.; CancelledError"),
        (gives_up_a_call_and_asks_again, "in a call", "completed 1 in …", "CancelledError; Fine."),
        (gives_up_its_calls_and_returns, "in parallel calls", "completed 1 in …",
            "; ".join(["CancelledError"] * 5)),
        (gives_up_some_of_its_calls, "in parallel calls", "completed 1 in 3",
            "CancelledError; CancelledError; Fine.; Fine.; Fine."),
        (calls_from_another_loop, "in parallel calls", "completed 1 in 3", "Fine.; Fine.; Fine."),
        (calls_from_threads, "in parallel calls", "completed 1 in 8", "; ".join(["Fine."] * 8)),
        (leaves_another_loop_with_a_call, "in a call", "completed 1 in 1", "…"),
        (changes_its_messages, "in a call", "completed 1 in 3", "Fine.; Fine.; Fine."),
        (takes_the_loop_policy_away, "between calls", "completed 1 in 2", "Fine.; Fine."),
        (waits_for_a_call_of_its_own_thread, "before the first call", "completed 1 in 1",
            "BlockingCallError; Fine."),
        (closes_the_sdk, "between calls", "completed 1 in 2", "Fine.; …Error; Fine."),
        (notes_nonsense, "between calls", "completed 1 in 1", "RewardError; " * 4 + "Fine."),
    )
]  # fmt: skip


# -- while the Env is being closed -----------------------------------------------------------------


async def returns_when_closed(client: Any, scene: Scene) -> float:
    await scene.ask(client)
    with contextlib.suppress(asyncio.CancelledError):
        await scene.ask(client)
    return 1.0


async def calls_on_when_closed(client: Any, scene: Scene) -> float:
    while True:
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await scene.ask(client)


def calls_on_in_a_thread_when_closed(client: Any, scene: Scene) -> float:
    while True:
        with contextlib.suppress(Exception):
            scene.ask_blocking(client)


async def starts_a_task_when_closed(client: Any, scene: Scene) -> float:
    await scene.ask(client)
    try:
        await scene.ask(client)
    finally:
        await asyncio.gather(*(_late_call(scene, client) for _ in range(2)), return_exceptions=True)
    return 1.0


async def opens_an_address_when_closed(client: Any, scene: Scene) -> float:
    await scene.ask(client)
    try:
        await scene.ask(client)
    finally:
        try:
            scene.saw.append(client.base_url)
        except Exception as error:
            scene.saw.append(type(error).__name__)
    return 1.0


CLOSED = [
    Fault(name=f"the agent {agent.__name__.replace('_', ' ')}", moment="in close", agent=agent,
        play=stepped_and_closed, trainer_sees="goes on; closed", agent_sees=calls,
        process_sees=remains)
    for agent, calls, remains in (
        (returns_when_closed, "Fine.; CancelledError", "nothing"),
        (calls_on_when_closed,
            "Fine.; CancelledError; EnvClosedError; EnvClosedError; EnvClosedError; AgentAborted",
            "nothing"),
        (calls_on_in_a_thread_when_closed,
            "Fine.; EnvClosedError; EnvClosedError; EnvClosedError; EnvClosedError; AgentAborted",
            "nothing"),
        (starts_a_task_when_closed, "Fine.; CancelledError; EnvClosedError; EnvClosedError",
            "nothing"),
        (opens_an_address_when_closed, "Fine.; CancelledError; EnvClosedError", "nothing"),
        (hangs_in_its_finally, "Fine.; CancelledError", "1 task"),
    )
]  # fmt: skip

FAULTS = [*RETURNED, *WAITS, *LEFT, *CALLS, *CLOSED]
