"""pass@k (checked against brute force), its interval, and where evaluations show pass@k."""

import csv
import random
from itertools import combinations
from pathlib import Path
from statistics import fmean

import pytest
from tests.kit import Shown

from evert.trainers.commands import evaluate
from evert.trainers.episodes.scores import interval, pass_at
from evert.trainers.reporting.run import read_run
from evert.trainers.viewing.runs import figures


def brute_force(k: int, outcomes: list[list[bool]]) -> float:
    return fmean(fmean(map(any, combinations(task, k))) for task in outcomes)


def test_pass_at_k_equals_the_average_over_all_choices_of_k_episodes() -> None:
    rng = random.Random(0)
    for _ in range(200):
        episodes, share = rng.randint(1, 8), rng.random()
        table = [
            [rng.random() < share for _ in range(episodes + rng.randint(0, 2))]
            for _ in range(rng.randint(1, 6))
        ]
        k = rng.randint(1, episodes)
        estimate = pass_at(k, table)
        assert estimate.value == pytest.approx(brute_force(k, table))
        assert 0 <= estimate.low <= estimate.value + 1e-9
        assert estimate.value - 1e-9 <= estimate.high <= 1


def test_pass_at_1_is_the_success_rate_with_its_interval() -> None:
    table = [[True, False, False, True], [False] * 4, [True] * 4]
    estimate = pass_at(1, table)
    assert (estimate.low, estimate.high) == pytest.approx(interval(table, is_share=True))


def test_the_interval_of_pass_at_k_contains_the_true_value_in_19_of_20_samples() -> None:
    rng, k, episodes = random.Random(0), 4, 16
    truth = fmean(1 - (1 - share / 1000) ** k for share in range(1000))  # success rates are uniform
    inside = 0
    for _ in range(400):
        table = [
            [rng.random() < share for _ in range(episodes)]
            for share in (rng.random() for _ in range(20))
        ]
        estimate = pass_at(k, table)
        inside += estimate.low <= truth <= estimate.high
    assert inside >= 0.94 * 400


def test_a_task_with_too_few_episodes_is_an_error() -> None:
    with pytest.raises(ValueError, match="pass@4 needs 4 episodes per task, but one task has 3"):
        pass_at(4, [[True] * 4, [False] * 3])


def test_pass_at_k_is_in_the_table_the_file_the_figure_and_the_viewer(
    tmp_path: Path, capsys: Shown
) -> None:
    out = tmp_path / "evaluation"
    typed = ["env=twenty_questions", "models=random", "split=test", "max_tasks=5", "seeds=4"]
    assert evaluate.main([*typed, "pass_at=1,4", f"out={out}"]) == 0
    printed = capsys.readouterr().out
    assert "pass@1" in printed
    assert "pass@4" in printed
    with (out / "scores.csv").open(newline="") as file:
        [row] = [row for row in csv.DictReader(file) if not row["category"]]
    assert row["pass_at_1"] == row["success"]
    assert float(row["pass_at_4_low"]) <= float(row["pass_at_4"]) <= float(row["pass_at_4_high"])
    assert (out / "pass_at.png").stat().st_size > 1000
    [shown] = figures(read_run(out), [])["table"]
    assert [each["k"] for each in shown["pass_at"]] == [1, 4]
    assert shown["pass_at"][0]["text"] == shown["success"]
    assert shown["pass_at"][1]["value"] == float(row["pass_at_4"])


@pytest.mark.parametrize("k", ["0", "8"])
def test_a_k_above_the_number_of_episodes_is_refused(k: str, capsys: Shown) -> None:
    assert (
        evaluate.main(["env=twenty_questions", "models=random", "seeds=4", f"pass_at=1,{k}"]) == 1
    )
    message = capsys.readouterr().err
    assert f"pass_at contains {k}, but seeds=4" in message
