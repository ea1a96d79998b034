"""What agents draw: ``client.seed`` and ``client.rng``.

A dataset's seed comes from its own seed, the step, the task and the member: the same run gives the
same, and a resumed run goes on as the whole one would have. An episode has one seed and one
generator, whichever client is asked; an Env that is given no seed draws one.
"""

import asyncio
import pickle
import random
from typing import Any

import numpy as np
from tests.kit import ask, policy_of
from tinker_cookbook.rl.rollout_strategy import RetryOnFailure
from tinker_cookbook.rl.rollouts import do_group_rollout, do_single_rollout
from tinker_cookbook.rl.types import EnvGroupBuilder

from evert import AgentDataset, ChatAgentEnv, ChatAgentGroupBuilder, Outcome
from evert.bridge.episode.seeds import seed_of


async def draws(client: Any, task: object = None) -> Outcome:
    """Notes its seed and the first number that it draws."""
    await ask(client)
    return Outcome(1.0, {"seed": client.seed, "drawn": client.rng.random()})


async def noted(group: EnvGroupBuilder, name: str = "seed", strategy: Any = None) -> list[Any]:
    """What the episodes of a group noted."""
    played = await do_group_rollout(group, policy_of(), strategy)
    return [each.transitions[-1].metrics[name] for each in played.trajectories_G]


def dataset(tasks: Any = "abcd", **options: Any) -> AgentDataset:
    return AgentDataset(draws, tasks, **{"batch_size": 2, "group_size": 2, "epochs": 2, **options})


async def noted_by(seed: int) -> list[list[list[Any]]]:
    """What the episodes of each batch and group of a dataset noted."""
    whole = dataset(seed=seed)
    return [[await noted(group) for group in whole.get_batch(i)] for i in range(len(whole))]


async def test_the_same_run_gives_the_same_seeds_and_another_gives_others() -> None:
    first, again, other = [await noted_by(seed) for seed in (1, 1, 2)]

    assert first == again
    flat = np.ravel(first).tolist()
    assert not {*flat} & {*np.ravel(other).tolist()}
    assert len({*flat}) == len(flat) == 16, "members, tasks and steps all differ"
    assert all(0 <= seed < 2**32 for seed in flat)
    resumed = dataset(seed=1).get_batch(3)
    assert [await noted(group) for group in resumed] == first[3], "also of a resumed run"
    assert seed_of(0, 0, "a") == 3418887292, "on every machine"


def test_a_seed_does_not_depend_on_its_place_in_a_batch_and_those_of_tests_not_on_the_step() -> (
    None
):
    alone, together = [dataset("ab", batch_size=size, shuffle=False) for size in (1, 2)]
    assert alone.get_batch(0)[0].seed == together.get_batch(0)[0].seed
    assert alone.get_batch(1)[0].seed != together.get_batch(0)[1].seed, "it is another step"
    held_out = [dataset("ab", held_out=True).get_batch(0)[0].seed for _ in range(2)]
    assert held_out[0] == held_out[1] != together.get_batch(0)[0].seed


async def test_a_group_elsewhere_has_the_same_seeds_and_an_episode_played_again_its_own() -> None:
    group = ChatAgentGroupBuilder(draws, group_size=3, seed=5)
    assert await noted(pickle.loads(pickle.dumps(group))) == await noted(group)

    async def fails_at_first(client: Any) -> Outcome:
        if client.seed == seed_of(5, 0):
            raise ValueError("The first member fails.")
        return await draws(client)

    group = ChatAgentGroupBuilder(fails_at_first, group_size=2, seed=5)
    seeds = await noted(group, strategy=RetryOnFailure(max_retries=1))
    assert {*seeds} == {seed_of(5, 1), seed_of(5, 2)}


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
    expected = random.Random(seed_of(3, 0))
    assert await noted(group, "drawn") == [expected.random(), expected.random()]


async def test_an_env_draws_a_seed_unless_it_has_one_and_made_anew_it_has_the_same() -> None:
    async def played(env: ChatAgentEnv) -> tuple[float, float]:
        metrics = (await do_single_rollout(policy_of(), env)).transitions[-1].metrics
        return metrics["seed"], metrics["drawn"]

    assert len({await played(ChatAgentEnv(draws)) for _ in range(3)}) == 3
    env = ChatAgentEnv(draws, seed=9)
    assert await played(env) == await played(env.renewed()) == (9, random.Random(9).random())
