"""Settings fields with validation, and the errors they raise."""

import math
import re
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import chz

from evert.bridge.errors import EvertError
from evert.trainers.system.machine import cores

Dtype: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]
"""Weight dtypes that the embedded engine supports."""


class RecipeError(EvertError, ValueError):
    """Invalid settings: the game is unknown, a value is missing, or two values conflict."""


class DemonstrationsError(EvertError, ValueError):
    """The demonstrations are missing or invalid, or there are too few of them."""


def setting(default: Any, doc: str) -> Any:
    """Return a settings field with a default value and a help text."""
    return chz.field(default=default, doc=doc)


def _checked_field(default: Any, doc: str, fits: Callable[[Any], bool], rule: str) -> Any:
    def check(settings: Any, attribute: str) -> None:
        name = attribute.removeprefix("X_")
        if not fits(value := getattr(settings, name)):
            raise RecipeError(f"{name} {rule}, got {value!r}.")

    return chz.field(default=default, doc=doc, validator=check)


def size(default: Any, doc: str, minimum: float = 1, *, or_more: bool = True) -> Any:
    """Return a field for None or a number that is at least ``minimum``.

    With ``or_more=False``, the number must be greater than ``minimum``.
    """

    def fits(value: float | None) -> bool:
        if value is None:
            return True
        return math.isfinite(value) and (value >= minimum if or_more else value > minimum)

    bound = f"at least {minimum:g}" if or_more else f"above {minimum:g}"
    return _checked_field(default, doc, fits, f"must be {bound}")


def share(default: float, doc: str) -> Any:
    """Return a field for a fraction between 0 (or False) and 1 (or True)."""
    rule = "must be a fraction from 0 (none) to 1 (all)"
    return _checked_field(default, doc, lambda value: 0 <= value <= 1, rule)


def device(doc: str) -> Any:
    """Return a field for the model's device. Whether the device exists is checked later."""
    pattern = re.compile(r"auto|cpu|cuda(:\d+)?|mps")
    rule = "must be auto, cpu, cuda, cuda with an index (cuda:1) or mps"
    return _checked_field("auto", doc, lambda value: bool(pattern.fullmatch(value)), rule)


def port(doc: str) -> Any:
    """Return a field for a port to listen on; 0 picks a free port."""
    return _checked_field(0, doc, lambda value: 0 <= value < 2**16, "must be from 0 to 65535")


def parallel() -> Any:
    """Return a field for the number of concurrent episodes; see ``at_a_time`` for the default."""
    return size(
        None,
        "how many evaluation episodes to play concurrently (default: 16 per core, at most 256)",
    )


def at_a_time(limit: int | None) -> int:
    """Return how many episodes to play concurrently (default: 16 per core, at most 256).

    The default is limited because each agent may need a thread and start several processes.
    """
    return min(16 * cores(), 256) if limit is None else limit


def by_path(doc: str) -> Any:
    """Return a mapping field whose keys are set individually, like ``limits.max_turns=20``."""
    return chz.field(default_factory=dict, doc=doc)


def trust() -> Any:
    """Return the field that allows running a model's code (``bridge/tokens/pretrained.py``)."""
    return setting(False, "allow running Python code that ships with a model; review it first")
