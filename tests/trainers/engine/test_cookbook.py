"""The Cookbook's own entry points run unchanged on the embedded engine, and learn.

``tinker_cookbook.rl.train.main`` and ``supervised.train.main`` are called as a user calls them;
nothing of the Cookbook is patched.
"""

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chz
import pytest
import tinker
from tests.nightly import each
from tinker_cookbook import renderers
from tinker_cookbook.rl import train as rl_train
from tinker_cookbook.rl.types import (
    Action,
    ActionExtra,
    Env,
    EnvGroupBuilder,
    RLDataset,
    RLDatasetBuilder,
    StepResult,
    Trajectory,
)
from tinker_cookbook.supervised import train as supervised_train
from tinker_cookbook.supervised.common import datum_from_model_input_weights
from tinker_cookbook.supervised.types import SupervisedDataset, SupervisedDatasetBuilder
from tinker_cookbook.tokenizer_utils import get_tokenizer

from evert.trainers.engine.embedded import embedded_engine

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


LOSSES = ["importance_sampling", "ppo", "cispo", "dro"]


class TwoTurns(Env):
    """Rewards the share of even tokens, twice."""

    def __init__(self, renderer: Any, number: int) -> None:
        self._renderer = renderer
        self._number = number
        self._observation: list[int] = []

    async def initial_observation(self) -> tuple[tinker.ModelInput, list[int]]:
        message = {"role": "user", "content": f"go {self._number}"}
        prompt = self._renderer.build_generation_prompt([message])
        self._observation = prompt.to_ints()
        return prompt, self._renderer.get_stop_sequences()

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        done = len(self._observation) > 40
        self._observation = [*self._observation, *action, *([10] * 20)]
        return StepResult(
            reward=sum(token % 2 == 0 for token in action) / len(action),
            episode_done=done,
            next_observation=tinker.ModelInput.from_ints(self._observation),
            next_stop_condition=self._renderer.get_stop_sequences(),
        )


@dataclass(frozen=True)
class Group(EnvGroupBuilder):
    renderer: Any
    number: int

    async def make_envs(self) -> Sequence[Env]:
        return [TwoTurns(self.renderer, self.number) for _ in range(4)]

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, dict[str, float | int]]]:
        return [(0.0, {}) for _ in trajectory_group]


class Groups(RLDataset):
    def __init__(self, renderer: Any) -> None:
        self._renderer = renderer

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return [Group(self._renderer, number) for number in range(4)]

    def __len__(self) -> int:
        return 4


@chz.chz
class GroupsBuilder(RLDatasetBuilder):
    model: str

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        renderer = renderers.get_renderer("qwen3_instruct", get_tokenizer(self.model))
        return Groups(renderer), Groups(renderer)


class Sentences(SupervisedDataset):
    def __init__(self, renderer: Any) -> None:
        self._renderer = renderer

    def get_batch(self, index: int) -> list[tinker.Datum]:
        conversation = [
            {"role": "user", "content": "say"},
            {"role": "assistant", "content": "word " * 3},
        ]
        data = []
        for _ in range(4):
            model_input, weights = self._renderer.build_supervised_example(conversation)
            data.append(datum_from_model_input_weights(model_input, weights, 64))
        return data

    def __len__(self) -> int:
        return 3

    def set_epoch(self, seed: int = 0) -> None:
        pass


@chz.chz
class SentencesBuilder(SupervisedDatasetBuilder):
    model: str

    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        renderer = renderers.get_renderer("qwen3_instruct", get_tokenizer(self.model))
        return Sentences(renderer), Sentences(renderer)


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TINKER_")]:
        monkeypatch.delenv(name)


def metrics(log_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (log_path / "metrics.jsonl").read_text().splitlines()]


def rl_config(model: str, log_path: Path, **options: Any) -> rl_train.Config:
    settings: dict[str, Any] = {
        "recipe_name": "test",
        "learning_rate": 1e-2,
        "dataset_builder": GroupsBuilder(model=model),
        "model_name": model,
        "renderer_name": "qwen3_instruct",
        "max_tokens": 6,
        "max_steps": 2,
        "eval_every": 2,
        "save_every": 1,
        "log_path": str(log_path),
        **options,
    }
    return rl_train.Config(**settings)


@pytest.mark.parametrize("loss_fn", each(LOSSES, by_day=["importance_sampling"]))
def test_rl_train_main_runs_with_every_loss_and_resumes(
    tiny_model: str, tmp_path: Path, loss_fn: Any
) -> None:
    with embedded_engine(tmp_path / "store", device="cpu"):
        for steps in (2, 3):
            config = rl_config(tiny_model, tmp_path / "log", loss_fn=loss_fn, max_steps=steps)
            asyncio.run(rl_train.main(config))
    rows = metrics(tmp_path / "log")
    trained = [row for row in rows if "optim/grad_norm" in row]
    assert [row["progress/batch"] for row in trained] == [0, 1, 2]
    assert all(abs(row["optim/kl_sample_train_v1"]) < 1e-4 for row in trained)
    assert any("test/env/all/reward/total" in row for row in rows)


def test_rl_train_main_trains_while_it_samples(tiny_model: str, tmp_path: Path) -> None:
    # Since 0.6 its own loss is stable_reinforce, for which samples are recorded.
    overlapping: Any = rl_train.AsyncConfig(max_steps_off_policy=1, groups_per_batch=4)
    config = rl_config(tiny_model, tmp_path / "log", async_config=overlapping)
    with embedded_engine(tmp_path / "store", device="cpu"):
        asyncio.run(rl_train.main(config))
    steps = [row["step"] for row in metrics(tmp_path / "log") if "optim/grad_norm" in row]
    assert steps == [0, 1]


def test_rl_train_main_computes_kl_penalties_and_one_seed_gives_one_run(
    tiny_model: str, tmp_path: Path
) -> None:
    def run(name: str) -> list[dict[str, Any]]:
        config = rl_config(
            tiny_model,
            tmp_path / name,
            kl_penalty_coef=0.1,
            kl_reference_config=rl_train.KLReferenceConfig(base_model=tiny_model),
            compute_post_kl=True,
            num_substeps=2,
        )
        with embedded_engine(tmp_path / "store", device="cpu", seed=3):
            asyncio.run(rl_train.main(config))
        return metrics(tmp_path / name)[:2]

    first, second = rows = run("a")
    assert abs(first["kl_policy_base"]) < 1e-4
    assert abs(second["kl_policy_base"]) > 1e-4
    assert "kl_pre_post_v1" in first
    for row, again in zip(rows, run("b"), strict=True):
        for key in ("env/all/reward/total", "kl_policy_base", "optim/grad_norm"):
            assert row[key] == pytest.approx(again[key], rel=1e-4, abs=1e-6)


def test_supervised_train_main_runs_and_lowers_the_loss(tiny_model: str, tmp_path: Path) -> None:
    config = supervised_train.Config(
        recipe_name="test",
        log_path=str(tmp_path / "log"),
        model_name=tiny_model,
        renderer_name="qwen3_instruct",
        dataset_builder=SentencesBuilder(model=tiny_model),
        learning_rate=1e-2,
        num_epochs=2,
        max_steps=6,
        eval_every=3,
        save_every=2,
    )
    with embedded_engine(tmp_path / "store", device="cpu"):
        asyncio.run(supervised_train.main(config))
    losses = [row["train_mean_nll"] for row in metrics(tmp_path / "log")]
    assert len(losses) == 6
    assert losses[-1] < losses[0]
    assert any("test/nll" in row for row in metrics(tmp_path / "log"))
