"""Faulty trainers: calls out of order, cancellations, other event loops, dropped Envs."""

import asyncio
import gc
import threading
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any

from tests.faults.scene import Fault, Play, Sampler, Scene, agents, fine, outcome, tokens
from tinker_cookbook.renderers import Message
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.rollout_runner import run_rollout

from evert import ChatAgentEnv

YES = tokens("Yes.")
LONG = "word " * 60_000


talks, talks_in_a_thread = agents(3)
ponders, ponders_in_a_thread = agents(2, pause=0.1)


async def says_much(client: Any, scene: Scene) -> float:
    text = await scene.ask(client)
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text}]
    await client.chat.completions.create(messages=[*messages, {"role": "user", "content": LONG}])
    return 1.0


async def thinks(client: Any, scene: Scene) -> float:
    for _ in range(3):
        await scene.ask(client)
        await asyncio.sleep(0.02)
    return 1.0


@asynccontextmanager
async def begun(scene: Scene) -> AsyncIterator[ChatAgentEnv]:
    """Yield an Env whose agent waits for its first reply, and close it at the end."""
    env = scene.env()
    await env.initial_observation()
    yield env
    await env.close()


def given(seen: object) -> object:
    """Replace an observation with "given"."""
    return "given" if type(seen) is tuple else seen


# -- out of order ----------------------------------------------------------------------------------


def steps(*what: str) -> Play:
    async def play(scene: Scene) -> list[object]:
        env = scene.env()
        does: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
            "begin": env.initial_observation,
            "step": lambda: env.step(YES),
            "close": env.close,
            "inject": lambda: env.inject_messages([Message(role="user", content="Hurry!")]),
        }
        seen = [await outcome(does[order]()) for order in what]
        await env.close()
        return ["closed" if result is None else given(result) for result in seen]

    return play


KINDS: tuple[tuple[Any, str, str], ...] = (
    (talks, "CancelledError", ""),
    (talks_in_a_thread, "EnvClosedError", ", before a thread"),
)

NONE_OUT = "EnvStateError: No observation is outstanding…"
OVER = "EnvClosedError: This ChatAgentEnv for … was closed…"
ORDERS: list[tuple[str, str, str]] = [
    ("step", NONE_OUT, ""),
    ("inject", NONE_OUT, ""),
    ("close", "closed", ""),
    ("close, begin", f"closed; {OVER}", ""),
    ("close, step", f"closed; {OVER}", ""),
    ("close, close", "closed; closed", ""),
    ("begin, begin, step", "given; EnvStateError: …called twice…; goes on", "Yes.; …"),
    ("begin, close, step", f"given; closed; {OVER}", "{refused}"),
    ("begin, close, inject", f"given; closed; {OVER}", "{refused}"),
    ("begin, close, close", "given; closed; closed", "{refused}"),
    ("begin, step, close, step", f"given; goes on; closed; {OVER}", "Yes.; {refused}"),
    ("begin, close, begin", "given; closed; EnvStateError: …called twice…", "{refused}"),
    ("begin, inject, step", "given; given; goes on", "Yes.; {refused}"),
    ("begin, step, step, step, step", f"given; goes on; goes on; … 1; {NONE_OUT}", "…Yes."),
    ("begin, step, step, step, inject", f"given; goes on; goes on; … 1; {NONE_OUT}", "…Yes."),
    ("begin, step, step, step, close", "given; goes on; goes on; completed 1; closed", "…Yes."),
]

OUT_OF_ORDER = [
    Fault(name=f"the trainer does {order}{place}", moment="in any order", agent=agent,
        play=steps(*order.split(", ")), trainer_sees=trainer,
        agent_sees=calls.replace("{refused}", refused))
    for order, trainer, calls in ORDERS
    for agent, refused, place in KINDS
]  # fmt: skip


async def steps_twice_at_once(scene: Scene) -> list[object]:
    async with begun(scene) as env:
        return [*await asyncio.gather(outcome(env.step(YES)), outcome(env.step(YES)))]


async def begins_twice_at_once(scene: Scene) -> list[object]:
    env = scene.env()
    seen = await asyncio.gather(*(outcome(env.initial_observation()) for _ in range(2)))
    await env.close()
    return [given(result) for result in seen]


