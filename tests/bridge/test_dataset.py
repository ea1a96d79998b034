"""Tasks dealt in batches of groups.

1. Every task comes once an epoch; a short last batch is kept.
2. The order depends on the seed and the epoch, and on nothing else.
3. What makes no dataset is refused when it is made, not in the middle of a run.
4. ``AgentDatasetBuilder`` is configured by chz: agent and tasks by import path.
"""

import pickle
from collections.abc import Iterator
from typing import Any, cast

import chz
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.rl.types import RLDataset, Trajectory

from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.env.scripted import ScriptedPolicy
from evert.bridge.errors import InvalidAgentError, InvalidDatasetError
from evert.bridge.groups.dataset import AgentDataset, AgentDatasetBuilder, load_tasks
from evert.bridge.groups.group import Batch, ChatAgentGroupBuilder
from evert.bridge.tokens.bases import BASE_MODEL
from evert.envs.identity import TEST_TASKS, TRAIN_TASKS, identity_agent

AGENT = "evert.envs.identity:identity_agent"


def dataset(tasks: Any = range(10), **options: Any) -> AgentDataset:
    merged: dict[str, Any] = {"batch_size": 4, "group_size": 2, **options}
    return AgentDataset(identity_agent, tasks, **merged)


def groups(of: RLDataset, index: int) -> list[ChatAgentGroupBuilder]:
    return [cast("ChatAgentGroupBuilder", group) for group in of.get_batch(index)]


def dealt(of: RLDataset) -> list[list[Any]]:
    return [[group.task for group in groups(of, index)] for index in range(len(of))]


def half_each(trajectories: list[Trajectory]) -> list[float]:
    return [0.5 for _ in trajectories]


# -- batches -------------------------------------------------------------------------------------


def test_tasks_are_dealt_in_order_and_a_short_last_batch_is_kept() -> None:
    plain = dataset(shuffle=False)

    assert len(plain) == 3
    assert dealt(plain) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize(
    ("count", "batch_size", "epochs", "batches"),
    [(1, 1, 1, 1), (1, 100, 1, 1), (8, 4, 1, 2), (9, 4, 1, 3), (9, 4, 3, 9), (3, 1, 2, 6)],
)
def test_the_number_of_batches_counts_the_short_ones(
    count: int, batch_size: int, epochs: int, batches: int
) -> None:
    assert len(dataset(range(count), batch_size=batch_size, epochs=epochs)) == batches


@given(
    count=st.integers(1, 30),
    batch_size=st.integers(1, 12),
    epochs=st.integers(1, 3),
    shuffle=st.booleans(),
    seed=st.integers(),
)
def test_every_task_comes_once_an_epoch(
    count: int, batch_size: int, epochs: int, shuffle: bool, seed: int
) -> None:
    whole = dataset(range(count), batch_size=batch_size, epochs=epochs, shuffle=shuffle, seed=seed)
    batches = dealt(whole)
    an_epoch = len(whole) // epochs

    for first in range(0, len(whole), an_epoch):
        epoch = [task for batch in batches[first : first + an_epoch] for task in batch]
        assert sorted(epoch) == list(range(count))
    assert all(1 <= len(batch) <= batch_size for batch in batches)


@pytest.mark.parametrize("index", [-1, 3, 100])
def test_there_is_no_batch_out_of_bounds(index: int) -> None:
    with pytest.raises(IndexError) as caught:
        dataset().get_batch(index)

    assert str(caught.value) == f"Batch {index} of a dataset of 3 batches."


@pytest.mark.parametrize("tasks", [["a", "b"], ("a", "b"), "ab"])
def test_any_sequence_holds_tasks(tasks: Any) -> None:
    assert dealt(dataset(tasks, shuffle=False)) == [["a", "b"]]


def test_a_group_has_all_that_the_dataset_was_given() -> None:
    whole = dataset(group_reward=half_each, tags=["a"], on_agent_error=-1.0)
    group = groups(whole, 0)[0]

    assert group.agent is identity_agent
    assert group.group_size == 2
    assert group.group_reward is half_each
    assert group.logging_tags() == ["a"]
    assert group.options == {"on_agent_error": -1.0}


def test_a_batch_is_made_anew_each_time() -> None:
    whole = dataset()
    first, second = groups(whole, 0), groups(whole, 0)

    assert [group.task for group in first] == [group.task for group in second]
    assert not set(map(id, first)) & set(map(id, second))


# -- order ---------------------------------------------------------------------------------------


