"""The Cookbook's unchanged training loop, with its rollouts in Ray actors."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from tests.trainers.workers.conftest import play, rewards, says_task
from tests.trainers.workers.test_runs import check_the_loop

from evert.ray import RayRollouts
from evert.trainers.workers.errors import LostGroupError

# Ray leaves its cluster's processes unreaped.
pytestmark = pytest.mark.filterwarnings("ignore:.*is still running:ResourceWarning")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """Start a Ray cluster for this module."""
    ray.init("local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def rollouts(cluster: None) -> Iterator[RayRollouts]:
    with RayRollouts(workers=2, groups_per_worker=4) as running:
        yield running


def test_runs_without_ray_with_ray_and_with_dying_workers_are_equal(tmp_path: Path) -> None:
    check_the_loop(RayRollouts, tmp_path)


@pytest.mark.nightly
async def test_the_error_names_a_task_that_kills_each_of_its_workers(rollouts: RayRollouts) -> None:
    async def deadly(client: Any, task: float) -> float:

        if task == 2.0:
            os._exit(7)
        await client.chat.completions.create(messages=[{"role": "user", "content": "Hi"}])
        return task

    groups = await asyncio.gather(
        *(play(rollouts, deadly, float(task)) for task in range(4)), return_exceptions=True
    )

    error = groups.pop(2)
    assert isinstance(error, LostGroupError)
    assert "deadly on task 2.0 was lost because its worker died 3 times" in str(error)
    assert [rewards(group)[0] for group in groups] == [0.0, 1.0, 3.0]  # type: ignore[arg-type]


@pytest.mark.nightly  # takes a minute, mostly waiting
async def test_a_stopped_actor_is_distinguished_from_a_slow_one(tmp_path: Path) -> None:
    flag = tmp_path / "stopped"

    def stop_once() -> None:
        import signal

        if not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGSTOP)

    async def agent(client: Any, task: float) -> float:
        await client.chat.completions.create(messages=[{"role": "user", "content": "Hi"}])
        stop_once()
        return task

    with RayRollouts(1, 2, worker_timeout=30.0) as executor:
        assert rewards(await play(executor, agent, 3.0, size=1)) == [3.0]
        assert executor.lost_groups == 1


@pytest.mark.nightly
async def test_shutdown_leaves_no_actor_and_keeps_a_running_ray() -> None:
    executor = RayRollouts(1, 2)
    assert rewards(await play(executor, says_task())) == [1.0, 1.0]

    executor.shutdown()
    executor.shutdown()

    assert ray.is_initialized()
    with pytest.raises(RuntimeError, match="after shutdown"):
        await play(executor, says_task())
