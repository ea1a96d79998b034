"""The supervised warm-up before RL. ``test_refusals.py`` covers user errors."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.kit import Patch
from tinker_cookbook.supervised.types import SupervisedDataset

from evert.bridge.tokens.bases import base_tokenizer
from evert.envs.games import games
from evert.trainers.commands import train
from evert.trainers.config.fields import DemonstrationsError
from evert.trainers.config.recipes import choose_recipe
from evert.trainers.config.train import TrainSettings
from evert.trainers.engine.embedded import embedded_engine
from evert.trainers.rundir.folder import WARM_UP as FOLDER
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.system.files import CHECKPOINTS, METRICS, read_jsonl
from evert.trainers.training.resuming import prepare_folder
from evert.trainers.training.warm_up import ConversationDatasetBuilder, warm_up, warm_up_config

HELLO = [{"role": "user", "content": "Hi!"}, {"role": "assistant", "content": "Hello."}]


def greetings(seed: int) -> Iterator[list[dict[str, Any]]]:
    """Yield conversations endlessly, each ending in the seed and its own number."""
    number = 0
    while True:
        number += 1
        yield [HELLO[0], {"role": "assistant", "content": f"Hello {seed} {number}."}]


THIS = sys.modules[__name__]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: Patch) -> None:
    monkeypatch.setitem(sys.modules, "warm_up_games", THIS)


def settings(tmp_path: Path, **other: Any) -> TrainSettings:
    values: dict[str, Any] = {
        **games()["identity"].settings(), "env": "identity",
        "batch_size": 2, "group_size": 2, "samples": 1,
        "test_group_size": 1, "steps": 1, "eval_every": 0, "device": "cpu", "warm_up_batch": 3,
        "warm_up_steps": 2, "demonstrations": "warm_up_games:greetings",
        "log_path": str(tmp_path / "run"),
    }  # fmt: skip
    return TrainSettings(**{**values, **other})


def dataset(seed: int = 0, demonstrations: Any = "warm_up_games:greetings") -> SupervisedDataset:
    made, test = ConversationDatasetBuilder(
        demonstrations=demonstrations, steps=4, batch_size=3, seed=seed, model_name="evert-tiny",
        renderer_name="qwen3_instruct",
    )()  # fmt: skip
    assert test is None
    return made


def texts(made: SupervisedDataset, index: int) -> list[str]:
    return [base_tokenizer().decode(datum.model_input.to_ints()) for datum in made.get_batch(index)]


def test_a_warm_up_batch_depends_only_on_the_seed_and_its_number() -> None:
    batch = texts(dataset(), 1)
    assert len(dataset()) == 4
    assert len(set(batch)) == 3
    assert texts(dataset(), 1) == batch
    assert texts(dataset(), 2) != batch
    assert texts(dataset(seed=1), 1) != batch


def test_only_assistant_messages_are_trained_on() -> None:
    (datum, *_) = dataset(demonstrations=lambda seed: iter([HELLO] * 3)).get_batch(0)
    targets, weights = (datum.loss_fn_inputs[key].data for key in ("target_tokens", "weights"))
    learned = [int(t) for t, weight in zip(targets, weights, strict=True) if weight > 0]
    with pytest.raises(DemonstrationsError, match="Got 2 demonstrations for a batch of 3"):
        dataset(demonstrations=lambda seed: iter([HELLO] * 2)).get_batch(0)
    assert base_tokenizer().decode(learned) == "Hello.<|im_end|>"
    assert sum(weights) == pytest.approx(1.0)


async def test_a_warm_up_runs_once_and_learns_its_demonstrations(tmp_path: Path) -> None:
    wanted = settings(
        tmp_path, warm_up_steps=12, warm_up_batch=8, warm_up_learning_rate=3e-3,
        demonstrations="warm_up_games:greetings",
    )  # fmt: skip
    console = Console(quiet=True)
    with embedded_engine(tmp_path / "store", device="cpu", threads=1):
        warm = await warm_up(wanted, tmp_path, console, embedded=True)
        rows = read_jsonl(tmp_path / FOLDER / METRICS)
        again = await warm_up(wanted, tmp_path, console, embedded=True)
    nll = [row["train_mean_nll"] for row in rows]
    assert str(warm and warm.state_path).startswith("tinker://")
    assert again == warm
    assert read_jsonl(tmp_path / FOLDER / METRICS) == rows
    assert len(nll) == 12
    assert nll[-1] < nll[0] - 0.5


async def test_a_resumed_warm_up_gives_the_same_weights_as_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """The Cookbook submits a batch ahead, so a checkpoint has seen more data than it records."""
    done, stopped = tmp_path / "done", tmp_path / "stopped"
    console, batches = Console(quiet=True), list[int]()

    def stops(seed: int) -> Iterator[list[dict[str, Any]]]:
        batches.append(seed)
        if len(batches) == 10:
            raise DemonstrationsError("enough")
        return greetings(seed)

    monkeypatch.setattr(THIS, "stops", stops, raising=False)
    made = {}
    for path in (done, stopped):
        name = "stops" if path == stopped else "greetings"
        wanted = settings(path, warm_up_steps=12, demonstrations=f"warm_up_games:{name}")
        path.mkdir()
        with embedded_engine(path / "checkpoints", device="cpu", threads=1) as engine:
            if path == stopped:
                with pytest.raises(DemonstrationsError, match="enough"):
                    await warm_up(wanted, path, console, embedded=True)
                folder = RunFolder(path, resumed=True)
                prepare_folder(folder, wanted, (), "embedded", console)
            warm = await warm_up(wanted, path, console, embedded=True)
            assert warm is not None
            weights = engine.store.folder(str(warm.sampler_path)) / "model.safetensors"
            made[path] = weights.read_bytes()

    assert [row["step"] for row in read_jsonl(stopped / FOLDER / METRICS)] == list(range(12))
    assert len(batches) == 10 + 12 - 7
    assert made[done] == made[stopped]


def test_a_run_warms_up_and_continues_training_from_there(tmp_path: Path) -> None:
    wanted = settings(tmp_path, kl_penalty=0.1)
    console = Console(quiet=True)
    folder = train.run(wanted, console, str)
    config = folder.read_json("config.json") or {}
    listed = read_jsonl(folder.path / FOLDER / CHECKPOINTS)
    (final,) = [row for row in listed if row["name"] == "final"]
    assert config["load_checkpoint_path"] == final["state_path"]
    assert config["kl_reference_config"]["load_checkpoint_path"] == final["sampler_path"]
    assert abs(folder.steps()[0]["kl_policy_base"]) < 1e-3  # nothing has been learned yet
    assert folder.steps_done() == 1
    resumed = train.run(settings(tmp_path, kl_penalty=0.1, steps=2), console, str)
    assert resumed.steps_done() == 2
    assert (resumed.read_json("config.json") or {})["load_checkpoint_path"] == final["state_path"]


def test_only_the_tiny_base_has_demonstrations_with_short_prompts() -> None:
    _, tiny = choose_recipe({"env": "twenty_questions"})
    _, large = choose_recipe({"env": "twenty_questions", "model_name": "Qwen/Qwen3-8B"})
    assert tiny["demonstrations"].endswith(":demonstrations")
    assert tiny["agent"].endswith(":short_twenty_questions_agent")
    assert large["demonstrations"] == ""
    assert (tiny["lora_rank"], large["lora_rank"]) == (4, 32)
    assert large["agent"].endswith(":twenty_questions_agent")
    assert large["train_tasks"] == tiny["train_tasks"]


def test_warm_up_checkpoints_on_a_service_expire(tmp_path: Path) -> None:
    here = warm_up_config(settings(tmp_path), tmp_path, embedded=True)
    there = warm_up_config(settings(tmp_path), tmp_path, embedded=False)
    assert here.ttl_seconds is None
    assert there.ttl_seconds == 7 * 24 * 3600
    assert here.rolling_save_every > there.rolling_save_every == 0
