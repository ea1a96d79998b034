"""What agents draw: ``client.seed`` and ``client.rng``.

1. A dataset's seed comes from its own seed, the step, the task and the member: the same run gives
   the same, members of a group differ, and a resumed run goes on as the whole one would have.
2. An episode has one seed and one generator, whichever client is asked: blocking, or a seat's.
3. An Env that is given no seed draws one; one that is made anew of a seeded Env has the same.
"""

import asyncio
import pickle
import random
from typing import Any

import gymnasium
import numpy as np
import pytest
from tinker_cookbook.rl.rollout_strategy import RetryOnFailure
from tinker_cookbook.rl.rollouts import do_group_rollout, do_single_rollout
from tinker_cookbook.rl.types import EnvGroupBuilder

from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.env.scripted import ScriptedPolicy
from evert.bridge.episode.agent import Outcome
from evert.bridge.episode.seeds import seed_of
from evert.bridge.groups.dataset import AgentDataset
from evert.bridge.groups.group import ChatAgentGroupBuilder
from evert.envs.as_gymnasium.registration import register_agent


async def ask(client: Any) -> None:
    await client.chat.completions.create(messages=[{"role": "user", "content": "?"}])


async def draws(client: Any, task: object = None) -> Outcome:
    """Notes its seed and the first number that it draws."""
    await ask(client)
    return Outcome(1.0, {"seed": client.seed, "drawn": client.rng.random()})


async def fails_at_first(client: Any) -> Outcome:
    if client.seed == seed_of(5, 0):
        raise ValueError("The first member fails.")
    return await draws(client)


def said() -> ScriptedPolicy:
    return ScriptedPolicy(lambda prompt: "!")


async def noted(group: EnvGroupBuilder, name: str = "seed", strategy: Any = None) -> list[Any]:
    """What the episodes of a group noted."""
    played = await do_group_rollout(group, said(), strategy)
    return [each.transitions[-1].metrics[name] for each in played.trajectories_G]


async def noted_by(**options: Any) -> list[list[list[Any]]]:
    """What the episodes of each batch and group of a dataset noted."""
    sizes: dict[str, Any] = {"batch_size": 2, "group_size": 2, "epochs": 2, **options}
    whole = AgentDataset(draws, "abcd", **sizes)
    return [[await noted(group) for group in whole.get_batch(i)] for i in range(len(whole))]


# -- of a dataset --------------------------------------------------------------------------------


async def test_the_same_run_gives_the_same_seeds_and_another_gives_others() -> None:
    first, again, other = [await noted_by(seed=seed) for seed in (1, 1, 2)]

    assert first == again
    flat = np.ravel(first).tolist()
    assert not {*flat} & {*np.ravel(other).tolist()}
    assert len({*flat}) == len(flat) == 16, "members, tasks and steps all differ"
    assert all(0 <= seed < 2**32 for seed in flat)


async def test_a_resumed_run_has_the_seeds_that_the_whole_run_would_have_had() -> None:
    whole = await noted_by(seed=1)
    resumed = AgentDataset(draws, "abcd", batch_size=2, group_size=2, epochs=2, seed=1)

    assert [await noted(group) for group in resumed.get_batch(3)] == whole[3]


async def test_a_seed_does_not_depend_on_where_in_a_batch_its_task_is() -> None:
    alone, together = [
        AgentDataset(draws, "ab", batch_size=size, group_size=1, shuffle=False) for size in (1, 2)
    ]

    assert await noted(alone.get_batch(0)[0]) == await noted(together.get_batch(0)[0])
    assert alone.get_batch(1)[0].seed != together.get_batch(0)[1].seed, "it is another step"


async def test_tests_are_played_with_the_same_seeds_however_often() -> None:
    held_out = AgentDataset(draws, "ab", batch_size=2, group_size=2, held_out=True)
    [first, _] = held_out.get_batch(0)

    assert await noted(first) == await noted(first)
    training = AgentDataset(draws, "ab", batch_size=2, group_size=2, shuffle=False)
    assert training.get_batch(0)[0].seed != first.seed


async def test_a_group_in_another_process_has_the_same_seeds() -> None:
    group = ChatAgentGroupBuilder(draws, group_size=3, seed=5)

    assert await noted(pickle.loads(pickle.dumps(group))) == await noted(group)


async def test_an_episode_that_is_played_again_has_a_seed_of_its_own() -> None:
    group = ChatAgentGroupBuilder(fails_at_first, group_size=2, seed=5)

    seeds = await noted(group, strategy=RetryOnFailure(max_retries=1))
    assert {*seeds} == {seed_of(5, 1), seed_of(5, 2)}


def test_a_seed_is_the_same_on_every_machine() -> None:
    assert seed_of(0, 0, "a") == 3418887292


# -- of an episode -------------------------------------------------------------------------------


async def test_all_clients_of_an_episode_share_its_seed_and_its_generator() -> None:
    async def agent(client: Any) -> dict[str, Any]:
        player, judge = client.seat("player"), client.seat("judge")
        await asyncio.gather(ask(player), ask(judge))
        assert client.rng is player.rng is judge.rng is client.blocking.rng
        assert client.seed == player.seed == judge.seed
        drawn = [player.rng.random(), judge.rng.random()]
        return {
            "player": Outcome(1.0, {"drawn": drawn[0]}),
            "judge": Outcome(1.0, {"drawn": drawn[1]}),
        }

    group = ChatAgentGroupBuilder(agent, seats=("player", "judge"), seed=3)
    drawn = await noted(group, "drawn")
    expected = random.Random(seed_of(3, 0))
    assert drawn == [expected.random(), expected.random()]


async def test_an_env_without_a_seed_draws_another_each_time() -> None:
    seeds = {
        (await do_single_rollout(said(), ChatAgentEnv(draws))).transitions[-1].metrics["seed"]
        for _ in range(3)
    }

    assert len(seeds) == 3


async def test_an_env_made_anew_of_a_seeded_one_draws_the_same() -> None:
    env = ChatAgentEnv(draws, seed=9)
    played = [await do_single_rollout(said(), each) for each in (env, env.renewed())]

    assert [each.transitions[-1].metrics["seed"] for each in played] == [9, 9]
    assert len({each.transitions[-1].metrics["drawn"] for each in played}) == 1


def test_a_gymnasium_environment_seeds_its_agent_and_each_episode_anew() -> None:
    seeds: list[int] = []

    async def agent(client: Any) -> float:
        seeds.append(client.seed)
        await ask(client)
        return 1.0

    register_agent("evert-test/Seeds-v0", agent)
    env = gymnasium.make("evert-test/Seeds-v0", disable_env_checker=True)
    try:
        for seed in (7, None, 7, None, 8):
            env.reset(seed=seed)
    finally:
        env.close()
        gymnasium.registry.pop("evert-test/Seeds-v0")

    assert seeds[:2] == seeds[2:4]
    assert len({*seeds}) == 3


@pytest.mark.parametrize("name", ["seed", "rng"])
def test_a_plain_function_draws_as_well(name: str) -> None:
    def agent(client: Any) -> float:
        client.chat.completions.create(messages=[{"role": "user", "content": "?"}])
        value = getattr(client, name)
        return float(value if name == "seed" else value.random())

    played = [asyncio.run(do_single_rollout(said(), ChatAgentEnv(agent, seed=4))) for _ in range(2)]

    assert played[0].transitions[-1].reward == played[1].transitions[-1].reward
