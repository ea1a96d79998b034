"""`evert model export` writes a model equivalent to the run's weights, or writes nothing."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tinker
import torch
from huggingface_hub.repocard import metadata_load
from tests.kit import Patch
from tests.nightly import each
from tests.trainers.kit import Cli, environment, shaken, trainer_of
from tokenizers import Regex, pre_tokenizers  # type: ignore[import-untyped]
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
)

from evert.bridge.errors import InvalidModelError
from evert.bridge.tokens.bases import base_path, variables_of, with_variables
from evert.trainers.engine.embedded import embedded_engine
from evert.trainers.engine.models.exporting import export_tokenizer
from evert.trainers.engine.models.gguf_tokenizer import WORDS
from evert.trainers.engine.models.gguf_writer import write_gguf
from evert.trainers.engine.models.importing import convert
from evert.trainers.rundir.folder import RunFolder

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, {"tie_word_embeddings": False}),
    "qwen2": (Qwen2Config, {"tie_word_embeddings": False, "vocab_size": 640}),  # vocabulary padded
    "qwen3": (Qwen3Config, {"tie_word_embeddings": True, "head_dim": 32}),
}


def drawn(config: Any) -> Any:
    """Return a model with random weights, including norms and biases."""
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    return shaken(auto.from_config(config), 0.2)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a small Llama with a tokenizer that splits text like SmolLM2's."""
    folder = tmp_path_factory.mktemp("export") / "base"
    tokenizer: Any = AutoTokenizer.from_pretrained(base_path())
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(word), "isolated") for word in WORDS["smollm"]),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.save_pretrained(folder)
    drawn(LlamaConfig(**sizes("llama"))).save_pretrained(folder)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    return folder


def sizes(kind: str) -> dict[str, Any]:
    common = dict(vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=2)
    heads = dict(num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512)
    return {**common, **heads, "eos_token_id": 505, **KINDS[kind][1]}


@pytest.fixture(scope="module")
def run(base: Path) -> Path:
    """Create a run whose adapter changes the base model."""
    folder = base.parent / "runs/trained"
    folder.mkdir(parents=True)
    with embedded_engine(folder / "checkpoints", device="cpu", full_parameter=False):
        client = trainer_of(str(base), rank=8)
        text = tinker.ModelInput.from_ints([*range(40)])
        inputs: Any = {"target_tokens": [*range(1, 41)], "weights": [1.0] * 40}
        for _ in range(3):
            client.forward_backward(
                [tinker.Datum(model_input=text, loss_fn_inputs=inputs)], "cross_entropy"
            ).result()
            client.optim_step(tinker.AdamParams(learning_rate=0.01)).result()
        sampler = client.save_weights_for_sampler("final").result().path
        state = client.save_state("final").result().path
    record = {"name": "final", "batch": 3, "sampler_path": sampler, "state_path": state}
    (folder / "checkpoints.jsonl").write_text(json.dumps(record) + "\n")
    settings = {"model_name": str(base), "env": "identity"}
    (folder / "run.json").write_text(json.dumps({"settings": settings}))
    return folder


@pytest.mark.parametrize(
    ("form", "files"),
    [
        ("merged", {"config.json", "generation_config.json", "model.safetensors"}),
        ("adapter", {"adapter_config.json", "adapter_model.safetensors"}),
        ("gguf", {"model.gguf", "Modelfile"}),
    ],
)
def test_an_export_computes_the_same_as_the_run_and_prints_how_to_use_it(
    form: str, files: set[str], run: Path, base: Path, tmp_path: Path, cli: Cli
) -> None:
    out = tmp_path / "out"
    out.mkdir()  # an existing empty folder is fine

    shown = cli(f"model export {run} out={out} format={form}")

    assert_equal_weights(shown)
    [(same, total)] = re.findall(r"\((\d+) of (\d+) tokens match the run\)", shown)
    assert same == total != "0"
    assert "the exported chat template renders prompts exactly as in training" in shown
    assert ("vllm serve" if form != "gguf" else "ollama create") in shown
    assert files <= {file.name for file in out.iterdir()}
    assert [*tmp_path.iterdir()] == [out]
    assert (metadata_load(out / "README.md") or {})["license"] == "apache-2.0"
    assert f"{run}, step 3" in (out / "README.md").read_text()
    if form == "merged":
        assert GenerationConfig.from_pretrained(out).eos_token_id == [505]
    if form == "adapter":
        config = json.loads((out / "adapter_config.json").read_text())
        assert config["base_model_name_or_path"] == str(base)
        assert "a local folder; on other machines" in shown


