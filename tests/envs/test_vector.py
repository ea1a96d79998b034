"""Many concurrent episodes as a single Gymnasium vector environment."""

import asyncio
import copy
import math
import pickle
import random
import threading
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tests.kit import Logs, ask, ask_blocking, assistant, user

from evert.bridge.clients.client import AgentClient, BlockingAgentClient
from evert.bridge.episode.agent import Outcome
from evert.bridge.errors import AgentError
from evert.envs.as_gymnasium.env import LEVELS, AgentGymEnv
from evert.envs.as_gymnasium.vector import AgentVectorEnv
from evert.envs.games import EnvArgumentError

WORDS = ["", "Guess: 512", "Guess: 7", "Guess: 8", "I am 7", "<|im_end|>", "日本語\n"]


async def wandering_agent(client: AgentClient, task: int) -> float | Outcome:
    """Ask until a reply contains the task, for a few turns at most; log values of various types."""
    messages = [user(f"Say {task}.")]
    for turn in range(client.rng.randint(1, 5)):
        reply = await ask(client, *messages)
        messages += [assistant(reply), user("And?")]
        client.reward(len(reply) / 10)
        if str(task) in reply:
            client.log(found=turn)
            return 1.0
    client.metric("lost", 1)
    return Outcome(-1.0, truncated=client.rng.random() < 0.5)


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal in type, shape and value. NaN equals NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and all(same(a, b) for a, b in zip(one.tolist(), other.tolist(), strict=True))
        )
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


# -- compared with Gymnasium --------------------------------------------------------------------


@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize("mode", AutoresetMode)
def test_steps_equal_those_of_gymnasiums_own_vector_environment(
    mode: AutoresetMode, limit: int | None
) -> None:
    options: Any = {"agent": wandering_agent, "tasks": [7, 8, 9], "max_turns": 4}

    def make() -> gymnasium.Env[Any, Any]:
        env: gymnasium.Env[Any, Any] = AgentGymEnv(**options)
        return env if limit is None else gymnasium.wrappers.TimeLimit(env, limit)

    theirs = SyncVectorEnv([make] * 3, autoreset_mode=mode)
    ours = AgentVectorEnv(3, autoreset_mode=mode, max_episode_steps=limit, **options)
    assert ours.metadata == theirs.metadata
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert same(ours.reset(seed=11), theirs.reset(seed=11))
    draw = random.Random(5)
    ends = 0
    for _ in range(200 if limit is None else 60):
        actions = draw.choices(WORDS, k=3)
        step = ours.step(actions)
        assert same(step, theirs.step(actions))
        over = step[2] | step[3]
        ends += over.sum()
        if mode == AutoresetMode.DISABLED and over.any():
            mask = {"reset_mask": over}
            assert same(ours.reset(options=mask), theirs.reset(options=dict(mask)))
            assert "reset_mask" in mask
    assert ends > 50
    ours.close()
    theirs.close()


@pytest.mark.parametrize("level", LEVELS)
def test_make_vec_makes_a_vector_environment_at_both_levels(level: str) -> None:
    make: Any = partial(gymnasium.make_vec, "evert/GuessNumber-v0", 2, level=level)
    first, second = make("sync", disable_env_checker=True), make()
    assert isinstance(second, AgentVectorEnv)
    assert second.spec is not None
    assert (
        same(first.reset(seed=[3, None]), second.reset(seed=[3, None])) is False
    )  # the second seed is random
    assert same(first.reset(seed=[3, 4]), second.reset(seed=[3, 4]))
    first.action_space.seed(0)
    for _ in range(15):
        actions = first.action_space.sample()
        step = first.step(actions)
        assert same(step, second.step(actions))
        assert step[0] in first.observation_space
    first.close()
    second.close()


SHAPES = [np.array([1, 2]), np.array([3])]


async def numbers_agent(client: AgentClient, task: Any) -> float:
    await ask(client)
    client.log(number=task)
    return 0.0


def test_infos_keep_values_of_different_kinds_and_arrays_of_different_shapes() -> None:
    tasks = [1, 0.5, "a half"]
    envs = AgentVectorEnv(4, agent=numbers_agent, tasks=tasks)
    for _ in range(5):
        _, infos = envs.reset()
        logs = envs.step(["x"] * 4)[4]["logs"]["number"]
        assert set(logs) <= set(tasks)
        assert list(logs) == list(infos["task"])
    envs.close()
    arrays = AgentVectorEnv(4, agent=numbers_agent, tasks=SHAPES)
    _, infos = arrays.reset(seed=0)
    assert {str(task) for task in infos["task"]} == {str(task) for task in SHAPES}
    arrays.close()


