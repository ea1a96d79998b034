"""``AgentDataset`` and its builder: batches of groups, one per task, with seeds that determine the
random numbers that agents draw."""

import asyncio
import pickle
import random
from typing import Any, cast

import chz
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit import ask, policy_of
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.rollout_strategy import RetryOnFailure
from tinker_cookbook.rl.rollouts import do_group_rollout, do_single_rollout
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, Trajectory

from evert import AgentDataset, ChatAgentEnv, ChatAgentGroupBuilder, Outcome
from evert.bridge.episode.seeds import seed_of
from evert.bridge.errors import InvalidAgentError, InvalidDatasetError
from evert.bridge.groups.dataset import AgentDatasetBuilder
from evert.bridge.groups.group import BatchPosition
from evert.envs.identity import TEST_TASKS, TRAIN_TASKS, identity_agent

PATH = "evert.envs.identity:"
AGENT = f"{PATH}identity_agent"


def dataset(tasks: Any = range(10), **options: Any) -> AgentDataset:
    merged: dict[str, Any] = {"batch_size": 4, "group_size": 2, **options}
    return AgentDataset(identity_agent, tasks, **merged)


async def built(**options: Any) -> tuple[RLDataset, RLDataset | None]:
    return await AgentDatasetBuilder(**{"agent": AGENT, "train_tasks": range(3), **options})()


def groups(of: RLDataset, index: int) -> list[ChatAgentGroupBuilder]:
    return [cast("ChatAgentGroupBuilder", group) for group in of.get_batch(index)]


def dealt(of: RLDataset | None) -> list[list[Any]]:
    assert of is not None
    return [[group.task for group in groups(of, index)] for index in range(len(of))]


def half_each(trajectories: list[Trajectory]) -> list[float]:
    return [0.5 for _ in trajectories]


