"""Episodes under Gymnasium: how they end, and that they leave nothing behind."""

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from anyio.from_thread import BlockingPortal
from tests.kit import (
    Logs,
    Patch,
    ask,
    ask_blocking,
    asks,
    asks_blocking,
    assistant,
    call,
    tool,
    user,
)
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits

from evert.bridge.clients.client import AgentClient, BlockingAgentClient
from evert.bridge.episode.agent import Outcome
from evert.bridge.errors import AgentError, AgentTimeoutError, EnvStateError
from evert.envs.as_gymnasium import loop
from evert.envs.as_gymnasium.env import AgentGymEnv
from evert.envs.as_gymnasium.vector import AgentVectorEnv
from evert.envs.games import EnvArgumentError

Leftovers = Callable[[], dict[str, list[Any]]]
EITHER: list[tuple[Any, Any]] = [(AgentGymEnv, "x"), (partial(AgentVectorEnv, 3), ["x"] * 3)]
"""A single environment and three in parallel, each with a matching action."""


async def endless_agent(client: AgentClient) -> float:
    messages = [user("Well?")]
    while True:
        messages += [assistant(await ask(client, *messages)), user("And?")]
        client.reward(0.5)


def endless_blocking_agent(client: BlockingAgentClient) -> float:
    while True:
        ask_blocking(client)


def step_of(agent: Any, action: Any = "x", **options: Any) -> tuple[float, bool, bool, Any]:
    """Take one step in an agent's environment; return everything except the observation."""
    env = AgentGymEnv(agent, **options)
    env.reset()
    try:
        return env.step(action)[1:]
    finally:
        env.close()


# -- how episodes end ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "steps", "reason"),
    [
        ({"max_turns": 3}, 3, "max_turns"),
        ({"max_sampled_tokens": 10}, 3, "max_sampled_tokens"),
        ({"max_trajectory_tokens": 60}, 3, "max_tokens"),
    ],
)
def test_running_out_of_budget_truncates_the_episode(
    limits: dict[str, int], steps: int, reason: str
) -> None:
    env = AgentGymEnv(endless_agent, max_turns=5, limits=RolloutLimits(**limits))
    env.reset()
    steps_taken, truncated, info = 0, False, dict[str, Any]()
    while not truncated:
        steps_taken += 1
        observation, _, terminated, truncated, info = env.step("No.")
        assert observation in env.observation_space
        assert not terminated
    assert (steps_taken, info["stop_reason"]) == (steps, reason)
    with pytest.raises(gymnasium.error.ResetNeeded, match=f"ended \\({reason}\\)"):
        env.step("No.")
    env.reset()
    assert env.step("No.")[2:4] == (False, False)
    env.close()


async def strict_agent(client: AgentClient) -> float:
    """Ask for JSON; a reply that is not JSON leads to a retry."""
    await ask(client, "Give me JSON.", response_format={"type": "json_object"})
    return 1.0


def test_format_retries_count_towards_the_budgets() -> None:
    _, terminated, truncated, info = step_of(strict_agent, "no json", max_turns=1)
    assert (terminated, truncated, info["stop_reason"]) == (False, True, "max_turns")

    first = AgentGymEnv(strict_agent)
    prompt = len(first.reset()[1]["tokens"])
    first.close()
    for room in (2, 3, 20, 60):
        budget = prompt + room
        env = AgentGymEnv(strict_agent, limits=RolloutLimits(max_trajectory_tokens=budget))
        _, info = env.reset()
        terminated = truncated = False
        while not (terminated or truncated):
            budget_left = info["max_tokens"]
            assert budget_left == budget - len(info["tokens"]) > 0
            *_, terminated, truncated, info = env.step("no json " * 5)
            assert len(info["action_tokens"]) <= budget_left
        assert terminated != truncated
        env.close()


async def hasty_agent(client: AgentClient) -> Outcome:
    await ask(client)
    return Outcome(0.5, truncated=True)


async def failing_agent(client: AgentClient, task: int) -> float:
    if task == 0:
        raise OSError("no such file")
    await ask(client)
    if task == 1:
        raise KeyError("lost")
    return 1.0