# -- concurrency --------------------------------------------------------------------------------

N = 6
together = threading.Barrier(N)


async def meeting_agent(client: AgentClient) -> float:
    """Wait for all other episodes at the start and after each call."""
    await asyncio.to_thread(together.wait, 30.0)
    for _ in range(2):
        await ask(client)
        await asyncio.to_thread(together.wait, 30.0)
    return 1.0


def blocking_meeting_agent(client: BlockingAgentClient) -> float:
    together.wait(30.0)
    for _ in range(2):
        ask_blocking(client)
        together.wait(30.0)
    return 1.0


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("agent", [meeting_agent, blocking_meeting_agent])
def test_all_episodes_run_concurrently(agent: Any, mode: AutoresetMode) -> None:
    envs = AgentVectorEnv(N, agent=agent, autoreset_mode=mode)
    envs.reset()
    assert envs.step(["x"] * N)[1].sum() == 0
    _, rewards, terminated, *_ = envs.step(["x"] * N)
    assert (rewards.sum(), terminated.sum()) == (N, N)
    if mode == AutoresetMode.NEXT_STEP:
        envs.step([None] * N)
    if mode == AutoresetMode.DISABLED:
        envs.reset()
    assert envs.step(["x"] * N)[1].sum() == 0
    envs.close()


# -- failures -----------------------------------------------------------------------------------


async def fragile_agent(client: AgentClient, task: str) -> float:
    for _ in range(2):
        if task == "never begins":
            raise OSError("no such file")
        if await ask(client, task) == "fail":
            raise KeyError("lost")
    return 1.0


@pytest.mark.parametrize("mode", AutoresetMode)
def test_only_the_failed_episode_is_truncated(mode: AutoresetMode, caplog: Logs) -> None:
    envs = AgentVectorEnv(3, agent=fragile_agent, tasks=["go"], autoreset_mode=mode)
    first, _ = envs.reset()
    observations, rewards, terminated, truncated, infos = envs.step(["x", "fail", "x"])
    assert np.array_equal(rewards, [0, math.nan, 0], equal_nan=True)
    assert (terminated.tolist(), truncated.tolist()) == ([False] * 3, [False, True, False])
    final = infos["final_info"] if mode == AutoresetMode.SAME_STEP else infos
    assert isinstance(final["error"][1], AgentError)
    assert isinstance(final["error"][1].__cause__, KeyError)
    assert final["_error"].tolist() == [False, True, False]
    assert observations[1] == first[1]  # last observation, or first of the next episode
    assert "The episode of environment 1 failed" in caplog.text
    if mode == AutoresetMode.DISABLED:
        envs.reset(options={"reset_mask": truncated})
    assert envs.step(["x", "x", "x"])[2].tolist() == [True, False, True]
    envs.close()


@pytest.mark.parametrize("mode", AutoresetMode)
def test_an_episode_that_fails_at_its_start_ends_with_the_next_step(mode: AutoresetMode) -> None:
    tasks = ["go", "go", "never begins"]
    envs = AgentVectorEnv(4, agent=fragile_agent, tasks=tasks, autoreset_mode=mode)
    observations, infos = envs.reset(seed=0)
    errors = infos["_error"]
    assert 0 < errors.sum() < 4
    assert [not observation for observation in observations] == errors.tolist()
    _, rewards, terminated, truncated, _ = envs.step(["x"] * 4)
    assert np.isnan(rewards).tolist() == truncated.tolist() == errors.tolist()
    assert not terminated.any()
    episodes = 0
    for _ in range(20):  # long enough for another episode to start
        over = terminated | truncated
        if mode == AutoresetMode.DISABLED and over.any():
            envs.reset(options={"reset_mask": over})
        _, _, terminated, truncated, _ = envs.step(["x"] * 4)
        episodes += terminated[errors].sum()
    assert episodes > 0
    envs.close()


