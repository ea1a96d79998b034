"""The Cookbook's own entry points run unchanged on the embedded engine, and the model learns.

``tinker_cookbook.rl.train.main`` and ``supervised.train.main`` are called as users call them.
Nothing in the Cookbook is patched.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.kit import Patch, ask, assistant, user
from tests.nightly import each
from tinker_cookbook.rl import train as rl_train
from tinker_cookbook.supervised import train as supervised_train
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig

from evert import AgentDatasetBuilder
from evert.trainers.engine.embedded import embedded_engine
from evert.trainers.system.files import METRICS, read_jsonl

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


LOSSES = ["importance_sampling", "ppo", "cispo", "dro", "gspo"]


async def speaks_evenly(client: Any, number: int) -> float:
    """Make two calls. The reward of each is the fraction of even characters in its reply."""
    messages = [user(f"go {number}")]
    for _ in range(2):
        text = await ask(client, *messages)
        client.reward(sum(ord(letter) % 2 == 0 for letter in text) / (len(text) or 1))
        messages += [assistant(text), user("and on")]
    return 0.0


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: Patch) -> None:
    for name in [name for name in os.environ if name.startswith("TINKER_")]:
        monkeypatch.delenv(name)


def rl_config(model: str, log_path: Path, **options: Any) -> rl_train.Config:
    builder = AgentDatasetBuilder(
        agent=speaks_evenly, train_tasks=range(16), test_tasks=range(4), batch_size=4, group_size=4,
        model_name=model,
    )  # fmt: skip
    settings: dict[str, Any] = {
        "recipe_name": "test", "learning_rate": 1e-2, "dataset_builder": builder,
        "model_name": model, "renderer_name": "qwen3_instruct", "max_tokens": 6, "max_steps": 2,
        "eval_every": 2, "save_every": 1, "log_path": str(log_path), **options,
    }  # fmt: skip
    return rl_train.Config(**settings)


@pytest.mark.parametrize("loss_fn", each(LOSSES, by_day=["importance_sampling", "gspo"]))
def test_every_loss_trains_and_resumes(tiny_model: str, tmp_path: Path, loss_fn: Any) -> None:
    with embedded_engine(tmp_path / "store", device="cpu"):
        for steps in (2, 3):
            config = rl_config(tiny_model, tmp_path / "log", loss_fn=loss_fn, max_steps=steps)
            asyncio.run(rl_train.main(config))
    rows = read_jsonl(tmp_path / "log" / METRICS)
    trained = [row for row in rows if "optim/grad_norm" in row]
    assert [row["progress/batch"] for row in trained] == [0, 1, 2]
    assert all(abs(row["optim/kl_sample_train_v1"]) < 1e-4 for row in trained)
    assert any("test/env/all/reward/total" in row for row in rows)


def test_rl_train_main_trains_off_policy_while_it_samples(tiny_model: str, tmp_path: Path) -> None:
    # Since Cookbook 0.6 the default loss is stable_reinforce, which needs recorded samples.
    overlapping: Any = rl_train.AsyncConfig(max_steps_off_policy=1, groups_per_batch=4)
    config = rl_config(tiny_model, tmp_path / "log", async_config=overlapping)
    with embedded_engine(tmp_path / "store", device="cpu"):
        asyncio.run(rl_train.main(config))
    rows = read_jsonl(tmp_path / "log" / METRICS)
    steps = [row["step"] for row in rows if "optim/grad_norm" in row]
    assert steps == [0, 1]


def test_kl_penalties_are_computed_and_seeds_reproduce_the_run(
    tiny_model: str, tmp_path: Path
) -> None:
    def run(name: str) -> list[dict[str, Any]]:
        reference = rl_train.KLReferenceConfig(base_model=tiny_model)
        penalty = {"kl_penalty_coef": 0.1, "kl_reference_config": reference}
        config = rl_config(
            tiny_model, tmp_path / name, compute_post_kl=True, num_substeps=2, **penalty
        )
        with embedded_engine(tmp_path / "store", device="cpu", seed=3):
            asyncio.run(rl_train.main(config))
        return read_jsonl(tmp_path / name / METRICS)[:2]

    first, second = rows = run("a")
    assert abs(first["kl_policy_base"]) < 1e-4
    assert abs(second["kl_policy_base"]) > 1e-4
    assert "kl_pre_post_v1" in first
    for row, again in zip(rows, run("b"), strict=True):
        for key in ("env/all/reward/total", "kl_policy_base", "optim/grad_norm"):
            assert row[key] == pytest.approx(again[key], rel=1e-4, abs=1e-6)


def test_supervised_train_main_runs_and_lowers_the_loss(tiny_model: str, tmp_path: Path) -> None:
    talk = [user("say"), assistant("word " * 3)]
    (tmp_path / "talks.jsonl").write_text((json.dumps({"messages": talk}) + "\n") * 16)
    named: Any = {"renderer_name": "qwen3_instruct"}
    common = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=tiny_model, max_length=64, batch_size=4, **named
    )
    builder = FromConversationFileBuilder(
        common_config=common, file_path=str(tmp_path / "talks.jsonl"), test_size=4
    )
    config = supervised_train.Config(
        recipe_name="test", log_path=str(tmp_path / "log"), model_name=tiny_model,
        dataset_builder=builder, learning_rate=1e-2, num_epochs=2, max_steps=6, eval_every=3,
        save_every=2, **named,
    )  # fmt: skip
    with embedded_engine(tmp_path / "store", device="cpu"):
        asyncio.run(supervised_train.main(config))
    rows = read_jsonl(tmp_path / "log" / METRICS)
    losses = [row["train_mean_nll"] for row in rows]
    assert len(losses) == 6
    assert losses[-1] < losses[0]
    assert any("test/nll" in row for row in rows)
