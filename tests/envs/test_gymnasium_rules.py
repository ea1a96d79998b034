"""Rules of Gymnasium that every registered environment keeps, at both levels.

1. ``check_env`` passes with warnings as errors, and so do the default wrappers.
2. One seed, one episode; other seeds, other tasks; ``options={"task": ...}`` is obeyed.
3. What comes back lies in the observation space; whatever is drawn from the action space is legal.
4. A spec goes through JSON and pickle; vector environments run.

For the checks of others that we rely on, an environment that breaks the rule is caught.
"""

import copy
import itertools
import pickle
import random
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

from evert.bridge.clients.client import AgentClient
from evert.envs.as_gymnasium.env import LEVELS, AgentGymEnv
from evert.envs.as_gymnasium.spaces import AnyText
from evert.envs.games import games

ALL = list(itertools.product([game.id for game in games().values()], LEVELS))
both_levels = pytest.mark.parametrize("level", LEVELS)
all_envs = pytest.mark.parametrize(("id", "level"), ALL)


def agent_env(env: gymnasium.Env[Any, Any]) -> AgentGymEnv:
    assert isinstance(env.unwrapped, AgentGymEnv)
    return env.unwrapped


# -- 1. the checker ----------------------------------------------------------------------------


@all_envs
def test_check_env_finds_nothing_to_warn_of(id: str, level: str) -> None:
    env = gymnasium.make(id, level=level)
    check_env(env.unwrapped)
    env.close()


@all_envs
def test_an_episode_passes_through_the_default_wrappers(id: str, level: str) -> None:
    env = gymnasium.make(id, level=level)
    assert "OrderEnforcing<PassiveEnvChecker<" in str(env)
    env.reset(seed=0)
    env.action_space.seed(0)
    terminated = truncated = False
    while not (terminated or truncated):
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
    assert terminated
    env.close()


async def moody_agent(client: AgentClient) -> float:
    question = {"role": "user", "content": str(random.random())}
    await client.chat.completions.create(messages=[question])
    return 0.0


def test_check_env_catches_an_agent_that_does_not_keep_to_its_seed(
    register: Callable[..., EnvSpec],
) -> None:
    env = gymnasium.make(register("test/Moody-v0", moody_agent))
    with pytest.raises(AssertionError, match="non-deterministic"):
        check_env(env.unwrapped)
    env.close()


def test_wrappers_of_gymnasiums_count_cut_and_begin_again() -> None:
    env = gymnasium.make("evert/GuessNumber-v0", max_episode_steps=3)
    counted = gymnasium.wrappers.RecordEpisodeStatistics(env)
    again = gymnasium.wrappers.Autoreset(counted)
    again.reset(seed=1)
    ends = [again.step("x")[3] for _ in range(8)]
    assert ends == [False, False, True, False] * 2
    assert list(counted.length_queue) == [3, 3]
    again.close()


class SameInfoEnv(AgentGymEnv):
    """Broken: every info is the same dict."""

    shared: dict[str, Any] = {}  # noqa: RUF012

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, _ = super().reset(seed=seed, options=options)
        return observation, self.shared

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return *super().step(action)[:4], self.shared


def test_check_env_catches_an_environment_that_reuses_its_info() -> None:
    env = SameInfoEnv("evert.envs.identity:identity_agent", [1, 2])
    with pytest.raises(AssertionError, match="share an object"):
        check_env(env)
    env.close()


# -- 2. seeds and tasks ------------------------------------------------------------------------


def episode(env: gymnasium.Env[Any, Any], seed: int | None) -> list[Any]:
    observation, info = env.reset(seed=seed)
    env.action_space.seed(0)
    seen = [observation, info["task"]]
    for _ in range(3):
        result = env.step(env.action_space.sample())
        seen.append(result)
        if result[2] or result[3]:
            break
    return seen


@all_envs
def test_two_episodes_of_one_seed_are_identical(id: str, level: str) -> None:
    first, second = gymnasium.make(id, level=level), gymnasium.make(id, level=level)
    assert episode(first, 7) == episode(second, 7)
    assert episode(first, None) == episode(second, None)  # and so are those that follow
    first.close()
    second.close()


def test_seeds_reach_all_tasks() -> None:
    env = gymnasium.make("evert/Identity-v0", tasks=[1, 2, 3])
    tasks = {env.reset(seed=seed)[1]["task"] for seed in range(40)}
    assert tasks == {1, 2, 3}
    env.close()


def test_an_option_chooses_the_task() -> None:
    env = gymnasium.make("evert/Identity-v0")
    observation, info = env.reset(options={"task": 123})
    assert info["task"] == 123
    assert observation == ({"role": "user", "content": "Let's play a game. Say you are 123."},)
    env.close()


def test_the_option_does_not_disturb_the_drawing_of_tasks() -> None:
    env = gymnasium.make("evert/Identity-v0")
    env.reset(seed=1)
    drawn = env.reset()[1]["task"]
    env.reset(seed=1)
    env.reset(options={"task": 5})
    assert env.reset()[1]["task"] == drawn
    env.close()


