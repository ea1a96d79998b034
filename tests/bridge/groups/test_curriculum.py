"""Task samplers, the rewards reported to them, and ``Curriculum``."""

import functools
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit import ask, assert_says, policy_of
from tinker_cookbook.rl.rollout_strategy import FailFast, RolloutStrategy
from tinker_cookbook.rl.rollouts import do_group_rollout

from evert import AgentDataset, AgentDatasetBuilder, Curriculum, InvalidDatasetError, Sampler
from evert.bridge.groups.curriculum import make_sampler, read_sampler_log
from evert.bridge.groups.group import BatchPosition
from evert.trainers.training.strategies import LeaveOut

FLAT, MIXED = [1.0, 1.0], [0.0, 1.0]


class Fixed:
    """A sampler that returns fixed batches and records its updates."""

    def __init__(self, *chosen: Sequence[int]) -> None:
        self.chosen = chosen
        self.told: list[tuple[int, list[float]]] = []

    def next(self, step: int) -> Sequence[int]:
        return self.chosen[step % len(self.chosen)]

    def update(self, task: int, rewards: Sequence[float]) -> None:
        self.told.append((task, list(rewards)))


async def pays(client: Any, task: float) -> float:
    await ask(client)
    return task


async def fails(client: Any, task: object) -> float:
    await ask(client)
    raise ValueError("This agent fails.")


def dataset(sampler: Sampler | None, agent: Any = pays, **options: Any) -> AgentDataset:
    sizes: dict[str, Any] = {"batch_size": 2, "group_size": 2, "epochs": 4, **options}
    return AgentDataset(agent, [0.0, 1.0, 2.0, 3.0], sampler=sampler, **sizes)


async def play(batch: Any, strategy: RolloutStrategy | None = None) -> None:
    for group in batch:
        await do_group_rollout(group, policy_of(), strategy)


async def test_a_batch_has_the_tasks_that_the_sampler_chooses() -> None:
    batches = dataset(Fixed([3, 0], [2], [1, 1]))

    assert len(batches) == 8, "as many batches as without a sampler"
    assert [[group.task for group in batches.get_batch(i)] for i in (0, 1)] == [[3.0, 0.0], [2.0]]
    assert batches.get_batch(1)[0].batch == BatchPosition(index=1, groups=1)
    first, second = batches.get_batch(2)
    assert first.seed != second.seed, "different seeds although the task is the same"


async def test_a_sampler_gets_the_total_rewards_of_every_group_played_in_this_process() -> None:
    sampler = Fixed([3, 0])
    batch = dataset(sampler, group_reward=lambda group: [0.5, 0.0]).get_batch(0)
    await play([*batch, batch[0]])
    assert sampler.told == [(3, [3.5, 3.0]), (0, [0.5, 0.0]), (3, [3.5, 3.0])]

    sampler = Fixed([3])
    [group] = dataset(sampler).get_batch(0)
    elsewhere = pickle.loads(pickle.dumps(group))
    await play([elsewhere])
    assert (sampler.told, elsewhere.rewards) == ([], [3.0, 3.0])
    group.report_rewards(elsewhere.rewards)
    assert sampler.told == [(3, [3.0, 3.0])]


@pytest.mark.parametrize("strategy", [FailFast(), LeaveOut()], ids=lambda s: type(s).__name__)
async def test_the_sampler_is_told_about_a_failed_group_without_rewards(
    strategy: RolloutStrategy,
) -> None:
    sampler = Fixed([1])
    with pytest.raises(Exception, match="This agent fails"):
        await play(dataset(sampler, fails).get_batch(0), strategy)

    assert sampler.told == [(1, [])]


def test_a_batch_with_an_unknown_task_is_rejected() -> None:
    wrong: list[Any] = [[], [4], [-1], [0.0], ["a"]]
    for chosen in wrong:
        with pytest.raises(InvalidDatasetError) as caught:
            dataset(Fixed(chosen)).get_batch(2)
        assert_says(caught.value, f"The sampler Fixed chose {chosen!r} for batch 2", "from 0 to 3")


async def test_a_builder_creates_a_sampler_or_accepts_one() -> None:
    async def sampler_of(value: Any) -> Any:
        builder = AgentDatasetBuilder(
            agent=pays, train_tasks=[0.0] * 9, batch_size=4, sampler=value
        )
        train, _ = await builder()
        assert isinstance(train, AgentDataset)
        return train.sampler

    samplers: list[Any] = [
        "evert:Curriculum",
        Curriculum,
        functools.partial(Curriculum, retry=0.2),
        lambda tasks, batch_size, seed: Curriculum(tasks, batch_size, seed),
    ]
    for sampler in samplers:
        first, second = [await sampler_of(sampler) for _ in range(2)]
        assert isinstance(first, Curriculum), sampler
        assert first is not second
        assert (len(first.next(0)), first.batch_size) == (4, 4)
    itself = Fixed([0])
    assert await sampler_of(itself) is itself
    assert make_sampler("", 1, 1, 0) is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (5, "The sampler is 5; expected an object"),
        (lambda tasks, batch_size, seed: None, "The sampler is None; expected an object"),
        ("evert:Nothing", "No sampler at 'evert:Nothing'"),
        (functools.partial(Curriculum, retry=-0.1), "expected fractions of at least 0"),
        (functools.partial(Curriculum, retry=0.6, explore=0.6), "expected fractions of at least 0"),
    ],
)
def test_an_invalid_sampler_is_rejected(given: Any, said: str) -> None:
    with pytest.raises(InvalidDatasetError, match=said):
        make_sampler(given, 1, 1, 0)