def test_each_way_to_end_an_episode_has_its_stop_reason() -> None:
    policy = ParseErrorPolicy(max_consecutive=0, terminal_reward=-2.0)
    refusing: dict[str, Any] = {"level": "tokens", "parse_error_policy": policy}
    cut = step_of(hasty_agent)
    scored = step_of(failing_agent, tasks=[1], on_agent_error=-5.0)
    refused = step_of(endless_agent, [300, 274], **refusing)  # no end-of-turn token

    assert [(*step[:3], step[3]["stop_reason"]) for step in (cut, scored, refused)] == [
        (0.5, False, True, "truncated"),
        (-5.0, True, False, "agent_error"),
        (-2.0, True, False, "parse_error"),
    ]
    assert refused[3]["messages"][-1]["role"] == "assistant"


async def brief_agent(client: AgentClient) -> float:
    completion = await call(client, max_tokens=4)
    client.log(finish=completion.choices[0].finish_reason)
    return 1.0


def test_a_reply_is_truncated_at_the_agents_token_limit() -> None:
    env = AgentGymEnv(brief_agent, level="tokens")
    for action, finish in (([300] * 10, "length"), ([300, 300, 300, 505], "stop")):
        _, info = env.reset()
        assert info["max_tokens"] == 4
        info = env.step(action)[4]
        assert (info["action_tokens"], info["logs"]["finish"]) == (action[:4], finish)
    env.close()


async def tool_agent(client: AgentClient) -> float:
    completion = await call(client, tools=[tool("look")])
    return float(len(completion.choices[0].message.tool_calls or ()))


def test_tools_are_offered_and_can_be_called() -> None:
    env = AgentGymEnv(tool_agent, render_mode="ansi")
    _, info = env.reset()
    assert info["tools"][0]["function"]["name"] == "look"
    reply = '<tool_call>\n{"name": "look", "arguments": {"at": "it"}}\n</tool_call>'
    observation, reward, _, _, info = env.step(reply)
    assert reward == 1.0
    assert info["messages"][-1]["tool_calls"][0]["function"]["name"] == "look"
    assert observation in env.observation_space
    assert '-> look({"at": "it"})' in str(env.render())
    env.close()


def test_an_agents_error_ends_only_its_episode() -> None:
    env = AgentGymEnv(failing_agent, [0, 1, 2])
    with pytest.raises(AgentError, match="raised OSError"):
        env.reset(options={"task": 0})
    with pytest.raises(gymnasium.error.ResetNeeded, match="ended with AgentError"):
        env.step("x")
    env.reset(options={"task": 1})
    with pytest.raises(AgentError, match="raised KeyError") as caught:
        env.step("x")
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(gymnasium.error.ResetNeeded, match="ended with AgentError"):
        env.step("x")
    env.reset(options={"task": 2})
    assert env.step("x")[1] == 1.0
    env.close()


async def silent_agent(client: AgentClient) -> float:
    return 1.0


async def stuck_agent(client: AgentClient) -> float:
    await ask(client)
    await asyncio.sleep(60)
    return 1.0


def test_an_agent_that_makes_no_call_or_hangs_is_an_error() -> None:
    with pytest.raises(EnvStateError, match="ended before its first observation"):
        step_of(silent_agent)
    with pytest.raises(AgentTimeoutError, match="agent_timeout"):
        step_of(stuck_agent, agent_timeout=0.05)


@pytest.mark.parametrize("make", [AgentGymEnv, partial(AgentVectorEnv, 1)], ids=["one", "many"])
def test_stepping_an_environment_on_its_own_loop_is_an_error(make: Any) -> None:
    async def nested_agent(client: AgentClient) -> float:
        inner = make(agent=endless_agent)
        try:
            inner.reset()
        finally:
            inner.close()
        return 0.0

    env = make(agent=nested_agent)
    with pytest.raises(AgentError, match=r"asyncio\.to_thread"):
        env.reset()
    env.close()


@pytest.mark.parametrize(("make", "action"), EITHER, ids=["one", "many"])
def test_ctrl_c_in_a_step_ends_the_episodes(make: Any, action: Any, leftovers: Leftovers) -> None:
    env = make(agent=stuck_agent)
    env.reset()
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        env.step(action)
    timer.join()
    with pytest.raises(gymnasium.error.ResetNeeded, match="ended with KeyboardInterrupt"):
        env.step(action)
    env.reset()
    env.close()
    assert leftovers() == {}


