"""Loads models from folders without running any code that they contain.

Whether such code is trusted is controlled by the Cookbook's environment variable
``HF_TRUST_REMOTE_CODE``, which worker processes inherit. Commands set it to the value of their
``trust_remote_code`` setting.
"""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from evert.bridge.errors import InvalidModelError

logger = logging.getLogger(__name__)

TRUST = "HF_TRUST_REMOTE_CODE"

LARGEST_TEXT = 256 * 2**20  # maximum bytes of a ``.json`` or ``.jinja`` file
LONGEST = 400  # maximum length of a loader's error message, which may quote the model's files


def code_is_trusted() -> bool:
    """Return whether models are currently allowed to run their own code."""
    return os.environ.get(TRUST, "").lower() in ("1", "true", "yes")


@contextmanager
def trusting_code(trusted: bool) -> Iterator[None]:
    """Set whether models may run their own code in a ``with`` block. Warns if they may."""
    if trusted:
        logger.warning(
            "trust_remote_code=True: Python code that comes with a model will run with your "
            "permissions."
        )
    before = os.environ.get(TRUST)
    os.environ[TRUST] = str(int(trusted))
    try:
        yield
    finally:
        if before is None:
            del os.environ[TRUST]
        else:
            os.environ[TRUST] = before


def from_pretrained(auto_class: Any, name: str, source: str, **options: Any) -> Any:
    """Load a model from a folder or the Hub with a ``transformers`` auto class.

    ``name`` is what the user calls the model, and ``source`` is its folder or its name on the Hub.
    Raises an ``InvalidModelError`` if a folder cannot be loaded.
    """
    with loading(name, source):
        if auto_class.__name__ == "AutoTokenizer" and _has_its_own_tokenizer(Path(source)):
            raise _untrusted(name, Path(source))
        return auto_class.from_pretrained(source, trust_remote_code=code_is_trusted(), **options)


@contextmanager
def loading(name: str, source: str) -> Iterator[None]:
    """Convert loading errors to ``InvalidModelError`` (see ``from_pretrained``)."""
    folder = Path(source)
    if folder.is_dir():
        check_folder(name, folder)
    try:
        yield
    except InvalidModelError:
        raise
    except Exception as error:  # parsers can raise anything on a damaged file
        if not code_is_trusted() and "trust_remote_code" in str(error):
            raise _untrusted(name, folder) from error
        if not folder.is_dir():
            raise
        reason = f"the loader raised {type(error).__name__}: {' '.join(str(error).split())}"
        if isinstance(error, UnpicklingError):
            reason = "its weights are a pickle that contains more than tensors; use .safetensors"
        reason = "".join(character for character in reason if character.isprintable())
        raise InvalidModelError(
            f"Model {name!r} could not be loaded. Check the files in {source}; {reason:.{LONGEST}}"
        ) from error


def check_folder(name: str, folder: Path) -> None:
    """Reject folders with files that are too large or not regular (a pipe would block forever)."""
    for file in folder.iterdir():
        if not file.exists() or file.is_dir():
            continue
        size = file.stat().st_size if file.suffix in (".json", ".jinja") else 0
        if file.is_file() and size <= LARGEST_TEXT:
            continue
        problem = f"has {size:,} bytes" if file.is_file() else "is a pipe, a device or a socket"
        raise InvalidModelError(
            f"Model {name!r}: {file.name!r} in {folder} {problem}; expected a regular file. Text "
            f"files may have at most {LARGEST_TEXT:,} bytes. Check where the folder comes from."
        )


def register_folder(name: str) -> None:
    """Make the Cookbook's ``get_tokenizer`` load a folder's tokenizer with ``from_pretrained``.

    Otherwise, the Cookbook would run any code in the folder. Models that are not folders are still
    loaded by the Cookbook.
    """
    from tinker_cookbook.tokenizer_utils import is_tokenizer_registered, register_tokenizer

    # For the Cookbook, "folder:variant" means the folder.
    for folder in (Path(name).expanduser(), Path(name.split(":")[0])):
        if folder.is_dir() and not is_tokenizer_registered(name):
            register_tokenizer(name, lambda at=str(folder): _load(name, at, code_is_trusted()))  # type: ignore[misc]


@cache
def _load(name: str, folder: str, trusted: bool) -> Any:
    from transformers import AutoTokenizer

    return from_pretrained(AutoTokenizer, name, folder)


# -- code ------------------------------------------------------------------------------------------


def _has_its_own_tokenizer(folder: Path) -> bool:
    """Return whether the tokenizer needs untrusted code.

    This is the case if the tokenizer comes with code that is not trusted, and ``transformers`` does
    not have its class. In this case, ``transformers`` would silently use a different class.
    """
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

    config = read_json(folder / "tokenizer_config.json")
    class_name = config.get("tokenizer_class")
    is_known = isinstance(class_name, str) and tokenizer_class_from_name(class_name) is not None
    return "auto_map" in config and not is_known and not code_is_trusted()


def _untrusted(name: str, folder: Path) -> InvalidModelError:
    maps = {
        file.name: read_json(file).get("auto_map") for file in sorted(folder.glob("*config.json"))
    }
    entries = "; ".join(f"{file} names {entry!r:.100}" for file, entry in maps.items() if entry)
    return InvalidModelError(
        f"Model {name!r} needs the Python code that comes with it (auto_map in "
        f"{entries or 'its files'}). The code was not run. Review it, and if you trust it, pass "
        "trust_remote_code=True."
    )


def read_json(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or an empty dict if there is none."""
    try:
        value = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