def test_an_error_can_be_scored_but_an_agent_that_fails_before_its_first_call_raises() -> None:
    scoring = AgentVectorEnv(2, agent=fragile_agent, tasks=["go"], on_agent_error=-5.0)
    scoring.reset()
    _, rewards, terminated, *_ = scoring.step(["x", "fail"])
    assert (rewards.tolist(), terminated.tolist()) == ([0.0, -5.0], [False, True])
    scoring.close()
    envs = AgentVectorEnv(2, agent=fragile_agent, tasks=["never begins"])
    with pytest.raises(AgentError, match="raised OSError"):
        envs.reset()
    envs.close()


async def interrupting_agent(client: AgentClient) -> float:
    if await ask(client) == "stop":
        raise KeyboardInterrupt
    return 1.0


def test_a_keyboard_interrupt_ends_the_step_of_all_episodes() -> None:
    envs = AgentVectorEnv(2, agent=interrupting_agent)
    envs.reset()
    with pytest.raises(KeyboardInterrupt):
        envs.step(["x", "stop"])
    with pytest.raises(gymnasium.error.ResetNeeded, match="ended with KeyboardInterrupt"):
        envs.step(["x", "x"])
    envs.reset()
    assert envs.step(["x", "x"])[1].sum() == 2
    envs.close()


def test_invalid_actions_options_and_seeds_are_refused() -> None:
    envs = AgentVectorEnv(2, agent="evert.envs.identity:identity_agent", tasks=[3])
    envs.reset()
    actions: Any
    for actions, message in (
        (["I am 3"], r"2 environments need .* of 2 actions; got 1 actions"),
        (["I am 3"] * 3, "got 3 actions"),
        ("no", "got 'no'"),
        (None, "got None"),
        (["I am 3", 3], "the text of the reply"),
    ):
        with pytest.raises(gymnasium.error.InvalidAction, match=message):
            envs.step(actions)
    with pytest.raises(EnvArgumentError, match="reset option 'taks'"):
        envs.reset(options={"taks": 3})
    with pytest.raises(ValueError, match="must match num_envs=2"):
        envs.reset(seed=[1, 2, 3])
    with pytest.raises(TypeError, match="must be a numpy array"):
        envs.reset(options={"reset_mask": [True, False]})
    assert envs.step(np.array(["I am 3", "I am 3"]))[1].tolist() == [1.0, 1.0]
    envs.close()
    envs = AgentVectorEnv(2, agent=wandering_agent, tasks=[7], autoreset_mode="Disabled")
    envs.reset()
    assert envs.step(["7", "x"])[2][0]
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"environments \[0.*reset_mask"):
        envs.step(["x", "x"])
    envs.close()


def test_an_invalid_argument_is_named_in_the_error() -> None:
    for given, message in (
        ({"num_envs": 0}, "num_envs is 0; expected an integer of at least 1"),
        ({"max_episode_steps": 0}, "max_episode_steps is 0; expected an integer of at least 1"),
        ({"autoreset_mode": "SameSteps"}, "Did you mean 'SameStep'"),
        ({"levle": "tokens"}, "Did you mean 'level'"),
    ):
        with pytest.raises(EnvArgumentError, match=message):
            AgentVectorEnv(**{"agent": wandering_agent, "tasks": [7], **given})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="disable `shared_memory`"):
        gymnasium.make_vec("evert/Identity-v0", 2, "async")


def test_calls_and_attributes_are_passed_to_all_environments() -> None:
    envs = AgentVectorEnv(2, agent=wandering_agent, tasks=[7], render_mode="ansi")
    envs.reset(seed=3)
    envs.set_attr("nickname", ["one", "two"])
    assert envs.get_attr("nickname") == ("one", "two")
    assert envs.get_attr("tasks") == ([7], [7])
    assert envs.np_random_seed == (3, 4)
    assert envs.call("render") == envs.render() == ("[user]\nSay 7.\n",) * 2
    envs.close()


def test_a_copy_is_a_new_vector_environment_with_the_same_arguments() -> None:
    envs = AgentVectorEnv(2, agent=wandering_agent, tasks=[7, 8], max_turns=2)
    for _ in range(2):  # before the first reset, then in mid-episode
        for copied in (copy.deepcopy(envs), pickle.loads(pickle.dumps(envs))):
            with pytest.raises(gymnasium.error.ResetNeeded, match="never called"):
                copied.step(["x", "x"])
            assert same(copied.reset(seed=2), envs.reset(seed=2))
            copied.close()
        envs.reset(seed=1)
        envs.step(["x", "x"])
    envs.close()
