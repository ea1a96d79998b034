"""Faults in groups, seats, frozen models and commands."""

import asyncio
import contextlib
import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.faults.scene import Fault, Play, Raising, Scene, agents, fine, outcome, throw, tokens
from tinker_cookbook.completers import MessageCompleter, TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.rollout_strategy import (
    FailFast,
    MinViableGroup,
    RetryOnFailure,
    RolloutStrategy,
)
from tinker_cookbook.rl.rollouts import do_group_rollout, do_single_rollout

from evert import ChatAgentEnv, ChatAgentGroupBuilder, Outcome, ProcessAgent, RemoteModel

SEATS = ("player", "judge")
QUICK: dict[str, Any] = {"close_timeout": 0.2, "agent_timeout": 5.0}


def grouped(strategy: RolloutStrategy | None = None, size: int = 3, **options: Any) -> Play:
    async def play(scene: Scene) -> object:
        builder_options = {**QUICK, **scene.fault.options, **options}
        builder = ChatAgentGroupBuilder(scene.fault.agent, scene, size, **builder_options)
        return await do_group_rollout(builder, scene.fault.policy(), strategy)

    return play


# -- groups ----------------------------------------------------------------------------------------


def _is_second(scene: Scene) -> bool:
    scene.kept.append(None)
    return len(scene.kept) == 2


async def one_in_three_raises(client: Any, scene: Scene) -> float:
    second = _is_second(scene)
    await scene.ask(client)
    if second:
        raise ValueError("boom")
    await scene.ask(client)
    return 1.0


def one_in_three_raises_in_a_thread(client: Any, scene: Scene) -> float:
    second = _is_second(scene)
    scene.ask_blocking(client)
    if second:
        raise ValueError("boom")
    scene.ask_blocking(client)
    return 1.0


always_raises, _ = agents(1, lambda: throw(ValueError("boom")))
talks, _ = agents(1)
BOOM = "AgentError.ValueError: …boom"
OK = "completed 1 in 2"
MEMBERS = [
    Fault(name=f"one of three raises{place} under {type(strategy).__name__}", moment="in a group",
        agent=agent, play=grouped(strategy), trainer_sees=trainer, agent_sees="Fine.…")
    for agent, place in (
        (one_in_three_raises, ""),
        (one_in_three_raises_in_a_thread, " in a thread"),
    )
    for strategy, trainer in (
        (FailFast(), BOOM),
        (RetryOnFailure(max_retries=1), f"{OK} | {OK} | {OK} | (AgentError.ValueError)"),
        (MinViableGroup(min_successful=2, max_retries=0), f"{OK} | {OK} | (AgentError.ValueError)"),
    )
] + [
    Fault(name=f"all raise under {type(strategy).__name__}", moment="in a group",
        agent=always_raises, play=grouped(strategy), trainer_sees=trainer, agent_sees="Fine.…")
    for strategy, trainer in (
        (FailFast(), BOOM),
        (RetryOnFailure(max_retries=2), BOOM),
        (MinViableGroup(min_successful=1, max_retries=1), "AllTrajectoriesFailedError: …"),
    )
]  # fmt: skip

REWARDS: list[tuple[str, Callable[..., Any], str]] = [
    ("raises", lambda group: throw(KeyError("no reward")), "KeyError: 'no reward'"),
    ("returns too few", lambda group: [1.0], "InvalidAgentError: …1 rewards for 3 trajectories…"),
    ("returns too many", lambda group: [1.0] * 4, "InvalidAgentError: …4 rewards for 3…"),
    ("returns NaN", lambda group: [math.nan] * 3, "RewardError: …expected a finite number…"),
    ("returns text", lambda group: ["1"] * 3, "RewardError: …expected a finite number…"),
    ("returns None", lambda group: None, "InvalidAgentError: The group reward … returned None…"),
    ("returns a number", lambda group: 1.0, "InvalidAgentError: The group reward … returned 1.0…"),
    ("empties the group", lambda group: group.clear(), "InvalidAgentError: …returned None…"),
]

REWARDED = [
    Fault(name=f"the group reward {what}", moment="in reward", agent=talks,
        play=grouped(group_reward=reward), trainer_sees=trainer, agent_sees="Fine.; Fine.; Fine.")
    for what, reward, trainer in REWARDS
]  # fmt: skip


def seats_agent(what: str) -> Any:
    """Return an agent with two seats that misbehaves as described."""

    async def agent(client: Any, scene: Scene) -> Any:
        player, judge = (client.seat(seat) for seat in SEATS)
        if what == "dies before its first call":
            raise ValueError("boom")
        await scene.ask(player)
        if what == "dies between the seats":
            raise ValueError("boom")
        await scene.ask(judge)
        if what == "hangs":
            await asyncio.Event().wait()
        if what == "asks for another seat":
            client.seat("nobody")
        returns: dict[str, Any] = {
            "rewards one seat only": {"player": 1.0},
            "rewards a stranger": {"player": 1.0, "judge": 0.5, "nobody": 1.0},
            "gives a seat no number": {"player": 1.0, "judge": None},
            "rewards nobody": {},
            "returns an Outcome a seat": {seat: Outcome(0.5) for seat in SEATS},
        }
        return returns.get(what, 1.0)

    return agent


