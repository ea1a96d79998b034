"""Fields of settings that check their values, and the errors they raise."""

import math
import re
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import chz

from evert.bridge.errors import EvertError
from evert.trainers.system.machine import cores

Dtype: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]
"""Type of a model's weights on the embedded engine."""


class RecipeError(EvertError, ValueError):
    """The settings are invalid: a game is unknown, a value is missing, or two values conflict."""


class DemonstrationsError(EvertError, ValueError):
    """The demonstrations that a recipe or a user names are missing, wrong or too few."""


def setting(default: Any, doc: str) -> Any:
    """Return a field of settings; ``doc`` is its help text."""
    return chz.field(default=default, doc=doc)


def _checked_field(default: Any, doc: str, fits: Callable[[Any], bool], rule: str) -> Any:
    def check(settings: Any, attribute: str) -> None:
        name = attribute.removeprefix("X_")
        if not fits(value := getattr(settings, name)):
            raise RecipeError(f"{name} {rule}, got {value!r}.")

    return chz.field(default=default, doc=doc, validator=check)


def size(default: Any, doc: str, minimum: float = 1, *, or_more: bool = True) -> Any:
    """Return a field for None or a number of at least ``minimum`` (above, without ``or_more``)."""

    def fits(value: float | None) -> bool:
        if value is None:
            return True
        return math.isfinite(value) and (value >= minimum if or_more else value > minimum)

    bound = f"at least {minimum:g}" if or_more else f"above {minimum:g}"
    return _checked_field(default, doc, fits, f"must be {bound}")


def share(default: float, doc: str) -> Any:
    """Return a field for a share from 0 (or False) to 1 (or True)."""
    rule = "must be a share from 0 (none) to 1 (all)"
    return _checked_field(default, doc, lambda value: 0 <= value <= 1, rule)


def device(doc: str) -> Any:
    """Return the field for a model's device; whether the device exists is checked later."""
    pattern = re.compile(r"auto|cpu|cuda(:\d+)?|mps")
    rule = "takes auto, cpu, cuda, cuda with a number (cuda:1) or mps"
    return _checked_field("auto", doc, lambda value: bool(pattern.fullmatch(value)), rule)


def port(doc: str) -> Any:
    """Return the field for a port to listen on; 0: any free port."""
    return _checked_field(0, doc, lambda value: 0 <= value < 2**16, "must be from 0 to 65535")


def parallel() -> Any:
    """Return the field for the number of episodes at a time, which ``at_a_time`` reads."""
    return size(
        None,
        "held-out or evaluation episodes to play at a time; None: 16 per core, at most 256",
    )


def at_a_time(limit: int | None) -> int:
    """Return how many episodes to play at a time; for None, 16 per core and at most 256.

    An episode may need a thread for the agent, or several processes for a command.
    """
    return min(16 * cores(), 256) if limit is None else limit


def by_path(doc: str) -> Any:
    """Return a field for a mapping whose keys are set one by one: ``limits.max_turns=20``."""
    return chz.field(default_factory=dict, doc=doc)


def trust() -> Any:
    """Return the field that lets a model's own code run (``bridge/tokens/pretrained.py``)."""
    return setting(False, "whether to run Python code that comes with a model; read it first")
