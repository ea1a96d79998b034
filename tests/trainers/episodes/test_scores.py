"""Scores, their confidence intervals, and their tables."""

import csv
import io
import json
import math
import random
import re
from collections.abc import Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from rich.console import Console
from scipy import stats  # type: ignore[import-untyped]
from scipy.stats import binomtest  # type: ignore[import-untyped]
from tests.nightly import IS_NIGHT

from evert.envs.games import Game, Metric
from evert.trainers.episodes.playing import EpisodeResult
from evert.trainers.episodes.scores import (
    Score,
    as_csv,
    as_play_table,
    as_table,
    half_of,
    interval,
    mean_text,
    read_score,
    read_scores,
    scores,
    share_text,
    turns_name,
)


def episode(task: int = 0, success: bool = True, **other: Any) -> EpisodeResult:
    fields: dict[str, Any] = {
        "model": "m", "digest": "d", "split": "test", "task": task, "seed": 0, "category": "animal",
        "reward": float(success), "success": success, "turns": 3, "tokens": 30, "metrics": {},
    }  # fmt: skip
    return EpisodeResult(**{**fields, **other})


def score(episodes: list[EpisodeResult]) -> Score:
    (found,) = scores(episodes)
    return found


def share_interval(by_task: Sequence[Sequence[bool]]) -> tuple[float, float]:
    ends = interval(by_task, is_share=True)
    assert ends is not None
    return ends


def test_with_one_episode_per_task_the_interval_is_the_exact_binomial_one() -> None:
    for won, tasks in ((0, 10), (1, 10), (5, 10), (38, 40), (40, 40), (1, 1)):
        exact = binomtest(won, tasks).proportion_ci(0.95, method="exact")
        found = share_interval([[n < won] for n in range(tasks)])
        assert found == pytest.approx((exact.low, exact.high)), (won, tasks)


def test_the_width_of_an_interval_depends_on_the_number_of_tasks() -> None:
    for tasks, least in ((1, 0.97), (5, 0.5), (40, 0.08)):
        for episodes in (1, 4, 100):
            low, high = share_interval([[True] * episodes] * tasks)
            assert high == 1
            assert high - low > least, (tasks, episodes)
            assert share_interval([[False] * episodes] * tasks) == pytest.approx((0, 1 - low))
    low, high = share_interval([[True, True, False, True]])  # one task says little about others
    assert low < 0.1 < 0.99 < high
    rng = random.Random(0)
    low, high = share_interval([[rng.random() < 0.8 for _ in range(4)] for _ in range(200)])
    # For 800 independent episodes, an interval of ±1.96 standard errors is 0.055 wide.
    assert high - low < 0.07


def coverage(share: float, tasks: int, episodes: int, *, agree: float) -> float:
    """Return how often the interval contains the true rate.

    In a fraction ``agree`` of the tasks, all episodes have the same result.
    """
    rng = random.Random(0)

    def task() -> list[bool]:
        if rng.random() < agree:
            return [rng.random() < share] * episodes
        return [rng.random() < share for _ in range(episodes)]

    found = [share_interval([task() for _ in range(tasks)]) for _ in range(600)]
    return sum(low <= share <= high for low, high in found) / len(found)


@pytest.mark.parametrize("tasks", [5, 10, 40])
def test_the_interval_contains_the_true_value_as_often_as_it_claims(tasks: int) -> None:
    for share in (0.02, 0.1, 0.5, 0.9, 0.98) if IS_NIGHT else (0.02, 0.5, 0.9):
        for agree in (0, 0.75, 1):
            # If true coverage is 0.95, 1% of 600-draw samples fall below 0.93. The seed is fixed.
            assert coverage(share, tasks, 8, agree=agree) > 0.93, (share, agree)


def test_a_score_has_the_success_rate_with_its_interval_and_ignores_failed_episodes() -> None:
    found = score([episode(task, task < 8) for task in range(10)])
    assert (found.episodes, found.success, found.reward) == (10, 0.8, 0.8)
    assert (found.low, found.high) == pytest.approx((0.4439, 0.9748), abs=1e-4)
    failed = episode(1, False, reward=None, error="it broke")
    found = score([episode(0), failed])
    assert (found.success, found.reward, found.errors) == (0.5, 1.0, 1)
    assert score([failed]).reward is None


def test_question_and_call_counts_come_from_the_games_metrics_if_it_has_them() -> None:
    asked = ((True, 4), (True, 6), (False, 20))
    played = [episode(n, won, metrics={"questions": q}) for n, (won, q) in enumerate(asked)]
    assert score(played).questions == 5
    assert score([episode(turns=7)]).questions == 7
    assert score([episode(success=False)]).questions is None
    counts: list[dict[str, float]] = [{"searches": 2, "tools/calls": 3}, {"tools/calls": 3}, {}]
    assert [score([episode(metrics=each)]).calls for each in counts] == [2, 3, 0]


PLAYED = [
    episode(task, task % 2 == 0, model=model, split=split, category=category)
    for model in ("a", "b")
    for split in ("train", "test")
    for task, category in enumerate(("animal", "food", "food"))
]


def test_scores_are_grouped_by_model_split_and_category() -> None:
    assert [(row.model, row.episodes) for row in scores(PLAYED)] == [("a", 6), ("b", 6)]
    assert [(row.model, row.split) for row in scores(PLAYED, "split")] == [
        ("a", "train"), ("a", "test"), ("b", "train"), ("b", "test"),
    ]  # fmt: skip
    assert [(r.category, r.episodes, r.success) for r in scores(PLAYED, "category")][:2] == [
        ("animal", 2, 1.0), ("food", 4, 0.5),
    ]  # fmt: skip
    both = score([episode(0, True, split="train"), episode(0, False)])  # two tasks
    assert (both.low, both.high) == pytest.approx(share_interval([[True], [False]]))


