"""Features of ``evert.rollout``, under the unchanged ``tinker_cookbook.rl.train.main``."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from tests.kit import Patch, ask
from tinker_cookbook.rl import train as rl_train

from evert import AgentDatasetBuilder, ParallelRollouts, embedded_engine
from evert.bridge.tokens.bases import BASE_MODEL, BASE_RENDERER
from evert.envs.identity import TRAIN_TASKS, score
from evert.trainers.engine.clients.sampling_client import SamplingClient
from evert.trainers.system.files import METRICS, read_jsonl

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

GATHERED = 4
TURNS, DECIDES = 3, 1


async def gathers(client: Any, task: int) -> float:
    await asyncio.gather(*(ask(client, f"{task}, part {n}.") for n in range(GATHERED)))
    return float(client.rng.random())


async def one_turn_decides(client: Any, task: int) -> float:
    for turn in range(TURNS):
        if turn == DECIDES:
            reply = await ask(client, f"Let's play a game. Say you are {task}.")
            client.reward(score(reply, task))
        else:
            await ask(client, f"{turn + 1} of {TURNS}. Say a color, {task}.")
    return 0.0


async def debate(client: Any, task: int) -> dict[str, float]:
    reply = await ask(client.seat("player"), f"Let's play a game. Say you are {task}.")
    await ask(client.seat("judge"), f"Is {task} in {reply}?")
    return {"player": score(reply, task), "judge": 0.5}


def train(
    folder: Path, agent: Any, steps: int, *, strategy: Any = None, **dataset: Any
) -> list[dict[str, Any]]:
    builder = AgentDatasetBuilder(agent=agent, group_size=4, **dataset)
    config = rl_train.Config(
        recipe_name="test", learning_rate=1e-3, dataset_builder=builder, model_name=BASE_MODEL,
        renderer_name=BASE_RENDERER, max_tokens=16, max_steps=steps, eval_every=0, save_every=0,
        rollout_error_tolerance=strategy, log_path=str(folder / "log"),
    )  # fmt: skip
    with embedded_engine(folder / "store", device="cpu", threads=1):
        asyncio.run(rl_train.main(config))
    rows = read_jsonl(folder / "log" / METRICS)
    return [row for row in rows if "optim/grad_norm" in row]


@pytest.fixture
def most_at_once(monkeypatch: Patch) -> Callable[[], int]:
    """Return a function that returns the maximum number of concurrent requests in the engine."""
    now, most, sample, lock = 0, 0, SamplingClient._sample, Lock()

    def counted(self: Any, *args: Any) -> Any:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        answer = sample(self, *args)
        answer.add_done_callback(done)
        return answer

    def done(_: object) -> None:  # runs in the engine's thread
        nonlocal now
        with lock:
            now -= 1

    monkeypatch.setattr(SamplingClient, "_sample", counted)
    return lambda: most


@pytest.mark.parametrize(("strategy", "at_once"), [(None, 4), (ParallelRollouts(), 16)])
def test_concurrent_calls_are_sampled_concurrently(
    tmp_path: Path, most_at_once: Callable[[], int], strategy: Any, at_once: int
) -> None:
    [row] = train(tmp_path, gathers, 1, strategy=strategy, train_tasks=[7], batch_size=1)
    assert most_at_once() == at_once
    assert row["env/all/total_turns"] == 4 * GATHERED
    assert row["optim/grad_norm"] > 0


def test_gamma_0_trains_only_the_decisive_turn(tmp_path: Path) -> None:
    tasks = list(TRAIN_TASKS)[:40]
    rows = train(tmp_path, one_turn_decides, 10, train_tasks=tasks, batch_size=4, gamma=0.0)
    earned = [row["env/all/reward/total"] for row in rows]
    assert sum(earned[-3:]) / 3 > sum(earned[:3]) / 3 + 0.3
    assert {row["env/all/turns_per_episode"] for row in rows} == {TURNS}


def test_seats_have_their_own_metrics(tmp_path: Path) -> None:
    tasks = list(TRAIN_TASKS)[:2]
    [row] = train(tmp_path, debate, 1, seats=("player", "judge"), train_tasks=tasks, batch_size=2)
    assert row["env/all/seat/judge/reward"] == 0.5
    assert row["env/all/seat/player/reward"] != 0.5