def told(curriculum: Curriculum, teaching: range, flat: range = range(0)) -> Curriculum:
    for task in (*teaching, *flat):
        curriculum.update(task, MIXED if task in teaching else FLAT)
    return curriculum


def test_tasks_with_mixed_rewards_are_repeated_and_others_rest() -> None:
    curriculum = Curriculum(100, 10, retry=0.0, explore=0.0)
    first = curriculum.next(0)
    for task in first:
        curriculum.update(task, MIXED if task == first[0] else FLAT)

    second = curriculum.next(1)
    assert first[0] in second
    assert not {*first[1:]} & {*second}
    assert len({*second}) == 10, "the other tasks are new"


def test_a_task_rests_after_two_groups_with_equal_rewards() -> None:
    curriculum = Curriculum(2, 1, retry=0.0, explore=0.0)
    chosen = []
    for rewards in (MIXED, FLAT, MIXED, FLAT, FLAT):
        curriculum.update(0, rewards)
        chosen += curriculum.next(0)
    assert chosen == [0, 0, 0, 0, 1]

    for rewards in ([], [1.0], [0.1 + 0.2, 0.3], [0.0, 0.0]):  # all equal
        curriculum = Curriculum(2, 1, retry=0.0, explore=0.0)
        curriculum.update(0, rewards)
        assert curriculum.next(0) == [1], rewards


def test_every_resting_task_is_retried_and_kept_if_its_rewards_are_mixed() -> None:
    curriculum = told(Curriculum(40, 10, retry=0.1, explore=0.0), range(20), range(20, 40))
    came: list[int] = []
    for step in range(20):
        for task in curriculum.next(step):
            if task >= 20:
                came.append(task)
            curriculum.update(task, MIXED if task < 20 or task == 30 else FLAT)

    assert {*range(20, 40)} == {*came}
    assert len(came) - came.count(30) == 19, "a tenth of all groups is for retries"
    assert came.count(30) > 1


def test_the_fractions_of_retried_and_new_tasks_refer_to_all_groups() -> None:
    curriculum = told(Curriculum(8, 2, retry=0.25, explore=0.0), range(4), range(4, 8))
    resting = [sum(task >= 4 for task in curriculum.next(step)) for step in range(4)]
    assert resting == [0, 1, 0, 1], "half a group per batch means a group in every other batch"
    curriculum = told(Curriculum(100, 10, retry=0.0, explore=0.3), range(50))
    assert sum(task >= 50 for task in curriculum.next(0)) == 3, "explores despite enough good tasks"
    curriculum = told(Curriculum(5, 10), range(0), range(5))
    assert sorted(curriculum.next(3)) == [0, 1, 2, 3, 4], "full even if all tasks are resting"


@given(seed=st.integers(0, 9), data=st.data())
def test_the_order_in_which_groups_finish_does_not_matter(seed: int, data: st.DataObject) -> None:
    first, second = Curriculum(30, 8, seed), Curriculum(30, 8, seed)
    for step in range(4):
        batch = first.next(step)
        assert batch == first.next(step) == second.next(step)
        for curriculum, order in ((first, batch), (second, data.draw(st.permutations(batch)))):
            for task in order:
                curriculum.update(task, MIXED if task % 3 else FLAT)
    assert Curriculum(30, 8, seed + 1).next(0) != Curriculum(30, 8, seed).next(0)


async def flips(client: Any, task: float) -> float:
    """Give random rewards on half of the tasks and constant rewards on the other half."""
    await ask(client)
    return task if task % 2 else client.rng.random()


async def deals(steps: range, path: Path | None, sampler: Sampler | None = None) -> list[list[Any]]:
    """Play these batches with a new dataset, as a new process would, and return their tasks."""
    batches = dataset(sampler or Curriculum(4, 2), flips, sampler_log=path)
    dealt = []
    for step in steps:
        batch = batches.get_batch(step)
        dealt.append([group.task for group in batch])
        await play(batch)
    return dealt


async def test_a_resumed_run_chooses_the_same_tasks_as_an_uninterrupted_one(tmp_path: Path) -> None:
    path = tmp_path / "sampler.jsonl"
    uninterrupted = await deals(range(8), None)
    await deals(range(5), path)  # as if killed after step 5, with a checkpoint at step 4

    assert await deals(range(4, 8), path) == uninterrupted[4:]
    assert await deals(range(7, 8), path) == uninterrupted[7:], "also if resumed again, from step 7"
    records = read_sampler_log(path)
    assert [record["step"] for record in records] == sorted([*range(8)] * 2)
    sampler = Fixed([0])
    await deals(range(1), path, sampler)
    assert len(sampler.told) == 1, "a run that starts from scratch ignores the log"


async def test_a_torn_line_of_the_samplers_log_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "sampler.jsonl"
    await deals(range(2), path, Fixed([0, 1]))
    path.write_text(path.read_text()[:-20])
    sampler = Fixed([2])
    await deals(range(2, 3), path, sampler)

    assert [task for task, _ in sampler.told] == [0, 1, 0, 2]
    assert [record["task"] for record in read_sampler_log(path)] == [0, 1, 0, 2]
