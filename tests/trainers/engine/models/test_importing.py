"""An imported model gives the same results as the original; anything unsupported is refused."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFReader
from huggingface_hub.repocard import metadata_load
from safetensors.torch import load_file, save_file
from tests.other_trainers.gguf_base import write_gguf
from tests.trainers.kit import Cli
from transformers import Qwen3Config, Qwen3ForCausalLM

from evert.bridge.errors import InvalidModelError
from evert.bridge.tokens.bases import base_path, base_tokenizer
from evert.trainers.engine.common.errors import ModelNotFoundError
from evert.trainers.engine.models.base_models import load_model, load_tokenizer
from evert.trainers.engine.models.importing import SAMPLES, check, import_model

TEXTS = (*SAMPLES, "<|im_start|>user\nI'll say 1234.<|im_end|>")
CHATML = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a model with the bundled base model's architecture and random weights."""
    folder = shutil.copytree(base_path(), tmp_path_factory.mktemp("base") / "base")
    config = Qwen3Config.from_pretrained(folder)
    Qwen3ForCausalLM(config).save_pretrained(folder)  # type: ignore[no-untyped-call]
    return folder


@pytest.fixture(scope="module")
def imported(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Import the original model from a GGUF file."""
    folder = tmp_path_factory.mktemp("gguf")
    write_gguf(original, folder / "base.gguf")
    import_model(str(folder / "base.gguf"), folder / "model")
    return folder / "model"


def test_a_gguf_file_becomes_the_model_that_it_was_made_from(
    original: Path, imported: Path
) -> None:
    base, tokenizer = base_tokenizer(), load_tokenizer(str(imported))
    ids = torch.tensor([base.encode(TEXTS[-1])])
    assert [tokenizer.encode(text) for text in TEXTS] == [base.encode(text) for text in TEXTS]
    with torch.no_grad():
        made, known = (
            load_model(str(folder), torch.device("cpu"), torch.float32)(ids).logits
            for folder in (imported, original)
        )
    assert torch.allclose(made, known, atol=1e-4)
    assert len({file.stat().st_mode for file in imported.iterdir()}) == 1  # follow the umask
    assert metadata_load(imported / "README.md") == {"license": "mit"}


def test_an_imported_model_is_checked(imported: Path, tmp_path: Path, cli: Cli) -> None:
    assert check(imported) is None  # there is no chat template to check
    out = tmp_path / "copy"
    import_model(str(imported), out)
    (out / "chat_template.jinja").write_text(CHATML)
    result = check(out)
    assert result is not None
    summary = result.renderer_name, result.renders_tails, result.shows_tools
    assert summary == ("template", True, False)
    shown = cli("model import", str(out), f"out={tmp_path / 'again'}")
    assert f"written: {tmp_path / 'again'}" in shown
    assert "encoding and decoding round-trips" in shown
    shown = cli("model import", str(imported), f"out={tmp_path / 'bare'}")
    assert "no chat template; pass renderer_name=" in shown


Change = Callable[[Path], object]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def write(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def changed(name: str, value: float) -> Change:
    def change(folder: Path) -> None:
        tensors = weights(folder)
        tensors[name].view(-1)[3] = value
        write(folder, tensors)

    return change


def lacks(folder: Path) -> None:
    write(folder, {name: its for name, its in weights(folder).items() if name != UP})


def misshapen(folder: Path) -> None:
    write(folder, {**weights(folder), UP: torch.ones(3, 3)})


def claims(**values: Any) -> Change:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | values))

    return change


def links_to(target: str) -> Change:
    return lambda folder: (folder / "extra").symlink_to(target)


def shards_elsewhere(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / INDEX).write_text('{"weight_map": {"x": "../secret"}}')


UP = "model.layers.0.mlp.up_proj.weight"
INDEX = "model.safetensors.index.json"
BAD: dict[str, tuple[Change, str]] = {
    "a weight that is missing": (lacks, f"is missing {UP}"),
    "NaN": (changed(UP, float("nan")), f"NaN or infinity in {UP}"),
    "infinity": (changed(UP, float("inf")), f"NaN or infinity in {UP}"),
    "another shape": (misshapen, f"wrong shape: {UP}"),
    "far more weights": (claims(intermediate_size=10**8), "its config requires"),
    "a link to a device": (links_to("/dev/zero"), "extra is a link; expected regular files"),
    "a link outside": (links_to("../secret"), "extra is a link; expected regular files"),
    "a named pipe": (lambda folder: os.mkfifo(folder / "extra"), "extra is a pipe"),
    "shards elsewhere": (shards_elsewhere, "refers to ../secret, missing from"),
    "weights as pickles": (
        lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
        "no file named model.safetensors",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_folder_with_wrong_files_is_refused_and_leaves_no_copy(
    kind: str, imported: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(imported, tmp_path / "model")
    (tmp_path / "secret").write_text("mine")
    change, message = BAD[kind]
    change(folder)

    with pytest.raises(InvalidModelError, match=re.escape(message)):
        import_model(str(folder), tmp_path / "out")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "secret"]


def test_a_folder_that_is_used_directly_is_checked(imported: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(imported, tmp_path / "model")
    lacks(folder)
    with pytest.raises(ModelNotFoundError, match=f"is missing {UP}"):
        load_model(str(folder), torch.device("cpu"), torch.float32)


def test_a_tokenizer_that_adds_a_bos_changes_no_text(imported: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(imported, tmp_path / "model")
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    first = tokenizer["added_tokens"][0]
    text, bos = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "b", "type_id": 0}}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [bos, text],
        "pair": [bos, text, text],
        "special_tokens": {"b": {"id": "b", "ids": [first["id"]], "tokens": [first["content"]]}},
    }
    (folder / "real.json").write_text(json.dumps(tokenizer))
    path.unlink()
    path.symlink_to("real.json")

    import_model(str(folder), tmp_path / "out")

    ids = load_tokenizer(str(tmp_path / "out")).encode("Hi")
    assert ids[0] == first["id"]
    assert not (tmp_path / "out/tokenizer.json").is_symlink()


def test_user_defined_tokens_of_a_gguf_are_not_split(original: Path, tmp_path: Path) -> None:
    file, kinds = tmp_path / "base.gguf", "tokenizer.ggml.token_type"
    write_gguf(original, file)
    reader = GGUFReader(file, "r+")
    token = base_tokenizer().convert_tokens_to_ids("<|im_end|>")
    field = reader.fields[kinds]
    field.parts[field.data[token]][0] = 4  # type 4: user-defined
    reader.data.flush()
    del reader

    import_model(str(file), tmp_path / "out")

    assert load_tokenizer(str(tmp_path / "out")).encode("<|im_end|>") == [token]


def test_the_parts_of_a_gguf_are_joined_and_missing_ones_are_listed(
    original: Path, tmp_path: Path
) -> None:
    write_gguf(original, tmp_path / "base.gguf")
    whole = (tmp_path / "base.gguf").read_bytes()
    parts = tmp_path / "parts"
    parts.mkdir()
    for number in range(3):
        third = whole[number * len(whole) // 3 : (number + 1) * len(whole) // 3]
        (parts / f"base.gguf.part{number}").write_bytes(third)

    import_model(str(parts), tmp_path / "out")
    (parts / "base.gguf.part1").unlink()
    with pytest.raises(InvalidModelError, match="got .* Missing: 1[.]"):
        import_model(str(parts / "base.gguf.part0"), tmp_path / "again")

    import_model(str(tmp_path / "base.gguf"), tmp_path / "single")
    for name, weight in weights(tmp_path / "single").items():
        assert torch.equal(weight, weights(tmp_path / "out")[name])


def test_a_gguf_that_declares_more_data_than_it_has_is_refused(
    original: Path, tmp_path: Path
) -> None:
    write_gguf(original, tmp_path / "base.gguf")
    whole = bytearray((tmp_path / "base.gguf").read_bytes())
    at = whole.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens") + 8
    whole[at : at + 8] = (2**40).to_bytes(8, "little")  # the declared length of the array
    (tmp_path / "base.gguf").write_bytes(whole)

    with pytest.raises(InvalidModelError, match="could not be read"):
        import_model(str(tmp_path / "base.gguf"), tmp_path / "out")


def test_an_invalid_model_is_refused_and_leaves_no_copy(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF" + bytes(60))
    there = tmp_path / "there"
    there.mkdir()
    for source, out, message in (
        (tmp_path / "nowhere", "a", "No model found at"),
        (damaged, "b", "damaged.gguf could not be read"),
        (there, "there", "already exists"),
        ("package:--help", "c", "could not download the package"),
    ):
        with pytest.raises(InvalidModelError, match=message):
            import_model(str(source), tmp_path / out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged.gguf", "there"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("model", "evert model got 'nothing'"),
        ("model import", "source, out must be set"),
        ("model import x.gguf", "out must be set"),
    ],
)
def test_a_wrong_command_line_shows_the_usage(line: str, message: str, cli: Cli) -> None:
    assert message in cli(line, status=1)