def test_the_order_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    tasks = range(50)

    assert dealt(dataset(tasks, seed=1)) == dealt(dataset(tasks, seed=1))
    assert dealt(dataset(tasks, seed=1)) != dealt(dataset(tasks, seed=2))
    assert dealt(dataset(tasks, seed=1)) != dealt(dataset(tasks, shuffle=False))


def test_each_epoch_has_an_order_of_its_own() -> None:
    batches = dealt(dataset(range(50), batch_size=50, epochs=3))

    assert len({tuple(batch) for batch in batches}) == 3


def test_a_batch_does_not_depend_on_what_was_asked_before() -> None:
    straight, backwards = dataset(epochs=2), dataset(epochs=2)
    batches = dealt(straight)
    for index in reversed(range(len(backwards))):
        assert [group.task for group in groups(backwards, index)] == batches[index]
    resumed = pickle.loads(pickle.dumps(straight))
    assert dealt(resumed) == batches


def test_the_order_does_not_depend_on_the_batch_size() -> None:
    small = [task for batch in dealt(dataset(batch_size=3)) for task in batch]
    large = [task for batch in dealt(dataset(batch_size=7)) for task in batch]

    assert small == large


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["batch_size", "group_size", "epochs"])
@pytest.mark.parametrize("size", [0, -1])
def test_every_size_is_at_least_1(name: str, size: int) -> None:
    with pytest.raises(InvalidDatasetError) as caught:
        dataset(**{name: size})

    assert str(caught.value) == f"{name} must be at least 1, got {size}."


def test_a_dataset_has_at_least_one_task() -> None:
    with pytest.raises(InvalidDatasetError, match="needs at least one task, got none"):
        dataset([])


@pytest.mark.parametrize("agent", ["evert.nowhere:agent", lambda client: 1.0, 5])
def test_an_agent_that_is_none_is_refused_when_the_dataset_is_made(agent: Any) -> None:
    with pytest.raises(InvalidAgentError):
        AgentDataset(agent, range(3), batch_size=1, group_size=1)


def test_tasks_may_be_named_by_an_import_path() -> None:
    assert load_tasks("evert.envs.identity:TEST_TASKS") is TEST_TASKS
    assert load_tasks(TEST_TASKS) is TEST_TASKS


@pytest.mark.parametrize(
    "path", ["", ":", "tasks", "evert.envs.identity", "evert.envs.identity:", "evert.no:T", "..:T"]
)
def test_a_path_with_no_tasks_is_refused_with_the_reason(path: str) -> None:
    with pytest.raises(InvalidDatasetError) as caught:
        load_tasks(path)

    assert repr(path) in str(caught.value)
    assert "'package.module:name'" in str(caught.value)


def numbers() -> Iterator[int]:
    yield from range(3)


@pytest.mark.parametrize(
    "tasks", [{1, 2}, numbers(), 5, identity_agent, "evert.envs.identity:identity_agent"]
)
def test_tasks_that_are_no_sequence_are_refused(tasks: Any) -> None:
    kind = "function" if isinstance(tasks, str) else type(tasks).__name__
    with pytest.raises(InvalidDatasetError) as caught:
        load_tasks(tasks)

    assert str(caught.value) == (
        f"Tasks must be a sequence (with a length and an index), got {kind}."
    )


# -- the builder ---------------------------------------------------------------------------------


def from_argv(*arguments: str) -> AgentDatasetBuilder:
    blueprint = chz.Blueprint(AgentDatasetBuilder)
    return blueprint.make_from_argv(
        [f"agent={AGENT}", "train_tasks=evert.envs.identity:TRAIN_TASKS", *arguments]
    )