async def closes_five_times_at_once(scene: Scene) -> list[object]:
    async with begun(scene) as env:
        waiting = asyncio.create_task(outcome(env.step(YES)))
        await asyncio.sleep(0)
        await asyncio.gather(*(env.close() for _ in range(5)))
        return [await waiting]


async def clears_every_stop(scene: Scene) -> object:
    async def clear(*about: Any) -> None:
        return None

    names = ("on_turn_begin", "on_stop_reason", "on_grade", "on_artifacts")
    hooks: Any = SimpleNamespace(**dict.fromkeys(names, clear))
    return await run_rollout(fine(), scene.env(), hooks=hooks)


# -- cancellation ----------------------------------------------------------------------------------


def cancelled(moment: str, after: int) -> Play:
    """Return a trainer that cancels a call after some loop iterations and then closes the Env."""

    async def play(scene: Scene) -> list[object]:
        env = scene.env()
        if moment != "begin":
            await env.initial_observation()
        does = env.initial_observation() if moment == "begin" else env.step(YES)
        task = asyncio.ensure_future(outcome(does))
        for _ in range(after):
            await asyncio.sleep(0)
        task.cancel()
        seen = await task
        if moment == "close":
            closing = asyncio.ensure_future(env.close())
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait({closing})
        await env.close()
        return [given(seen)]

    return play


async def cancelled_and_stepped_again(scene: Scene) -> list[object]:
    """Cancel a step after its action was delivered, while the agent is working, and step again."""
    async with begun(scene) as env:
        task = asyncio.ensure_future(outcome(env.step(YES)))
        await asyncio.sleep(0.005)
        task.cancel()
        return [await task, await outcome(env.step(YES))]


def limited(**limits: float) -> Play:
    async def play(scene: Scene) -> object:
        env = scene.env()
        try:
            return await run_rollout(Slow(), env, limits=RolloutLimits(**limits))  # type: ignore[arg-type]
        finally:
            await env.close()

    return play


class Slow(Sampler):
    def __init__(self) -> None:
        super().__init__(lambda prompt: "Fine.")

    async def __call__(self, *args: Any, **options: Any) -> Any:
        if self.actions:
            await asyncio.Event().wait()
        return await super().__call__(*args, **options)


def while_rendering(end: str) -> Play:
    """Return a trainer that closes the Env or cancels a step while its prompt is tokenised."""

    async def play(scene: Scene) -> list[object]:
        async with begun(scene) as env:
            task = asyncio.ensure_future(outcome(env.step(YES)))
            for _ in range(5):
                await asyncio.sleep(0)
            if end == "close":
                await env.close()
            else:
                task.cancel()
            return [await task]

    return play


# -- other event loops and threads -----------------------------------------------------------------


async def steps_on_another_loop(scene: Scene) -> list[object]:
    async with begun(scene) as env:
        elsewhere = await asyncio.to_thread(lambda: asyncio.run(outcome(env.step(YES))))
        return [elsewhere, await outcome(env.step(YES))]


async def closes_on_another_loop(scene: Scene) -> list[object]:
    async with begun(scene) as env:
        task = asyncio.ensure_future(outcome(env.step(YES)))
        await asyncio.sleep(0)
        await asyncio.to_thread(lambda: asyncio.run(env.close()))
        return [await task]


async def closes_after_its_loop(scene: Scene) -> list[object]:
    env = scene.env()
    await asyncio.to_thread(lambda: asyncio.run(outcome(env.initial_observation())))
    seen = await outcome(env.step(YES))
    await env.close()
    return [seen, await outcome(env.step(YES))]


@contextmanager
def warned() -> Iterator[list[str]]:
    """Yield a list to which the block's warnings are added when the block ends."""
    warnings_seen: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield warnings_seen
    warnings_seen += [f"{warning.category.__name__}: {warning.message}" for warning in caught]


def drops(where: Callable[[Callable[[], None]], Awaitable[None]]) -> Play:
    """Return a trainer that drops its Env without closing it."""

    async def play(scene: Scene) -> str:
        envs = [scene.env()]
        await envs[0].initial_observation()
        with warned() as messages:
            await where(envs.clear)
            await asyncio.sleep(0.02)
        return "; ".join(messages)

    return play


