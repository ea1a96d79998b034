"""``pieces``: decode the text of each sampled token with the tokenizer named in the record.

Tokenizers are only read as data, from the folder of a model or from the Hugging Face cache.
"""

import os
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from evert.bridge.tokens.bases import BASES, base_path

FILE = "tokenizer.json"
LARGEST = 64 * 2**20
"""Maximum size of a tokenizer file in bytes, and of an episode's texts in characters."""
LONGEST = 5.0
"""Timeout in seconds for decoding an episode. Needed because tokenizers are untrusted."""


def pieces(tokenizer: Any, turns: Iterable[Sequence[int]]) -> list[list[str]] | None:
    """Return the text of each token, by turn, or None if the tokenizer fails or takes too long.

    If a character is encoded as several tokens, the text of the last one is the character, and the
    texts of the others are empty.
    """
    from tokenizers.decoders import DecodeStream  # type: ignore[import-untyped]

    end, remaining, turn_texts = time.monotonic() + LONGEST, LARGEST, list[list[str]]()
    try:
        for ids in turns:
            stream, texts = DecodeStream(skip_special_tokens=False), list[str]()
            turn_texts.append(texts)
            for token in ids:
                texts.append(stream.step(tokenizer, token) or "")
                remaining -= len(texts[-1])
                if time.monotonic() > end or remaining < 0:
                    return None
    except BaseException:  # panics in the tokenizer are not subclasses of Exception
        return None
    return turn_texts


def tokenizer_file(name: str, run: Path) -> Path | None:
    """Return the tokenizer file for a record, or None if it is not on this machine."""
    if name in BASES:
        return base_path(name) / FILE
    folders = (Path(), *list(run.resolve().parents)[:3])
    for file in _candidates(name, folders):
        try:
            if file.is_file() and file.stat().st_size <= LARGEST:
                return file
        except (OSError, ValueError):
            continue
    return None


def _candidates(name: str, folders: Iterable[Path]) -> Iterable[Path]:
    for folder in folders:
        yield folder / os.path.expanduser(name) / FILE  # an unknown "~user" is kept as is
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(name, FILE)
    except (HFValidationError, OSError):
        return
    if isinstance(path, str):
        yield Path(path)


@lru_cache(4)
def load_tokenizer(file: Path) -> Any:
    """Return a ``tokenizers.Tokenizer``, or None if the file is invalid or unsafe."""
    from tokenizers import Tokenizer  # type: ignore[import-untyped]

    try:
        if _may_grow(orjson.loads(file.read_bytes()).get("decoder")):
            return None
        return Tokenizer.from_file(str(file))
    except BaseException:  # panics in the parser are not subclasses of Exception
        return None


def _may_grow(decoder: Any) -> bool:
    """Return whether a decoder may make the text longer, which could exhaust memory or time."""
    if isinstance(decoder, list):
        return any(map(_may_grow, decoder))
    if not isinstance(decoder, dict):
        return False
    if decoder.get("type") == "Replace":
        pattern = decoder["pattern"].get("String", "")
        return not pattern or len(decoder["content"]) > len(pattern)
    return _may_grow(decoder.get("decoders"))