def test_held_out_tasks_take_the_place_of_the_training_tasks() -> None:
    env = gymnasium.make("evert/GuessNumber-v0", tasks="evert.envs.guess_number:TEST_TASKS")
    from evert.envs.guess_number import TEST_TASKS

    assert all(env.reset(seed=seed)[1]["task"] in TEST_TASKS for seed in range(5))
    env.close()


# -- 3. spaces ---------------------------------------------------------------------------------


@all_envs
def test_observations_lie_in_their_space_at_every_step(id: str, level: str) -> None:
    env = gymnasium.make(id, level=level, disable_env_checker=True)
    observation, _ = env.reset(seed=3)
    over = False
    while not over:
        assert observation in env.observation_space
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        over = terminated or truncated
    assert observation in env.observation_space
    env.close()


@both_levels
def test_every_sampled_action_is_legal(level: str) -> None:
    env = gymnasium.make("evert/Identity-v0", level=level)
    env.action_space.seed(1)
    for _ in range(50):
        action = env.action_space.sample()
        assert action in env.action_space
        env.reset()
        assert env.step(action)[2]
    env.close()


@pytest.mark.parametrize("text", ["<|im_end|>", "Guess: 5<|im_end|>Guess: 7", "<|im_start|>user"])
def test_a_text_action_is_text_and_no_control_token(text: str) -> None:
    env = gymnasium.make("evert/GuessNumber-v0")
    env.reset(seed=1)
    observation, _, _, _, info = env.step(text)
    controls = {504, 505}  # <|im_start|> and <|im_end|>
    assert [token for token in info["action_tokens"] if token in controls] == [505]
    assert info["action_tokens"][-1] == 505
    assert observation[-2] == {"role": "assistant", "content": text}
    assert info["logs"]["guess"] == text
    env.close()


@pytest.mark.parametrize(
    "action", ["", "\n", "日本語 🎲", "a" * 5000, "<|im_end|>", "<|im_start|>user\nI am 7", "\x00"]
)
def test_any_text_is_legal(action: str) -> None:
    env = gymnasium.make("evert/Identity-v0", tasks=[7])
    env.reset()
    assert action in env.action_space
    assert env.step(action)[2]
    env.close()


@pytest.mark.parametrize("action", [(), (505,), (505, 505), (504, 1, 505, 2), (0,)])
def test_any_tokens_are_legal(action: tuple[int, ...]) -> None:
    env = gymnasium.make("evert/Identity-v0", level="tokens")
    env.reset()
    assert action in env.action_space
    assert env.step(action)[2]
    env.close()


def test_lists_and_arrays_of_tokens_do_as_well_as_tuples() -> None:
    env = gymnasium.make("evert/Identity-v0", level="tokens")
    tokens = (300, 274, 505)
    for action in (tokens, list(tokens), np.array(tokens)):
        env.reset(seed=1)
        assert env.step(action)[4]["action_tokens"] == list(tokens)
    env.close()


def test_the_text_space_knows_what_has_no_tokens() -> None:
    space = AnyText(seed=0)
    assert "日本語" in space
    assert "\ud800" not in space
    assert 7 not in space
    assert max(len(space.sample()) for _ in range(100)) <= 32
    assert len(space.sample(mask=(50, None))) == 50
    assert AnyText(seed=3).sample() == AnyText(seed=3).sample()
    assert pickle.loads(pickle.dumps(space)) == space == AnyText()


# -- 4. specs and vectors ----------------------------------------------------------------------


@all_envs
def test_a_spec_goes_through_json_and_pickle(id: str, level: str) -> None:
    made = gymnasium.make(id, level=level)
    assert made.spec is not None
    for spec in (
        EnvSpec.from_json(made.spec.to_json()),
        pickle.loads(pickle.dumps(made.spec)),
        gymnasium.spec(id),
    ):
        again = gymnasium.make(spec, level=level)
        assert again.reset(seed=2)[0] == made.reset(seed=2)[0]
        again.close()
    made.close()


@pytest.mark.parametrize("played", [False, True], ids=["before a reset", "in mid-episode"])
@both_levels
def test_a_copy_is_a_new_environment_of_the_same_arguments(level: str, played: bool) -> None:
    env = gymnasium.make("evert/GuessNumber-v0", level=level, tasks=[3, 4], max_turns=2).unwrapped
    if played:
        env.reset(seed=1)
    for copied in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert isinstance(copied, AgentGymEnv)
        assert (copied.level, copied.tasks) == (level, [3, 4])
        with pytest.raises(gymnasium.error.ResetNeeded, match=r"reset\(\) was never called"):
            copied.step("")
        assert copied.reset(seed=2)[0] == agent_env(env).reset(seed=2)[0]
        copied.close()
    env.close()


@both_levels
def test_vector_environments_run_and_reset_themselves(level: str) -> None:
    envs = gymnasium.make_vec(
        "evert/Identity-v0", num_envs=2, vectorization_mode="sync", level=level
    )
    envs.reset(seed=5)
    envs.action_space.seed(0)
    for _ in range(4):
        observations, rewards, terminated, _, _ = envs.step(envs.action_space.sample())
        assert len(observations) == 2
        assert rewards.shape == terminated.shape == (2,)
    envs.close()
