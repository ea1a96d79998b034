"""Scores and their intervals.

1. The interval of one episode a task is the exact one; it never has no width, and holds the truth
   as often as it says, near 0 and 1 and where a task's episodes agree.
2. Episodes of one task count for less, the more they agree.
3. A score holds the share of successes, questions of the successes, tool calls, failures.
4. Groups are by model, split, category.
5. The CSV has everything, the terminal's table only the columns that say something.
"""

import csv
import io
import json
import math
import random
from dataclasses import asdict
from statistics import fmean, stdev
from typing import Any

import pytest
from rich.console import Console
from scipy import stats  # type: ignore[import-untyped]
from scipy.stats import binomtest  # type: ignore[import-untyped]

from evert.envs.games import Game, Metric
from evert.trainers.episodes.playing import Episode
from evert.trainers.episodes.scores import (
    Score,
    as_csv,
    as_play_table,
    as_table,
    counted,
    independent,
    interval,
    mean_error,
    scores,
)


def episode(task: int = 0, success: bool = True, **other: Any) -> Episode:
    fields: dict[str, Any] = {
        "model": "m", "digest": "d", "split": "test", "task": task, "seed": 0, "category": "animal",
        "reward": float(success), "success": success, "turns": 3, "tokens": 30, "metrics": {},
    }  # fmt: skip
    return Episode(**{**fields, **other})


def score(episodes: list[Episode]) -> Score:
    (found,) = scores(episodes)
    return found


# -- 1. the interval -----------------------------------------------------------------------------


@pytest.mark.parametrize(("won", "tasks"), [(0, 10), (1, 10), (5, 10), (38, 40), (40, 40), (1, 1)])
def test_with_one_episode_a_task_it_is_the_exact_interval_of_a_binomial(
    won: int, tasks: int
) -> None:
    exact = binomtest(won, tasks).proportion_ci(0.95, method="exact")

    assert interval([[n < won] for n in range(tasks)]) == pytest.approx((exact.low, exact.high))


@pytest.mark.parametrize("episodes", [1, 4, 100])
@pytest.mark.parametrize(("tasks", "least"), [(1, 0.97), (5, 0.5), (40, 0.08)])
def test_all_successes_are_as_sure_as_their_tasks_are_many(
    tasks: int, episodes: int, least: float
) -> None:
    low, high = interval([[True] * episodes] * tasks)

    assert high == 1
    assert high - low > least
    assert interval([[False] * episodes] * tasks) == pytest.approx((0, 1 - low))


def test_one_task_says_next_to_nothing_about_others() -> None:
    low, high = interval([[True, True, False, True]])

    assert low < 0.1
    assert high > 0.99


def coverage(share: float, tasks: int, episodes: int, *, agree: float) -> float:
    """How often the interval holds the share; ``agree`` of the tasks always end the same way."""
    rng = random.Random(0)

    def task() -> list[bool]:
        if rng.random() < agree:
            return [rng.random() < share] * episodes
        return [rng.random() < share for _ in range(episodes)]

    found = [interval([task() for _ in range(tasks)]) for _ in range(600)]
    return sum(low <= share <= high for low, high in found) / len(found)


@pytest.mark.parametrize("agree", [0, 0.75, 1])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.5, 0.9, 0.98])
@pytest.mark.parametrize("tasks", [5, 10, 40])
def test_it_holds_the_truth_as_often_as_it_says(tasks: int, share: float, agree: float) -> None:
    # 600 draws of 0.95 fall below 0.93 once in a hundred times; the draws are always the same.
    assert coverage(share, tasks, 8, agree=agree) > 0.93


def test_it_is_no_wider_than_it_has_to_be() -> None:
    rng = random.Random(0)
    low, high = interval([[rng.random() < 0.8 for _ in range(4)] for _ in range(200)])

    # 1.96 standard errors of 800 independent episodes to both sides are 0.055.
    assert high - low < 0.07


# -- 2. episodes of one task ---------------------------------------------------------------------


def test_one_episode_a_task_counts_in_full() -> None:
    assert independent([[True], [False], [True]]) == 3


def test_episodes_that_always_agree_count_as_one_a_task() -> None:
    assert independent([[True] * 4, [False] * 4, [True] * 4]) == pytest.approx(3)


def test_episodes_that_have_nothing_to_do_with_their_task_count_in_full() -> None:
    rng = random.Random(0)
    by_task = [[rng.random() < 0.5 for _ in range(10)] for _ in range(200)]

    assert independent(by_task) > 1600


def test_between_the_two_the_count_is_between() -> None:
    rng = random.Random(0)
    by_task = [
        [rng.random() < chance for _ in range(4)]
        for chance in (rng.choice((0.2, 0.8)) for _ in range(200))
    ]

    assert 250 < independent(by_task) < 600


def test_a_single_task_is_one_episode_however_often_it_is_played() -> None:
    assert independent([[True, False, True]]) == 1


def test_where_all_episodes_end_alike_tasks_are_counted() -> None:
    assert independent([[True] * 4] * 5) == 5
    assert independent([[False] * 4] * 5) == 5


def test_there_are_no_more_independent_episodes_than_episodes() -> None:
    assert independent([[True, False]] * 6) == 12


# -- 3. a score ----------------------------------------------------------------------------------


def test_a_score_is_the_share_of_successes_with_its_interval() -> None:
    played = [episode(task, task < 8) for task in range(10)]
    found = score(played)

    assert (found.episodes, found.success, found.reward) == (10, 0.8, 0.8)
    assert (found.low, found.high) == pytest.approx((0.4439, 0.9748), abs=1e-4)


