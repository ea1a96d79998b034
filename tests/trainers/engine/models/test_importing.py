"""A model from elsewhere becomes a folder that says the same, and what is none is refused."""

import shutil
from pathlib import Path

import pytest
import torch
from tests.other_trainers.gguf_base import write_gguf
from transformers import Qwen3Config, Qwen3ForCausalLM

from evert.bridge.errors import InvalidModelError, RendererMismatchError
from evert.bridge.tokens.bases import base_path, base_tokenizer
from evert.trainers.commands import model
from evert.trainers.engine.models.base_models import load_model, load_tokenizer
from evert.trainers.engine.models.importing import SAMPLES, check, import_model

TEXTS = (*SAMPLES, "<|im_start|>user\nI'll say 1234.<|im_end|>")
CHATML = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped base with random weights; transformers takes 128 for a GGUF's width of a head."""
    folder = shutil.copytree(base_path(), tmp_path_factory.mktemp("base") / "base")
    config = Qwen3Config.from_pretrained(folder, head_dim=128)
    Qwen3ForCausalLM(config).save_pretrained(folder)  # type: ignore[no-untyped-call]
    return folder


@pytest.fixture(scope="module")
def imported(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, by way of a GGUF file."""
    folder = tmp_path_factory.mktemp("gguf")
    write_gguf(original, folder / "base.gguf")
    import_model(str(folder / "base.gguf"), folder / "model")
    return folder / "model"


def test_a_gguf_file_becomes_the_model_that_it_was_made_of(original: Path, imported: Path) -> None:
    own, tokenizer = base_tokenizer(), load_tokenizer(str(imported))
    ids = torch.tensor([own.encode(TEXTS[-1])])
    assert [tokenizer.encode(text) for text in TEXTS] == [own.encode(text) for text in TEXTS]
    with torch.no_grad():
        made, known = (
            load_model(str(folder), torch.device("cpu"), torch.float32)(ids).logits
            for folder in (imported, original)
        )
    assert torch.allclose(made, known, atol=1e-4)
    assert len({file.stat().st_mode for file in imported.iterdir()}) == 1  # all follow the umask


def test_an_imported_model_is_checked(
    imported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RendererMismatchError, match="has no chat template"):
        check(imported)
    out = tmp_path / "copy"
    import_model(str(imported), out)
    (out / "chat_template.jinja").write_text(CHATML)
    found = check(out)
    told = found.renderer_name, found.renders_tails, found.shows_tools, found.changed
    assert told == ("template", True, False, None)
    assert model.main(["import", str(out), f"out={tmp_path / 'again'}"]) == 0
    shown = capsys.readouterr().out
    assert f"written: {tmp_path / 'again'}" in shown
    assert "gives text back as it was" in shown


def test_what_is_no_model_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF" + bytes(60))
    there = tmp_path / "there"
    there.mkdir()
    for source, out, message in (
        (tmp_path / "nowhere", "a", "There is no model at"),
        (damaged, "b", "damaged.gguf could not be read"),
        (there, "there", "exists already"),
        ("package:--help", "c", "could not download the package"),
    ):
        with pytest.raises(InvalidModelError, match=message):
            import_model(str(source), tmp_path / out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged.gguf", "there"]


def test_a_wrong_line_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    for line, message in (
        ([], "evert model got 'nothing'"),
        (["import"], "source, out must be given"),
        (["import", "x.gguf"], "out must be given"),
    ):
        assert model.main(line) == 1
        assert message in capsys.readouterr().err