def test_ctrl_c_during_a_handover_cancels_the_work(monkeypatch: Patch) -> None:
    given_up = threading.Event()
    hand_over = BlockingPortal.start_task_soon

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            given_up.set()

    def interrupted(self: BlockingPortal, *args: Any) -> None:
        hand_over(self, *args)
        raise KeyboardInterrupt

    hold = loop.Loop(work)
    monkeypatch.setattr(BlockingPortal, "start_task_soon", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hold.run(work)
    monkeypatch.undo()
    assert given_up.wait(10.0)
    hold.leave()


async def interrupting_agent(client: AgentClient) -> float:
    await ask(client)
    raise KeyboardInterrupt


def test_an_agents_keyboard_interrupt_ends_its_step_but_not_the_loop() -> None:
    other = AgentGymEnv(endless_agent)
    other.reset()
    with pytest.raises(KeyboardInterrupt):
        step_of(interrupting_agent)
    assert other.step("x")[1] == 0.5
    other.close()


async def forked_tongue_agent(client: AgentClient) -> float:
    await asyncio.gather(ask(client, "left"), ask(client, "right"))
    return 1.0


def test_concurrent_calls_are_observed_one_by_one() -> None:
    env = AgentGymEnv(forked_tongue_agent)
    left, right = ({"role": "user", "content": text} for text in ("left", "right"))
    assert env.reset()[0] == (left,)
    assert env.step("x")[0] == (right,)
    assert env.step("y")[0] == (right, {"role": "assistant", "content": "y"})
    env.close()


# -- leftovers -----------------------------------------------------------------------------------

finished: list[str] = []


async def tidy_agent(client: AgentClient) -> float:
    try:
        return await endless_agent(client)
    finally:
        finished.append("tidied up")


@pytest.mark.parametrize(("make", "action"), EITHER, ids=["one", "many"])
@pytest.mark.parametrize("agent", [tidy_agent, endless_blocking_agent])
def test_close_reset_and_deletion_in_mid_episode_leave_nothing_behind(
    agent: Any, make: Any, action: Any, leftovers: Leftovers
) -> None:
    tidied = (1 if make is AgentGymEnv else 3) * (agent is tidy_agent)
    finished.clear()
    env = make(agent=agent)
    env.reset()
    env.step(action)
    assert "evert gymnasium" in [thread.name for thread in threading.enumerate()]
    env.close()
    env.close()
    assert leftovers() == {}
    assert len(finished) == tidied
    with pytest.raises(gymnasium.error.ResetNeeded, match="was closed"):
        env.step(action)

    env.reset()  # starts a new episode
    before = threading.active_count()
    for _ in range(5):
        env.reset()
        env.step(action)
    assert threading.active_count() == before
    assert len(finished) == 6 * tidied
    env.close()
    assert leftovers() == {}

    env.reset()
    del env
    gc.collect()
    assert leftovers() == {}


def test_closing_the_last_environment_stops_the_event_loop(leftovers: Leftovers) -> None:
    AgentGymEnv(endless_agent).close()  # no episode was started
    assert leftovers() == {}
    envs = [AgentGymEnv(endless_agent) for _ in range(3)]
    for env in envs:
        env.reset()
    for env in envs[:-1]:
        env.close()
    assert envs[-1].step("x")[1] == 0.5
    envs[-1].close()
    assert leftovers() == {}


may_end = threading.Event()


async def stubborn_agent(client: AgentClient) -> float:
    """A broken agent that resists cancellation."""
    with contextlib.suppress(asyncio.CancelledError):
        await ask(client)
    while not may_end.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)
    return 0.0


def test_a_loop_that_does_not_stop_is_reported(
    leftovers: Leftovers, monkeypatch: Patch, caplog: Logs
) -> None:
    monkeypatch.setattr(loop, "PATIENCE", 0.2)
    may_end.clear()
    with pytest.raises(AgentTimeoutError):
        step_of(stubborn_agent, close_timeout=0.05, agent_timeout=0.05)
    assert "evert's event loop did not stop within 0.2 s, so its thread" in caplog.text
    assert step_of(endless_agent)[0] == 0.5
    may_end.set()
    assert leftovers() == {}


# -- loops, threads, processes -------------------------------------------------------------------


async def test_an_environment_works_inside_a_running_event_loop() -> None:
    env = AgentGymEnv(endless_agent)
    env.reset()
    assert env.step("x")[1] == 0.5
    assert (await asyncio.to_thread(env.step, "x"))[1] == 0.5
    env.close()


