"""``pieces``: sampled tokens as texts, one each, by the tokenizer that a record names.

A tokenizer is read as data, from this machine: a base's folder, a model's, or the cache of the Hub.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from evert.bridge.tokens.bases import BASES, base_path

FILE = "tokenizer.json"
LARGEST = 64 * 2**20
"""Bytes of a tokenizer's file that is read."""


def pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """A text a token. Tokens that only together make a character are empty, but for the last."""
    from tokenizers.decoders import DecodeStream  # type: ignore[import-untyped]

    stream = DecodeStream(skip_special_tokens=False)
    return [stream.step(tokenizer, token) or "" for token in ids]


def tokenizer_file(name: str, run: Path) -> Path | None:
    """Where a record's tokenizer lies; None: not on this machine."""
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
        yield folder / Path(name).expanduser() / FILE
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, FILE)
    except (HFValidationError, OSError):
        return
    if isinstance(found, str):
        yield Path(found)


@lru_cache(4)
def load_tokenizer(file: Path) -> Any:
    """A ``tokenizers.Tokenizer``; None for a file that is none."""
    from tokenizers import Tokenizer  # type: ignore[import-untyped]

    try:
        return Tokenizer.from_file(str(file))
    except Exception:  # whatever the parser says of it
        return None