def test_the_interval_of_a_mean_uses_students_t_and_needs_two_tasks() -> None:
    for count in (2, 24):
        rewards = [0.1 * task**2 for task in range(count)]
        low, high = stats.t.interval(
            0.95, count - 1, loc=fmean(rewards), scale=stdev(rewards) / math.sqrt(count)
        )
        assert half_of([[reward] for reward in rewards]) == pytest.approx((high - low) / 2)
        assert half_of([[r - 1, r + 1] for r in rewards]) == pytest.approx((high - low) / 2)
    assert half_of([[0.0, 1.0]]) is None
    assert score([episode(success=False)]).reward_error is None


def test_a_score_is_formatted_with_its_interval_if_known() -> None:
    assert [share_text(2 / 3, 0.125, 1.0), share_text(0.5), share_text(None)] == [
        "66.7% (12-100%)", "50.0%", "",
    ]  # fmt: skip
    assert [mean_text(-0.125, 0.5), mean_text(1.0), mean_text(None, 0.5)] == [
        "-0.12 ± 0.50", "1.00", "",
    ]  # fmt: skip


def test_an_invalid_score_is_refused_or_left_out(tmp_path: Path) -> None:
    [row] = scores([episode(metrics={"asks_first": 1.0})])
    whole = json.loads(json.dumps(asdict(row)))
    assert read_score(whole) == row
    for key in ("success", "reward", "errors", "play"):
        for value in ("x", [1], {"a": "b"}, math.inf if key == "errors" else 10**400):
            with pytest.raises(ValueError, match=r"\w"):
                read_score(whole | {key: value})
    with pytest.raises(ValueError, match="KeyError"):
        read_score({})
    (tmp_path / "scores.csv").write_text("model,pass_at_x\na,b\n")
    assert read_scores(tmp_path / "scores.csv") == read_scores(tmp_path / "none.csv") == []


def test_scores_are_read_back_from_csv(tmp_path: Path) -> None:
    rows = scores([episode(task, seed % 2 == task) for task in (0, 1) for seed in (0, 1)],
                  pass_at=(1, 2))  # fmt: skip
    (tmp_path / "scores.csv").write_text(as_csv(rows))
    [read_row] = read_scores(tmp_path / "scores.csv")
    assert (read_row.success, read_row.episodes) == (0.5, 4)
    assert astuple(read_row.pass_at[2]) == pytest.approx(astuple(rows[0].pass_at[2]), abs=1e-4)
    rows = scores(PLAYED, "split")
    read = list(csv.DictReader(io.StringIO(as_csv(rows))))
    assert [(row["model"], row["split"], row["success"]) for row in read] == [
        (model, split, "0.6667") for model in "ab" for split in ("train", "test")
    ]
    assert read[0]["category"] == ""
    assert as_csv([score([episode(success=False)])]).endswith(",,0.0000,0,,,,\n")


def test_a_games_own_metrics_have_their_own_table() -> None:
    games = [episode(metrics={"asks_first": share, "repeats": 1.0}) for share in (0.0, 1.0)]
    row, plain = score([*games, episode()]), score([episode()])
    assert (row.play, plain.play) == ({"asks_first": 0.5, "repeats": 1.0}, {})
    table = as_play_table([row, plain])
    assert table is not None
    assert table.row_count == 1
    assert [column.header for column in table.columns][2:4] == ["asks first", "repeats"]
    assert as_play_table([plain]) is None
    metrics = {"jumps": Metric("Jumps", "jumps"), "falls": Metric("Falls", "falls", tabled=False)}
    game = Game("my/Jump-v0", "m:agent", "m:TASKS", metrics=metrics)
    rows = scores([episode(metrics={"jumps": n, "falls": 1.0}) for n in (1.0, 2.0)], game=game)
    assert rows[0].play == {"jumps": 1.5}
    assert next(csv.DictReader(io.StringIO(as_csv(rows))))["jumps"] == "1.5000"
    assert as_play_table(rows) is not None
    game = Game("my/Jump-v0", "m:agent", "m:TASKS", metrics={"success": Metric("Lands", "jumps")})
    rows = scores([episode(success=True, metrics={"success": 0.2})], game=game)
    assert next(csv.DictReader(io.StringIO(as_csv(rows))))["success"] == "1.0000"


def test_the_table_has_every_model_but_only_informative_columns() -> None:
    def shown(rows: list[Any], **options: Any) -> str:
        written = io.StringIO()
        Console(file=written, width=80).print(as_table(rows, **options))
        return written.getvalue()

    asked, called = episode(metrics={"questions": 4}), episode(turns=7)
    assert (turns_name([called, asked]), turns_name([called])) == ("questions", "turns")
    plain = shown(scores(PLAYED, "split"), questions=turns_name([called]))
    assert len(re.findall(r"66\.7% \(\d+-\d+%\)", plain)) == 4
    assert {"train", "turns"} <= {*plain.split()}
    assert not {"reward", "calls", "failed", "questions"} & {*plain.split()}
    assert "tool calls" in shown([score([episode(metrics={"searches": 1})])])
    failed = shown([score([episode(success=False, reward=None, error="x")])])
    assert all(word in failed for word in ("failed", "1 (100%)", "reward"))
