"""``evert engine plan`` predicts how much memory a model takes once it is loaded."""

import json
from pathlib import Path
from typing import Any

import pytest
import tinker
import torch
from tests.kit import Patch, Shown
from transformers import AutoConfig

from evert.trainers import cli
from evert.trainers.commands import plan
from evert.trainers.commands.plan import PlanSettings, make_plan
from evert.trainers.config.prices import CACHED, PRICES, run_cost
from evert.trainers.engine.embedded import embedded_engine
from evert.trainers.engine.models.loading import EngineSettings
from evert.trainers.engine.planning import plan as planned
from evert.trainers.engine.sampling import memory


def stored_bytes(parameters: Any) -> int:
    """Return the size of the parameters in bytes, counting shared storage once."""
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in parameters}
    return sum(storages.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("whole", [True, False])
def test_the_planned_memory_matches_loading_and_training(
    tiny_model: str, tmp_path: Path, whole: bool, dtype: str
) -> None:
    given = EngineSettings(device="cpu", full_parameter=whole, dtype=dtype)
    found = planned(tiny_model, given, rank=4)
    with embedded_engine(tmp_path, device="cpu", full_parameter=whole, dtype=dtype):
        client: Any = (
            tinker.ServiceClient().create_lora_training_client(tiny_model, rank=4).result()
        )
        trainer = client._run.trainer
        trained = [p for p in trainer.model.parameters() if p.requires_grad]
        frozen = [p for p in trainer.model.parameters() if not p.requires_grad]
        assert found.base == stored_bytes(trained if whole else frozen)
        assert found.adapter == (0 if whole else stored_bytes(trained))
        assert found.optimizer == 3 * stored_bytes(trained)
        sampler = client.save_weights_and_get_sampling_client().result().sampler
        assert found.cache_tokens == pytest.approx(sampler._model.cache_tokens, rel=0.05)
    assert found.parameters == sum(p.numel() for p in (trained if whole else frozen))


@pytest.fixture
def qwen(tmp_path: Path) -> str:
    """Create a folder with the configuration of Qwen3-4B, without weights."""
    sizes = {
        "vocab_size": 151_936, "hidden_size": 2560, "intermediate_size": 9728,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "tie_word_embeddings": True, "max_position_embeddings": 40960,
    }  # fmt: skip
    config = AutoConfig.for_model("qwen3", **sizes)
    (tmp_path / "config.json").write_text(json.dumps(config.to_diff_dict()))
    return str(tmp_path)


def free(monkeypatch: Patch, gigabytes: float) -> None:
    monkeypatch.setattr("evert.trainers.engine.planning.free_bytes", lambda _: int(gigabytes * 1e9))


def test_a_model_can_be_planned_without_its_weights(
    qwen: str, monkeypatch: Patch, capsys: Shown
) -> None:
    free(monkeypatch, 24)
    assert cli.main(["engine", "plan", f"model={qwen}", "dtype=bfloat16", "device=cpu"]) == 0
    shown = capsys.readouterr().out
    assert "4,022,468,096 parameters; trains an adapter of rank 32 on cpu" in shown
    assert "base weights            8.0 GB  bfloat16" in shown
    assert "layers recomputed in the backward pass" in shown
    assert "maximum length of a datum: about 16,081 tokens" in shown
    assert "concurrent rows              7  of 2,048 tokens each" in shown


def test_the_plan_of_a_run_uses_its_base_model(tmp_path: Path, capsys: Shown) -> None:
    (tmp_path / "run.json").write_text('{"settings": {"model_name": "evert-tiny"}}')
    weights = {"sampler_path": "tinker://a/sampler_weights/b", "batch": 1, "name": "b"}
    (tmp_path / "checkpoints.jsonl").write_text(f"{json.dumps(weights)}\n")
    assert cli.main(["engine", "plan", f"model={tmp_path}", "device=cpu"]) == 0
    assert capsys.readouterr().out.startswith("evert-tiny: 853,376 parameters")


def test_a_plan_that_does_not_fit_says_what_to_do(
    qwen: str, monkeypatch: Patch, capsys: Shown
) -> None:
    free(monkeypatch, 24)
    assert plan.main(["plan", f"model={qwen}", "full_parameter=True", "device=cpu"]) == 1
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("Not enough memory: ")
    assert "an adapter (full_parameter=False), dtype=bfloat16" in said


def test_less_memory_gives_smaller_passes(qwen: str, monkeypatch: Patch) -> None:
    found = []
    for gigabytes in (12, 400):
        free(monkeypatch, gigabytes)
        found.append(make_plan(PlanSettings(model=qwen, device="cpu", dtype="bfloat16")))
    small, large = found
    assert (small.checkpointing, large.checkpointing) == (True, False)
    assert small.longest < large.longest
    assert small.cache < large.cache == memory._CACHE_BYTES
    assert small.base == large.base


def test_on_cuda_the_base_is_planned_in_bfloat16(qwen: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    free(monkeypatch, 80)
    found = make_plan(PlanSettings(model=qwen, device="cuda"))
    assert (found.dtype, found.pass_tokens) == (torch.bfloat16, 4272)  # 8192 with checkpointing
    assert found.cache == (80 * 10**9 - found.held) // 4


@pytest.mark.parametrize("turns", [1, 2, 5])
def test_the_cost_of_a_service_run_is_the_sum_of_its_calls(turns: int) -> None:
    price, part = PRICES["Qwen/Qwen3-8B"], 100  # tokens added per turn
    read = sum(part * turn * CACHED * price.prefill for turn in range(turns))
    new = turns * part
    cost = run_cost(price, 1, new, turns)
    assert cost.minimum * 1e6 == pytest.approx(read + new * (price.prefill + price.train))
    assert cost.maximum * 1e6 == pytest.approx(read + new * (price.sample + price.train))


def test_a_plan_for_the_service_shows_the_steps_and_the_date_of_its_prices(capsys: Shown) -> None:
    assert cli.main(["engine", "plan", "model=Qwen/Qwen3-8B", "steps=10", "tokens=1000"]) == 0
    text = capsys.readouterr().out
    assert "2,560" in text
    assert "$0.16 to $0.27" in text
    assert "prices from 2026-" in text