async def test_a_command_line_is_enough_for_a_builder() -> None:
    builder = from_argv(
        "test_tasks=evert.envs.identity:TEST_TASKS",
        "batch_size=16",
        "group_size=4",
        "epochs=2",
        "seed=3",
    )
    train, test = await builder()

    assert len(train) == 2 * -(-len(TRAIN_TASKS) // 16)
    assert {len(groups(train, index)) for index in (0, 61)} == {16}
    group = groups(train, 0)[0]
    assert group.agent is identity_agent
    assert group.group_size == 4
    assert test is not None
    assert [task for batch in dealt(test) for task in batch] == list(TEST_TASKS)
    assert groups(test, 0)[0].group_size == 1


async def test_without_test_tasks_there_is_no_test_set() -> None:
    train, test = await from_argv()()

    assert len(train) == -(-len(TRAIN_TASKS) // 32)
    assert test is None


async def test_objects_work_as_well_as_paths() -> None:
    builder = AgentDatasetBuilder(agent=identity_agent, train_tasks=[1, 2, 3], shuffle=False)
    train, _ = await builder()

    assert dealt(train) == [[1, 2, 3]]


async def test_training_is_shuffled_by_the_seed_and_tests_are_not() -> None:
    def build(seed: int) -> AgentDatasetBuilder:
        return AgentDatasetBuilder(
            agent=AGENT, train_tasks=range(50), test_tasks=range(5), seed=seed
        )

    (first, test), (same, _), (other, _) = [await build(seed)() for seed in (1, 1, 2)]

    assert dealt(first) == dealt(same) != dealt(other)
    assert test is not None
    assert dealt(test) == [[0, 1, 2, 3, 4]]


async def test_limits_and_options_reach_the_envs() -> None:
    builder = AgentDatasetBuilder(
        agent=AGENT,
        train_tasks=range(3),
        limits=RolloutLimits(max_turns=2),
        env_options={"on_agent_error": -1.0, "policy_names": "us"},
        group_reward=half_each,
        tags=["identity"],
    )
    train, _ = await builder()
    group = groups(train, 0)[0]
    env = cast("ChatAgentEnv", (await group.make_envs())[0])

    assert env.rollout_limits.max_turns == 2
    assert group.options.get("on_agent_error") == -1.0
    assert group.options.get("policy_names") == "us"
    assert group.group_reward is half_each
    assert group.logging_tags() == ["identity"]
    assert env.renderer.tokenizer.name_or_path == BASE_MODEL


async def test_a_group_reward_is_found_by_its_import_path() -> None:
    builder = AgentDatasetBuilder(agent=AGENT, train_tasks=[1], group_reward="builtins:len")
    train, _ = await builder()

    found: object = groups(train, 0)[0].group_reward
    assert found is len


async def test_a_group_reward_that_is_not_there_is_an_error_that_names_it() -> None:
    builder = AgentDatasetBuilder(agent=AGENT, train_tasks=[1], group_reward="evert:nothing_here")

    with pytest.raises(InvalidDatasetError, match="No group reward at 'evert:nothing_here'"):
        await builder()


async def test_a_batch_of_a_built_dataset_can_be_played() -> None:
    builder = AgentDatasetBuilder(agent=AGENT, train_tasks=[7, 8], shuffle=False, group_size=2)
    train, _ = await builder()
    policy = ScriptedPolicy(lambda _: "I am 7.")

    played = [await do_group_rollout(group, policy) for group in train.get_batch(0)]

    assert [group.get_total_rewards() for group in played] == [[1.0, 1.0], [0.0, 0.0]]


async def test_in_training_a_group_knows_its_batch_and_in_tests_it_is_in_none() -> None:
    builder = AgentDatasetBuilder(
        agent=AGENT, train_tasks=range(5), test_tasks=range(2), batch_size=3
    )
    train, test = await builder()
    assert test is not None

    assert [group.batch for index in (0, 1) for group in groups(train, index)] == [
        *[Batch(index=0, groups=3, number=number) for number in range(3)],
        *[Batch(index=1, groups=2, number=number) for number in range(2)],
    ]
    assert [group.batch for group in groups(test, 0)] == [None, None]
    assert pickle.loads(pickle.dumps(groups(train, 1)[0])).batch == Batch(1, 2)


async def test_a_built_group_pickles() -> None:
    train, _ = await from_argv()()
    received = pickle.loads(pickle.dumps(groups(train, 0)[0]))
    group = await do_group_rollout(received, ScriptedPolicy(lambda _: f"I am {received.task}"))

    assert group.get_total_rewards() == [1.0] * 8


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"agent": "evert.nowhere:agent"}, InvalidAgentError),
        ({"train_tasks": "evert.nowhere:TASKS"}, InvalidDatasetError),
        ({"train_tasks": []}, InvalidDatasetError),
        ({"test_tasks": 5}, InvalidDatasetError),
        ({"batch_size": 0}, InvalidDatasetError),
        ({"group_size": 0}, InvalidDatasetError),
    ],
    ids=str,
)
async def test_what_makes_no_dataset_is_refused_when_it_is_built(
    options: dict[str, Any], error: type[Exception]
) -> None:
    builder = AgentDatasetBuilder(**{"agent": AGENT, "train_tasks": range(3), **options})
    with pytest.raises(error):
        await builder()
