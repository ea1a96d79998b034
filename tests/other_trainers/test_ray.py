"""The Cookbook's loop, unchanged, with its rollouts in Ray's actors."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from tests.trainers.workers.conftest import lengths, play, rewards, says_task
from tinker_cookbook.rl import train as cookbook
from tinker_cookbook.rl.rollout_strategy import FailFast

import evert
from evert.bridge.errors import AgentError
from evert.bridge.groups.group import ChatAgentGroupBuilder
from evert.ray import RayRollouts
from evert.trainers.config.train import TrainSettings
from evert.trainers.training.cookbook import cookbook_config
from evert.trainers.workers.errors import LostGroupError

# Ray forgets the processes of the cluster that it ends.
pytestmark = pytest.mark.filterwarnings("ignore:.*is still running:ResourceWarning")

STEPS = 2
TASKS = [float(number) for number in range(16)]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """A Ray of this module's own."""
    ray.init("local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def rollouts(cluster: None) -> Iterator[RayRollouts]:
    with RayRollouts(workers=2, groups_per_worker=4) as running:
        yield running


def train(folder: Path, agent: Any, executor: Any) -> list[dict[str, Any]]:
    """Rewards, step by step, of ``rl.train.main`` as it is."""
    settings = TrainSettings(
        agent=agent, train_tasks=TASKS, steps=STEPS, batch_size=8, group_size=4, max_tokens=16,
        eval_every=0, save_every=0,
    )  # fmt: skip
    config = cookbook_config(settings, folder / "log", embedded=False)
    with evert.embedded_engine(folder / "store", device="cpu", threads=1):
        asyncio.run(cookbook.main(config, rollout_executor=executor))
    return [json.loads(line) for line in (folder / "log/metrics.jsonl").read_text().splitlines()]


def told(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a run's metrics say of its episodes and its training, without times."""
    return [
        {
            key: pytest.approx(value, rel=1e-3, abs=1e-4) if isinstance(value, float) else value
            for key, value in row.items()
            if key.startswith(("env/", "optim/", "progress/"))
        }
        for row in rows
    ]


def test_a_run_is_the_same_with_workers_without_and_with_workers_that_die(tmp_path: Path) -> None:
    dying = tmp_path / "dying"
    dying.mkdir()
    here = train(tmp_path / "here", lengths(), None)
    with RayRollouts(2, 4) as executor:
        there = train(tmp_path / "there", lengths(), executor)
        assert executor.lost_groups == 0
    for task in (0.0, 9.0):
        (dying / str(task)).touch()
    with RayRollouts(2, 4) as executor:
        died = train(tmp_path / "died", lengths(dying), executor)
        assert executor.lost_groups >= 2
        assert not [*dying.iterdir()]

    assert len(here) == STEPS
    assert told(there) == told(here)
    assert [row["env/all/total_episodes"] for row in died] == [32, 32]


@pytest.mark.nightly
async def test_a_task_that_kills_each_of_its_workers_is_named(rollouts: RayRollouts) -> None:
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
    assert "deadly on the task 2.0 was lost with its worker 3 times" in str(error)
    assert [rewards(group)[0] for group in groups] == [0.0, 1.0, 3.0]  # type: ignore[arg-type]


@pytest.mark.nightly
async def test_an_agents_error_is_its_own(rollouts: RayRollouts) -> None:
    async def fails(client: Any) -> float:
        raise LookupError("no such table")

    builder = ChatAgentGroupBuilder(fails)
    with pytest.raises(AgentError, match="raised LookupError") as caught:
        await play(rollouts, None, builder=builder, strategy=FailFast())

    assert isinstance(caught.value.__cause__, LookupError)


@pytest.mark.nightly  # a minute, most of it waiting
async def test_a_stopped_actor_is_told_from_a_slow_one(tmp_path: Path) -> None:
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
async def test_shutting_down_leaves_no_actor_and_the_ray_it_found() -> None:
    executor = RayRollouts(1, 2)
    assert rewards(await play(executor, says_task())) == [1.0, 1.0]

    executor.shutdown()
    executor.shutdown()

    assert ray.is_initialized()
    with pytest.raises(RuntimeError, match="after shutdown"):
        await play(executor, says_task())