@pytest.mark.filterwarnings("ignore:Using the future")  # the Cookbook does this
def test_hosted_weights_are_merged(run: Path, tmp_path: Path, cli: Cli, monkeypatch: Patch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-a")
    (record,) = RunFolder(run).checkpoints()
    with embedded_engine(run / "checkpoints", device="cpu"):  # plays the service
        assert_equal_weights(cli(f"model export {record['state_path']} out={tmp_path}/out"))


def assert_equal_weights(shown: str) -> None:
    [difference] = re.findall(r"differ by at most (\S+)", shown)
    assert float(difference) <= 1e-4


@pytest.mark.parametrize("kind", each([*KINDS], by_day=["qwen2"]))  # has a padded vocabulary
def test_a_reimported_gguf_is_the_same_model(kind: str, base: Path, tmp_path: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(base)
    made = drawn(KINDS[kind][0](**sizes(kind)))
    ids = torch.tensor([tokenizer.encode("Say 1234, or naïve 漢字.")])

    def difference(dtype: str) -> float:
        write_gguf(made, tokenizer, tmp_path / "model.gguf", dtype, [505])
        shutil.rmtree(tmp_path / "again", ignore_errors=True)
        convert(tmp_path / "model.gguf", tmp_path / "again")
        again: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "again", dtype=torch.float32)
        with torch.no_grad():
            logprobs = [weights(ids).logits.log_softmax(-1) for weights in (made, again.eval())]
        return float((logprobs[0] - logprobs[1]).abs().max())

    assert difference("f32") <= 1e-4
    # bfloat16 has 8 bits of precision, float16 has 11, and q8_0 blocks have about 7
    assert 1e-4 < difference("f16") < difference("bf16") < 1
    assert 1e-4 < difference("q8_0") < 1
    again: Any = AutoTokenizer.from_pretrained(tmp_path / "again")
    assert again.chat_template == tokenizer.chat_template
    assert again.encode("I'll say 1234.<|im_end|>") == tokenizer.encode("I'll say 1234.<|im_end|>")


def test_a_tokenizer_that_llama_cpp_would_handle_differently_is_refused(tmp_path: Path) -> None:
    made = drawn(LlamaConfig(**sizes("llama")))
    tokenizer = AutoTokenizer.from_pretrained(base_path())
    with pytest.raises(InvalidModelError, match="splits text in a way that evert can't export"):
        write_gguf(made, tokenizer, tmp_path / "model.gguf", "f32", [505])
    made.config.rope_parameters["rope_type"] = "llama3"
    with pytest.raises(InvalidModelError, match="with rope_type llama3"):
        write_gguf(made, tokenizer, tmp_path / "model.gguf", "f32", [505])


def test_an_exported_template_contains_the_values_of_its_variables(base: Path) -> None:
    plain = export_tokenizer(str(base), "template")
    plain.chat_template = "{{ shout }}{% if shout %}!{% endif %}{{ messages[0].content }}"
    folder = shutil.copytree(base, base.parent / "loud")
    plain.save_pretrained(folder)
    name = with_variables("template", {"shout": True})
    assert variables_of(name) == {"shout": True}

    tokenizer = export_tokenizer(str(folder), name)

    messages = [{"role": "user", "content": "Hi"}]
    text = plain.apply_chat_template(messages, tokenize=False, shout=True)
    assert tokenizer.apply_chat_template(messages, tokenize=False) == text == "True!Hi"


def test_an_invalid_export_is_refused_without_importing_torch(
    run: Path, base: Path, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").write_text("mine")
    lines = {
        f"{run} out=full": "full already exists and is not empty",
        f"{run} out=full/mine": "mine already exists",
        f"{run} out=x format=onnx": "expected one of merged, adapter, gguf",
        f"{run} out=x dtype=f16": "expected one of float32, bfloat16, float16",
        f"{run} out=x format=gguf dtype=q4": "expected one of f32, f16, bf16, q8_0",
        f"{run}@7 out=x": "has no weights for step 7",
        "runs/nope out=x": "There is no run or model at 'runs/nope'",
        "openai:gpt-5-mini out=x": "is not on this machine",
        f"{base} out=x format=adapter": "has no adapter",
        "tinker://a/weights/b out=x": "Set TINKER_API_KEY",
    }
    script = """
import sys
from evert.trainers.commands import model
for line in sys.argv[1:]:
    assert model.main(["export", *line.split()]) == 1
sys.exit("torch" in sys.modules)
"""
    command = [sys.executable, "-c", script, *lines]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )

    assert ended.returncode == 0, ended.stderr
    errors = ended.stderr.splitlines()
    for message, error in zip(lines.values(), errors, strict=True):
        assert message in error
    assert os.listdir(tmp_path) == ["full"]


def test_an_export_that_computes_something_different_leaves_no_file(
    run: Path, tmp_path: Path, cli: Cli, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("evert.trainers.commands.model_export.BAR", 0.0)
    shown = cli("model export", str(run), f"out={tmp_path / 'out'}", "format=gguf", status=1)
    assert "Nothing was written" in shown
    assert not [*tmp_path.iterdir()]