async def here(drop: Callable[[], None]) -> None:
    drop()
    gc.collect()


async def in_a_thread(drop: Callable[[], None]) -> None:
    thread = threading.Thread(target=drop)
    thread.start()
    await asyncio.to_thread(thread.join)


async def drops_an_unused_env(scene: Scene) -> str:
    with warned() as messages:
        scene.env()
        gc.collect()
    return f"{len(messages)} warnings"


CLOSED = "EnvClosedError: …"
DROPPED = "ResourceWarning: A ChatAgentEnv for … was garbage-collected while its agent was still…"

OTHERS: list[tuple[str, str, Any, Play, str, str]] = [
    ("clears the stop reason after the agent has ended", "after return", talks, clears_every_stop,
        "EnvStateError: …continue an episode whose agent has ended…",
        "Fine.; Fine.; Fine."),
    ("cancels a step and takes another", "while cancelled", thinks, cancelled_and_stepped_again,
        f"CancelledError: ; {NONE_OUT}", "Yes."),
    *(
        (f"{name}{place}", "in step", agent, play, CLOSED, calls)
        for name, play in (
            ("closes five times concurrently", closes_five_times_at_once),
            ("closes on another loop", closes_on_another_loop),
        )
        for agent, place, calls in (
            (ponders, "", "Yes."),
            (ponders_in_a_thread, ", before a thread", "Yes.; EnvClosedError"),
        )
    ),
    ("closes while a long prompt is tokenised", "in rendering", says_much, while_rendering("close"),
        CLOSED, "Yes."),
    ("cancels a step whose prompt is tokenised", "in rendering", says_much,
        while_rendering("cancel"), "CancelledError: ", "Yes."),
]  # fmt: skip

FOR_BOTH: list[tuple[str, str, Play, str, str]] = [
    ("steps twice concurrently", "in step", steps_twice_at_once, f"goes on; {NONE_OUT}",
        "Yes.; {refused}"),
    ("begins twice concurrently", "before the first call", begins_twice_at_once,
        "given; EnvStateError: …called twice…", "{refused}"),
    *(
        (f"cancels a {what} after {turns} loop iterations", "while cancelled",
            cancelled(moment, turns), "…", calls)
        for what, moment, calls in (("step", "step", "Yes.…"), ("beginning", "begin", "…"))
        for turns in (1, 2, 3, 5)
    ),
    ("cancels a close", "in close", cancelled("close", 5), "…", "Yes.…"),
    ("runs out of time", "in sampling", limited(rollout_timeout_seconds=0.05),
        "rollout_timeout 0 in 1", "Fine.; {refused}"),
    ("waits too long for a sample", "in sampling", limited(sampling_turn_timeout_seconds=0.05),
        "SamplingTurnTimeoutError: …", "Fine.; {refused}"),
    ("steps on another loop", "in step", steps_on_another_loop,
        "EnvStateError: …stepped on a different event loop…; goes on", "Yes.; {refused}"),
    ("closes after its loop has stopped", "in close", closes_after_its_loop,
        f"EnvStateError: …stepped on a different event loop…; {OVER}", "{refused}"),
    ("drops the Env", "between calls", drops(here), DROPPED, "{refused}"),
    ("drops the Env in a thread", "between calls", drops(in_a_thread), DROPPED, "{refused}"),
    ("drops an unused Env", "before the first call", drops_an_unused_env, "0 warnings", ""),
]  # fmt: skip

FAULTS = [
    *OUT_OF_ORDER,
    *(
        Fault(name=f"the trainer {name}", moment=moment, agent=agent, play=play,
            trainer_sees=trainer, agent_sees=calls)
        for name, moment, agent, play, trainer, calls in OTHERS
    ),
    *(
        Fault(name=f"the trainer {name}{place}", moment=moment, agent=agent, play=play,
            trainer_sees=trainer, agent_sees=calls.replace("{refused}", refused))
        for name, moment, play, trainer, calls in FOR_BOTH
        for agent, refused, place in KINDS
    ),
]  # fmt: skip
