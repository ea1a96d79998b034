"""Whole runs that play their rollouts in a pool.

1. The unchanged ``rl.train.main`` gives the same run as in one process, even if a worker is killed.
2. ``evert train rollouts=pool`` counts and prints the same as without workers, plus lost groups.
3. A missing or failing Ray is an error. ``test_refusals.py`` covers conflicting settings.
"""

import asyncio
import io
from collections.abc import Callable
from concurrent.futures import Executor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.trainers.workers.conftest import lengths
from tinker_cookbook.rl import train as cookbook

import evert
from evert.bridge.errors import MissingPackageError
from evert.trainers.config.train import TrainSettings
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.system.files import BATCHES, read_jsonl
from evert.trainers.training.cookbook import cookbook_config
from evert.trainers.training.workers import check_workers
from evert.trainers.workers.actors import _near, _start_ray
from evert.trainers.workers.errors import WorkerError
from evert.trainers.workers.pool import PoolRollouts

OWN: dict[str, Any] = {
    "agent": "evert.envs.identity:identity_agent", "steps": 2, "batch_size": 4, "group_size": 4,
    "train_tasks": [float(number) for number in range(8)], "max_tokens": 16, "eval_every": 0,
    "save_every": 0,
}  # fmt: skip


# -- 1. the Cookbook's loop -----------------------------------------------------------------------


def trained(folder: Path, agent: Any, executor: Executor | None) -> list[dict[str, Any]]:
    """Train, and return the metrics of the episodes and optimizer steps."""
    settings = TrainSettings(**{**OWN, "agent": agent})
    config = cookbook_config(settings, folder / "log", embedded=False)
    with evert.embedded_engine(folder / "store", device="cpu", threads=1):
        asyncio.run(cookbook.main(config, rollout_executor=executor))
    rows = read_jsonl(folder / "log/metrics.jsonl")
    prefixes = ("env/", "optim/", "progress/")
    return [{key: row[key] for key in row if key.startswith(prefixes)} for row in rows]


def check_the_loop(make: Callable[[int, int], Any], folder: Path) -> None:
    """Assert that runs without workers, with workers, and with dying workers match."""
    dying = folder / "dying"
    dying.mkdir()
    here = trained(folder / "here", lengths(), None)
    with make(2, 2) as workers:
        there = trained(folder / "there", lengths(), workers)
        assert workers.lost_groups == 0
    for task in (0.0, 5.0):
        (dying / str(task)).touch()
    with make(1, 2) as workers:
        killed = trained(folder / "killed", lengths(dying), workers)
        assert workers.lost_groups >= 2
    assert len(here) == OWN["steps"]
    assert [pytest.approx(row, rel=1e-3, abs=1e-4) for row in there] == here
    played = [[row["env/all/total_episodes"] for row in rows] for rows in (here, killed)]
    assert played[0] == played[1] == [16, 16]  # lost episodes are sampled again
    assert not [*dying.iterdir()]


def test_the_cookbooks_loop_gives_the_same_run_in_a_pool(tmp_path: Path) -> None:
    check_the_loop(PoolRollouts, tmp_path)


# -- 2. evert train -------------------------------------------------------------------------------


def run(path: Path, **values: Any) -> tuple[RunFolder, str]:
    shown = io.StringIO()
    settings = {**OWN, "log_path": str(path), "device": "cpu", "threads": 1, **values}
    agent, tasks, console = settings.pop("agent"), settings.pop("train_tasks"), Console(file=shown)
    console.width = 400
    folder = evert.train(agent, tasks, console=console, **settings)
    return folder, shown.getvalue()


def sometimes_fails() -> Callable[..., Any]:
    plays = lengths()

    async def agent(client: Any, task: float) -> float:
        reward = await plays(client, task)
        if task in (1.0, 2.0):
            raise LookupError("no such table")
        return float(reward)

    return agent


def test_a_run_with_workers_counts_the_same_failures_as_without(tmp_path: Path) -> None:
    here, _ = run(tmp_path / "here", agent=sometimes_fails())
    workers = {"rollouts": "pool", "rollout_workers": 2, "groups_per_worker": 2}
    there, shown = run(tmp_path / "there", agent=sometimes_fails(), steps=1, **workers)
    assert "rollouts: 2 processes on this machine with up to 2 groups each" in shown
    run(tmp_path / "there", agent=sometimes_fails(), rollouts="here")
    batches = read_jsonl(there.path / BATCHES)
    assert batches[0]["metrics"].pop("rollout/lost_groups") == 0.0
    assert batches == read_jsonl(here.path / BATCHES)
    assert batches[0]["found"][0][0]["error"] == "LookupError: no such table"
    assert "in agent" in batches[0]["found"][0][0]["traceback"]
    rewards = [row["env/all/reward/total"] for row in here.steps()]
    assert [row["env/all/reward/total"] for row in there.steps()] == pytest.approx(rewards)


@pytest.mark.nightly
def test_lost_groups_are_in_the_metrics_and_reported_once(tmp_path: Path) -> None:
    (tmp_path / "0.0").touch()
    agent = lengths(dying=tmp_path)
    folder, shown = run(tmp_path / "run", agent=agent, rollouts="pool", rollout_workers=1)
    lost = [row["rollout/lost_groups"] for row in folder.steps()]
    assert len(lost) == 2
    assert sum(lost) >= 1.0
    assert "was killed by SIGKILL (out of memory?)); its groups will be rerun" in shown
    assert shown.count("a worker died") == 1


@pytest.mark.parametrize(
    ("nodes", "near"), [("1", "127.0.0.1"), ("2", "10.0.0.1"), ("12", "10.0.0.1")]
)
def test_workers_on_another_machine_sample_at_this_machines_address(nodes: str, near: str) -> None:
    assert _near([f"10.0.0.{node}" for node in nodes], host="10.0.0.1") == near


# -- 3. Ray errors --------------------------------------------------------------------------------


def test_the_error_for_a_ray_that_does_not_start_says_what_to_do() -> None:
    class Busy:
        shut = 0

        def init(self, *args: Any, **options: Any) -> None:
            raise Exception("The current node timed out during startup. This could happen")

        def shutdown(self) -> None:
            self.shut += 1

    busy = Busy()
    with pytest.raises(WorkerError, match="Ray could not be started on this machine .*timed out"):
        _start_ray(busy, "local", 1)
    assert busy.shut == 1


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_a_missing_ray_is_reported_before_the_run() -> None:
    with pytest.raises(MissingPackageError, match=r"pip install 'evert\[ray\]'"):
        check_workers(TrainSettings(**OWN, rollouts="ray"))
    from evert.ray import RayRollouts

    with pytest.raises(MissingPackageError, match="the ray package, which"):
        RayRollouts()