@given(
    count=st.integers(1, 30),
    batch_size=st.integers(1, 12),
    epochs=st.integers(1, 3),
    shuffle=st.booleans(),
    seed=st.integers(),
)
def test_each_task_occurs_once_per_epoch(
    count: int, batch_size: int, epochs: int, shuffle: bool, seed: int
) -> None:
    data = dataset(range(count), batch_size=batch_size, epochs=epochs, shuffle=shuffle, seed=seed)
    batches = dealt(data)
    an_epoch = -(-count // batch_size)  # the short batch is kept

    assert len(data) == an_epoch * epochs
    for first in range(0, len(data), an_epoch):
        epoch = [task for batch in batches[first : first + an_epoch] for task in batch]
        assert sorted(epoch) == list(range(count))
        assert shuffle or epoch == list(range(count))
    assert all(1 <= len(batch) <= batch_size for batch in batches)


def test_the_order_of_tasks_depends_only_on_the_seed_and_the_epoch() -> None:
    tasks = range(50)
    first = dealt(dataset(tasks, seed=1))
    assert first == dealt(dataset(tasks, seed=1)) != dealt(dataset(tasks, seed=2))
    assert first != dealt(dataset(tasks, shuffle=False))
    epochs = dealt(dataset(tasks, batch_size=50, epochs=3))
    assert len({tuple(batch) for batch in epochs}) == 3
    small, large = ([t for b in dealt(dataset(batch_size=n)) for t in b] for n in (3, 7))
    assert small == large
    straight, backwards = dataset(epochs=2), dataset(epochs=2)
    batches = dealt(straight)
    for index in reversed(range(len(backwards))):
        assert [group.task for group in groups(backwards, index)] == batches[index]
    assert dealt(pickle.loads(pickle.dumps(straight))) == batches
    assert groups(straight, 0)[0] is not groups(straight, 0)[0], "get_batch creates new groups"


def test_tasks_can_be_any_sequence_and_a_batch_out_of_range_is_an_error() -> None:
    for tasks in (["a", "b"], ("a", "b"), "ab"):
        assert dealt(dataset(tasks, shuffle=False)) == [["a", "b"]]
    for index in (-1, 3, 100):
        with pytest.raises(IndexError, match=f"^There is no batch {index} in a dataset"):
            dataset().get_batch(index)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        *[
            ({name: size}, InvalidDatasetError, f"^{name} must be at least 1, got {size}.$")
            for name in ("batch_size", "group_size", "epochs")
            for size in (0, -1)
        ],
        ({"train_tasks": []}, InvalidDatasetError, "needs at least one task, but tasks is empty"),
        ({"train_tasks": {1, 2}}, InvalidDatasetError, "tasks is a set; expected a sequence"),
        ({"train_tasks": iter("a")}, InvalidDatasetError, "is a str_ascii_iterator; expected"),
        ({"test_tasks": 5}, InvalidDatasetError, "tasks is a int; expected a sequence"),
        ({"train_tasks": AGENT}, InvalidDatasetError, "tasks is a function; expected a sequence"),
        ({"train_tasks": "evert.no:T"}, InvalidDatasetError, "'evert.no:T'"),
        ({"agent": "evert.nowhere:agent"}, InvalidAgentError, "No agent at 'evert.nowhere:agent'"),
        ({"agent": lambda client: 1.0}, InvalidAgentError, "no parameter for the task"),
        ({"group_reward": "evert:nothing"}, InvalidDatasetError, "No group reward at 'evert:no"),
    ],
)
async def test_invalid_datasets_are_rejected(
    options: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        await built(**options)


async def test_a_builder_can_be_made_from_a_command_line() -> None:
    def from_argv(*arguments: str) -> AgentDatasetBuilder:
        arguments_given = [f"agent={AGENT}", f"train_tasks={PATH}TRAIN_TASKS", *arguments]
        return chz.Blueprint(AgentDatasetBuilder).make_from_argv(arguments_given)

    train, test = await from_argv(
        f"test_tasks={PATH}TEST_TASKS", "batch_size=16", "group_size=4", "epochs=2", "seed=3"
    )()

    sizes = {"batch_size": 16, "group_size": 4, "epochs": 2}
    assert dealt(train) == dealt(dataset(TRAIN_TASKS, **sizes, seed=3))
    group = groups(train, 0)[0]
    assert (group.agent, group.group_size) == (identity_agent, 4)
    assert [task for batch in dealt(test) for task in batch] == list(TEST_TASKS)
    assert test is not None
    assert groups(test, 0)[0].group_size == 1

    train, test = await from_argv()()
    assert (len(train), test) == (-(-len(TRAIN_TASKS) // 32), None)


async def test_limits_and_options_are_passed_to_the_groups_and_their_envs() -> None:
    train, _ = await built(
        limits=RolloutLimits(max_turns=2),
        env_options={"on_agent_error": -1.0, "policy_names": "us"},
        group_reward=half_each,
        tags=["identity"],
    )
    group = groups(train, 0)[0]
    env = cast("ChatAgentEnv", (await group.make_envs())[0])

    assert env.rollout_limits.max_turns == 2
    assert group.options.get("on_agent_error") == -1.0
    assert group.options.get("policy_names") == "us"
    assert group.group_reward is half_each
    assert group.logging_tags() == ["identity"]
    train, _ = await built(group_reward="builtins:len")
    assert cast("object", groups(train, 0)[0].group_reward) is len


async def test_a_training_group_knows_its_batch_but_a_test_group_does_not() -> None:
    train, test = await built(train_tasks=range(5), test_tasks=range(2), batch_size=3)
    assert test is not None

    assert [group.batch for index in (0, 1) for group in groups(train, index)] == [
        *[BatchPosition(index=0, groups=3, number=number) for number in range(3)],
        *[BatchPosition(index=1, groups=2, number=number) for number in range(2)],
    ]
    assert [group.batch for group in groups(test, 0)] == [None, None]
    assert pickle.loads(pickle.dumps(groups(train, 1)[0])).batch == BatchPosition(1, 2)


async def draws(client: Any, task: object = None) -> Outcome:
    await ask(client)
    return Outcome(1.0, {"seed": client.seed, "drawn": client.rng.random()})


async def notes(group: EnvGroupBuilder, name: str = "seed", strategy: Any = None) -> list[Any]:
    group_played = await do_group_rollout(group, policy_of(), strategy)
    return [trajectory.transitions[-1].metrics[name] for trajectory in group_played.trajectories_G]


def drawing(tasks: Any = "abcd", **options: Any) -> AgentDataset:
    return AgentDataset(draws, tasks, **{"batch_size": 2, "group_size": 2, "epochs": 2, **options})


async def noted_by(seed: int) -> list[list[list[Any]]]:
    """Play all groups and return their episodes' seeds, nested by batch and group."""
    data = drawing(seed=seed)
    return [[await notes(group) for group in data.get_batch(i)] for i in range(len(data))]


async def test_a_runs_seed_determines_the_seeds_of_its_episodes() -> None:
    first, repeated, different = [await noted_by(seed) for seed in (1, 1, 2)]

    assert first == repeated
    flat = np.ravel(first).tolist()
    assert not {*flat} & {*np.ravel(different).tolist()}
    assert len({*flat}) == len(flat) == 16, "every episode has a different seed"
    assert all(0 <= seed < 2**32 for seed in flat)
    resumed = drawing(seed=1).get_batch(3)
    assert [await notes(group) for group in resumed] == first[3], "also in a resumed run"
    assert seed_of(0, 0, "a") == 3418887292, "on every machine"


def test_a_groups_seed_does_not_depend_on_its_position_in_the_batch() -> None:
    alone, joint = [drawing("ab", batch_size=size, shuffle=False) for size in (1, 2)]
    assert alone.get_batch(0)[0].seed == joint.get_batch(0)[0].seed
    assert alone.get_batch(1)[0].seed != joint.get_batch(0)[1].seed, "the step is different"
    held_out = [drawing("ab", held_out=True).get_batch(0)[0].seed for _ in range(2)]
    assert held_out[0] == held_out[1] != joint.get_batch(0)[0].seed


async def test_a_pickled_group_keeps_its_seeds_and_a_retried_episode_gets_a_new_one() -> None:
    group = ChatAgentGroupBuilder(draws, group_size=3, seed=5)
    assert await notes(pickle.loads(pickle.dumps(group))) == await notes(group)

    async def fails_at_first(client: Any) -> Outcome:
        if client.seed == seed_of(5, 0):
            raise ValueError("The first member fails.")
        return await draws(client)

    group = ChatAgentGroupBuilder(fails_at_first, group_size=2, seed=5)
    seeds = await notes(group, strategy=RetryOnFailure(max_retries=1))
    assert {*seeds} == {seed_of(5, 1), seed_of(5, 2)}


async def test_all_clients_of_an_episode_share_its_seed_and_random_generator() -> None:
    async def agent(client: Any) -> dict[str, Any]:
        player, judge = client.seat("player"), client.seat("judge")
        await asyncio.gather(ask(player), ask(judge))
        assert client.rng is player.rng is judge.rng is client.blocking.rng
        assert client.seed == player.seed == judge.seed
        numbers = [player.rng.random(), judge.rng.random()]
        return {
            "player": Outcome(1.0, {"drawn": numbers[0]}),
            "judge": Outcome(1.0, {"drawn": numbers[1]}),
        }

    group = ChatAgentGroupBuilder(agent, seats=("player", "judge"), seed=3)
    expected = random.Random(seed_of(3, 0))
    assert await notes(group, "drawn") == [expected.random(), expected.random()]


async def test_an_env_draws_a_seed_unless_one_is_passed_and_keeps_it_when_renewed() -> None:
    async def play_env(env: ChatAgentEnv) -> tuple[float, float]:
        metrics = (await do_single_rollout(policy_of(), env)).transitions[-1].metrics
        return metrics["seed"], metrics["drawn"]

    assert len({await play_env(ChatAgentEnv(draws)) for _ in range(3)}) == 3
    env = ChatAgentEnv(draws, seed=9)
    assert await play_env(env) == await play_env(env.renewed()) == (9, random.Random(9).random())