BOTH = "Fine.; Fine."
SEATED = [
    Fault(name=f"the agent of two seats {what}", moment="in seats", agent=seats_agent(what),
        play=grouped(size=1, seats=SEATS, agent_timeout=0.1), trainer_sees=trainer,
        agent_sees=calls)
    for what, trainer, calls in (
        ("dies before its first call", BOOM, ""),
        ("dies between the seats", BOOM, "Fine."),
        ("hangs", "AgentTimeoutError: …", BOTH),
        ("asks for another seat", "AgentError.InvalidAgentError: …no seat 'nobody'…", BOTH),
        ("rewards one seat only", "RewardError: …its seats are player, judge…", BOTH),
        ("rewards a stranger", "RewardError: …its seats are player, judge…", BOTH),
        ("gives a seat no number", "RewardError: …ended without a reward…", BOTH),
        ("rewards nobody", "RewardError: …its seats are player, judge…", BOTH),
        ("returns an Outcome a seat", "completed 0.5 in 1 | completed 0.5 in 1", BOTH),
    )
]  # fmt: skip


async def one_seat_alone(scene: Scene) -> object:
    builder = ChatAgentGroupBuilder(scene.fault.agent, scene, 1, seats=SEATS, **QUICK)
    [player, _] = await builder.make_envs()
    task = asyncio.create_task(outcome(player.initial_observation()))
    await asyncio.sleep(0.01)
    await builder.cleanup()
    return await task


SEATED += [
    Fault(name="the policy dies at one seat", moment="in seats", agent=seats_agent(""),
        policy=partial(Raising, RuntimeError), play=grouped(size=1, seats=SEATS),
        trainer_sees="RuntimeError: no engine", agent_sees="Fine.; CancelledError"),
    Fault(name="only one seat is played, then closed", moment="in seats", agent=seats_agent(""),
        play=one_seat_alone, trainer_sees="EnvClosedError: …"),
]  # fmt: skip

# -- frozen models ---------------------------------------------------------------------------------


class Judge(MessageCompleter):
    def __init__(self, what: Any) -> None:
        self._what = what

    async def __call__(self, messages: Any) -> Any:
        if self._what == "hang":
            await asyncio.Event().wait()
        if isinstance(self._what, BaseException):
            raise self._what
        return self._what


async def asks_a_judge(client: Any, scene: Scene) -> float:
    await scene.ask(client)
    with contextlib.suppress(Exception):
        await scene.ask(client, model="judge")
    await scene.ask(client)
    return 1.0


async def asks_a_judge_with_patience(client: Any, scene: Scene) -> float:
    await scene.ask(client)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(scene.ask(client, model="judge"), 0.02)
    await scene.ask(client)
    return 1.0


class Broken(TokenCompleter):
    async def __call__(self, *args: Any, **options: Any) -> TokensWithLogprobs:
        return TokensWithLogprobs(None, None)  # type: ignore[arg-type]


async def closed_after_one(scene: Scene) -> object:
    env = scene.env()
    await env.initial_observation()
    task = asyncio.create_task(outcome(env.step(tokens("Fine."))))
    await asyncio.sleep(0.02)
    await env.close()
    return await task


FROZEN = [
    Fault(name=f"the frozen model {what}", moment="in a call", agent=agent,
        options={"models": {"judge": model}}, trainer_sees="completed 1 in 2",
        agent_sees=f"Fine.; {ending}; Fine.")
    for what, model, agent, ending in (
        ("raises", Judge(ValueError("boom")), asks_a_judge, "ValueError"),
        ("is cancelled", Judge(asyncio.CancelledError()), asks_a_judge, "RuntimeError"),
        ("hangs", Judge("hang"), asks_a_judge_with_patience, "CancelledError"),
        ("returns nothing", Judge(None), asks_a_judge, "…Error"),
        ("returns no tokens", Broken(), asks_a_judge, "…Error"),
        ("has an unreachable address", RemoteModel("judge", "http://127.0.0.1:9/v1", timeout=30.0),
            asks_a_judge, "APIConnectionError"),
    )
] + [
    Fault(name="the frozen model hangs while the Env is closed", moment="in a call",
        agent=asks_a_judge, play=closed_after_one, options={"models": {"judge": Judge("hang")}},
        trainer_sees="EnvClosedError: …", agent_sees="Fine.; CancelledError")
]  # fmt: skip


def command(code: str) -> Any:
    return ProcessAgent([sys.executable, "-S", "-c", code])


async def run_command(scene: Scene) -> object:
    """Play a fault whose agent is a command. The command does not get the scene."""
    env = ChatAgentEnv(scene.fault.agent, "a task", **{**QUICK, **scene.fault.options})
    try:
        return await do_single_rollout(fine(), env)
    finally:
        await env.close()


COMMANDS = [
    Fault(name=f"the command {what}", moment="in a command", agent=agent, play=run_command,
        options={"agent_timeout": 5.0, **options}, trainer_sees=trainer)
    for what, agent, options, trainer in (
        ("does not exist", ProcessAgent(["no-such-program-anywhere"]), {},
            "AgentError.CommandError: …was not found…"),
        ("fails immediately", command("raise SystemExit(3)"), {},
            "AgentError.CommandError: …exited with status 3 before it called the model…"),
        ("kills itself", command("import os; os.kill(os.getpid(), 9)"), {},
            "AgentError.CommandError: …before it called the model…"),
        ("makes no call", command("pass"), {}, "completed 1 in 1"),
        ("hangs", command("import time; time.sleep(60)"), {"agent_timeout": 0.5},
            "AgentTimeoutError: …"),
        ("hangs and is scored", command("import time; time.sleep(60)"),
            {"agent_timeout": 0.5, "on_agent_error": -1.0}, "agent_timeout -1 in 1"),
        ("leaves a process behind", command("import subprocess as s; s.Popen(['sleep', '60'])"),
            {}, "completed 1 in 1"),
    )
]  # fmt: skip

FAULTS = [*MEMBERS, *REWARDED, *SEATED, *FROZEN, *COMMANDS]