def test_questions_are_those_of_the_successes() -> None:
    played = [
        episode(0, True, metrics={"questions": 4}),
        episode(1, True, metrics={"questions": 6}),
        episode(2, False, metrics={"questions": 20}),
    ]

    assert score(played).questions == 5


def test_where_no_questions_are_counted_turns_are() -> None:
    assert score([episode(turns=7)]).questions == 7
    assert score([episode(success=False)]).questions is None


def test_tool_calls_are_the_games_own_count_or_the_envs() -> None:
    own = episode(metrics={"searches": 2, "tools/calls": 3})
    env = episode(metrics={"tools/calls": 3})

    assert score([own]).calls == 2
    assert score([env]).calls == 3
    assert score([episode()]).calls == 0


def test_an_episode_whose_agent_failed_is_no_success_and_has_no_reward() -> None:
    failed = episode(1, False, reward=None, error="it broke")
    found = score([episode(0), failed])

    assert (found.success, found.reward, found.errors) == (0.5, 1.0, 1)
    assert score([failed]).reward is None


# -- 4. groups -----------------------------------------------------------------------------------

PLAYED = [
    episode(task, task % 2 == 0, model=model, split=split, category=category)
    for model in ("a", "b")
    for split in ("train", "test")
    for task, category in enumerate(("animal", "food", "food"))
]


def test_groups_are_by_model_split_and_category() -> None:
    assert [(row.model, row.episodes) for row in scores(PLAYED)] == [("a", 6), ("b", 6)]
    assert [(row.model, row.split) for row in scores(PLAYED, "split")] == [
        ("a", "train"), ("a", "test"), ("b", "train"), ("b", "test"),
    ]  # fmt: skip
    assert [(r.category, r.episodes, r.success) for r in scores(PLAYED, "category")][:2] == [
        ("animal", 2, 1.0), ("food", 4, 0.5),
    ]  # fmt: skip


def test_tasks_of_two_splits_are_not_taken_for_one() -> None:
    (row,) = scores([episode(0, True, split="train"), episode(0, False)])

    assert (row.low, row.high) == pytest.approx(interval([[True], [False]]))


def test_a_score_reads_back_from_json() -> None:
    (row, *_) = scores(PLAYED, "split")

    assert Score(**json.loads(json.dumps(asdict(row)))) == row


# -- 5. tables -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 24])
def test_the_interval_of_a_mean_is_students(count: int) -> None:
    rewards = [0.1 * task**2 for task in range(count)]
    low, high = stats.t.interval(
        0.95, count - 1, loc=fmean(rewards), scale=stdev(rewards) / math.sqrt(count)
    )
    assert mean_error([[reward] for reward in rewards]) == pytest.approx((high - low) / 2)
    assert mean_error([[r - 1, r + 1] for r in rewards]) == pytest.approx((high - low) / 2)


def test_one_task_shows_no_spread() -> None:
    assert mean_error([[0.0, 1.0]]) is None
    assert score([episode(success=False)]).reward_error is None


def test_the_csv_reads_back() -> None:
    rows = scores(PLAYED, "split")
    read = list(csv.DictReader(io.StringIO(as_csv(rows))))

    assert [(row["model"], row["split"], row["success"]) for row in read] == [
        ("a", "train", "0.6667"), ("a", "test", "0.6667"),
        ("b", "train", "0.6667"), ("b", "test", "0.6667"),
    ]  # fmt: skip
    assert read[0]["category"] == ""
    assert as_csv([score([episode(success=False)])]).endswith(",,0.0000,0,,,,\n")


def shown(rows: list[Any], **options: Any) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(as_table(rows, **options))
    written: Any = console.file
    return str(written.getvalue())


def test_the_table_shows_every_model_with_its_interval() -> None:
    text = shown(scores(PLAYED, "split"))

    assert text.count("66.7%") == 4
    assert "train" in text
    assert "%-" in text


def test_how_a_game_is_played_is_shown_where_it_says() -> None:
    games = [episode(metrics={"asks_first": share, "repeats": 1.0}) for share in (0.0, 1.0)]
    row, plain = score([*games, episode()]), score([episode()])

    assert row.play == {"asks_first": 0.5, "repeats": 1.0}
    assert plain.play == {}
    table = as_play_table([row, plain])
    assert table is not None
    assert table.row_count == 1
    assert [column.header for column in table.columns][2:4] == ["asks first", "repeats"]
    assert as_play_table([plain]) is None


def test_a_metric_of_ones_own_game_is_averaged_and_has_a_column() -> None:
    metrics = {"jumps": Metric("Jumps", "jumps"), "falls": Metric("Falls", "falls", tabled=False)}
    game = Game("my/Jump-v0", "m:agent", "m:TASKS", metrics=metrics)
    rows = scores([episode(metrics={"jumps": n, "falls": 1.0}) for n in (1.0, 2.0)], game=game)

    assert rows[0].play == {"jumps": 1.5}
    assert next(csv.DictReader(io.StringIO(as_csv(rows))))["jumps"] == "1.5000"
    assert as_play_table(rows) is not None


def test_turns_are_headed_as_turns_where_no_questions_are_counted() -> None:
    asked, called = episode(metrics={"questions": 4}), episode(turns=7)
    assert (counted([called, asked]), counted([called])) == ("questions", "turns")

    text = shown([score([called])], questions=counted([called]))

    assert "turns" in text
    assert "questions" not in text


def test_columns_that_would_say_nothing_are_left_out() -> None:
    plain = shown(scores(PLAYED))
    calls = shown([score([episode(metrics={"searches": 1})])])
    failed = shown([score([episode(success=False, reward=None, error="x")])])

    assert not {"reward", "tool calls", "failed"} & set(plain.split())
    assert "tool calls" in calls
    assert "failed" in failed
    assert "1 (100%)" in failed
    assert "reward" in failed