PROCESSES = """
import multiprocessing, gymnasium

def child(env, answers):
    try:
        env.step("I am 5")
    except gymnasium.error.ResetNeeded as error:
        answers.put("forked" in str(error))
    env.reset(options={"task": 5})
    answers.put(env.step("I am 5")[1])
    env.close()

if __name__ == "__main__":
    env = gymnasium.make("evert:evert/Identity-v0")  # imports evert
    env.reset(options={"task": 5})
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=child, args=(env, answers))
    process.start()
    print(answers.get(timeout=800), answers.get(timeout=120))
    process.join()
    print(process.exitcode, env.step("I am 5")[1])

    gymnasium.make_vec("evert:evert/Identity-v0").close()
    envs = gymnasium.make_vec("evert.envs:evert/Identity-v0", 2, vectorization_mode="async",
                              vector_kwargs={"shared_memory": False}, tasks=[5])
    envs.reset(seed=1)
    print(envs.step(["I am 5", "I am not 5"])[1])
    envs.close()
    env.reset()  # left open: the process must exit anyway
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
def test_a_forked_child_starts_its_own_loop_and_an_open_environment_blocks_no_exit() -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROCESSES], capture_output=True, text=True, timeout=800
    )
    assert result.stdout.splitlines() == ["True 1.0", "0 1.0", "[ 1. -1.]"], result.stderr
    assert result.stderr == ""


# -- invalid arguments ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "token"}, r"level='token' is not supported.*Did you mean 'tokens'\?"),
        ({"level": None}, "expected one of 'messages', 'tokens'"),
        ({"max_turns": 0}, "max_turns is 0; .* at least 1, or None for no limit"),
        ({"max_turns": "3"}, "max_turns is '3'"),
        ({"limit": None}, r"Unknown argument 'limit'.*Did you mean 'limits'\?"),
        ({"render_mode": "rgb_array"}, r"render_mode='rgb_array'.*None, 'ansi', 'human'"),
    ],
)
def test_an_invalid_argument_is_named_in_the_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvArgumentError, match=message):
        AgentGymEnv(asks, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": 5000}, "task 5000 is not one of this environment's 1000 tasks.*tasks=\\[5000\\]"),
        ({"task": "5"}, "task '5' is not one of"),
        ({"tsak": 5}, r"Unknown reset option 'tsak'.*Did you mean 'task'\?"),
    ],
)
def test_an_invalid_reset_option_raises_and_the_episode_continues(
    options: dict[str, Any], message: str
) -> None:
    env = gymnasium.make("evert/Identity-v0")
    env.reset(options={"task": 3})
    with pytest.raises(EnvArgumentError, match=message):
        env.reset(options=options)
    assert env.step("I am 3")[1] == 1.0
    env.close()
    with pytest.raises(EnvArgumentError, match="takes no task"):
        AgentGymEnv(endless_agent).reset(options={"task": 1})


@pytest.mark.parametrize(
    "tasks", [[np.array([1, 2]), np.array([3])], [{"a": [1]}, {"a": [2]}]], ids=["arrays", "dicts"]
)
def test_tasks_may_be_of_any_type(tasks: list[Any]) -> None:
    env = AgentGymEnv(lambda client, task: asks_blocking(client), tasks)
    for task in tasks:
        _, info = env.reset(options={"task": task})
        assert str(info["task"]) == str(task)
        assert info["task"] is not task
        assert not isinstance(task, dict) or info["task"]["a"] is not task["a"]
    env.close()


LEGAL = {"messages": "I am 3", "tokens": (505,)}
TEXT = r"the text of the reply.*level='tokens'"
IDS = "a sequence of token ids"
NO_ACTIONS: dict[str, list[tuple[Any, str]]] = {
    "messages": [*((action, TEXT) for action in (None, 3, b"bytes", ["a"], {"role": "assistant"},
        (1, 2))), ("\ud83d", "surrogate")],
    "tokens": [*((action, IDS) for action in (7, None, {1, 2})), ("I am 3",
        f"{IDS}; got 'I am 3' of type str"), ([1, "2"], "Token 1 of the action is '2' of type str"),
        ([True], "Token 0 of the action is True of type bool"), (np.array([0.5]),
        "Token 0 of the action is 0.5 of type float"), (np.array([[1, 2]]),
        "Token 0 of the action is .* of type list"), ([1, 512],
        r"Token 1 of the action is 512, which is outside the vocabulary \(0\.\.511"), ([-1],
        "Token 0 of the action is -1")],
}  # fmt: skip


@pytest.mark.parametrize("level", NO_ACTIONS)
def test_an_invalid_action_is_refused_and_the_episode_continues(level: Any) -> None:
    env = gymnasium.make("evert/Identity-v0", level=level, tasks=[3], disable_env_checker=True)
    for action, message in NO_ACTIONS[level]:
        env.reset()
        with pytest.raises(gymnasium.error.InvalidAction, match=message):
            env.step(action)
        assert env.step(LEGAL[level])[2], action
    env.close()
