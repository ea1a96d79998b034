"""Self-play from the command line: seats, a league of the run's own checkpoints, and opponents."""

import csv
from pathlib import Path
from typing import Any

import pytest
from tests.trainers.kit import Cli

import evert
from evert.trainers.episodes.playing import EpisodeLog
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.system.files import SCORES

SMALL: dict[str, Any] = {
    "batch_size": 6, "group_size": 2, "warm_up_steps": 2, "warm_up_batch": 8, "samples": 1,
    "eval_every": 0, "save_every": 1, "steps": 3, "league": 1.0, "device": "cpu",
}  # fmt: skip


def play(folder: Path, **settings: Any) -> RunFolder:
    """Train tic-tac-toe. As soon as the league has a checkpoint, every group plays against it."""
    tasks = ["." * 9, "x........"]
    return evert.train(env="tic_tac_toe", test_tasks=tasks, log_path=folder, **SMALL, **settings)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return play(tmp_path_factory.mktemp("self_play") / "run")


def test_both_seats_have_metrics_and_the_league_plays_one_seat(run: RunFolder) -> None:
    first, *_, last = run.steps()
    for step in (first, last):
        assert {"env/all/seat/x/reward", "env/all/seat/o/reward"} <= step.keys()
    assert first["env/all/total_episodes"] == 6 * 2 * 2  # one Env per seat
    # Only one Env per game, because the league plays the other seat. Only the first move of a game
    # is trained, so groups in which the league moves first have nothing to learn and are left out.
    assert 0 < last["env/all/total_episodes"] <= 6 * 2


@pytest.mark.nightly
def test_workers_play_against_the_league(tmp_path: Path) -> None:
    test_both_seats_have_metrics_and_the_league_plays_one_seat(
        play(tmp_path / "pooled", rollouts="pool", rollout_workers=1)
    )


def test_held_out_games_are_against_the_perfect_player(run: RunFolder) -> None:
    before = (run.before or {})["greedy"]
    assert before["reward"] <= 0.0
    assert before["won"] == 0.0
    assert before["drawn"] + before["lost"] == pytest.approx(1.0)


def test_an_evaluation_counts_wins_by_seat(run: RunFolder, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "e"
    plays = ["env=tic_tac_toe", f"models={run.path}@2", "split=test", "max_tasks=4", "seeds=1"]
    shown = cli("evaluate", *plays, "opponent=random", f"out={out}")
    assert "against random" in shown
    assert all(word in shown for word in ("won", "drawn", "lost"))
    with (out / SCORES).open() as file:
        [row] = csv.DictReader(file)
    assert sum(float(row[name]) for name in ("won", "drawn", "lost")) == pytest.approx(1.0)
    metrics = [episode.metrics for episode in EpisodeLog(out).by_key.values()]
    seats = [("seat/x/reward" in row, "seat/o/reward" in row) for row in metrics]
    assert seats.count((True, False)) == 2
    cli("evaluate", *plays, f"opponent={run.path}@1", f"out={tmp_path}/other")
