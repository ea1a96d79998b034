"""JSON schemas, held against replies by ``jsonschema-rs``.

The agent brings the schema, which is taken to be sane, and the policy the reply, which may be
anything. Whether a reply fits is known in a time that grows with its length alone: patterns have an
engine that never goes back. To find where it does not fit may take twice as long with each level
of the reply. So the place is told for at most ``DEEPEST`` levels, and ``anyOf`` and ``oneOf`` are
told as a whole. A check holds all threads, wherever it runs.

What cannot be checked (a reference into nothing, a pattern with look-around) is not held against
the policy. Nothing is ever fetched.
"""

import json
import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from jsonschema_rs import RegexOptions, ValidationError, Validator, validator_for
from jsonschema_rs import ValidationErrorKind as Kind

logger = logging.getLogger(__name__)

DEEPEST = 10  # most levels of a reply that is told where it does not fit


def vet(schema: str) -> None:
    """Raise a ``ValueError`` for what is no schema; where references lead is not looked at."""
    try:
        validator_for(json.loads(schema), offline=True)
    except ValidationError as error:
        if not isinstance(error.kind, Kind.Referencing):
            raise ValueError(error.message) from None


def first_error(schema: str, value: Any) -> str | None:
    """Where a value does not fit, and why; None when it does, or cannot be checked."""
    try:
        if _validator(schema).is_valid(value):
            return None
    except Exception as error:  # whatever becomes of a schema that is none
        _warn(schema, f"{getattr(error, 'message', error)!s:.300}")
        return None
    try:
        if not _is_deeper(value, DEEPEST):
            _validator(schema, _without_errors_of_alternatives).validate(value)
    except ValidationError as error:
        if not isinstance(error.kind, Kind.Referencing):
            steps = (f"[{s}]" if isinstance(s, int) else f".{s}" for s in error.instance_path)
            message = error.message.replace("False schema does", "the schema does", 1)
            return f"${''.join(steps):.200}: {message:.200}"
    return "$: it is not valid"


@lru_cache(256)
def _validator(schema: str, hook: Callable[[dict[str, Any]], Any] | None = None) -> Validator:
    value = json.loads(schema, object_hook=hook)
    options = RegexOptions()
    return validator_for(value, offline=True, validate_formats=False, pattern_options=options)


def _without_errors_of_alternatives(part: dict[str, Any]) -> dict[str, Any]:
    """A part of a schema that says only whether one of its alternatives fits."""
    names = [name for name in ("anyOf", "oneOf") if isinstance(part.get(name), list)]
    if names:
        conditions = [{"if": {name: part.pop(name)}, "else": False} for name in names]
        part["allOf"] = [*part.get("allOf", ()), *conditions]
    return part


def _is_deeper(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deeper(one, levels - 1) for one in inner)


@lru_cache(100)
def _warn(schema: str, reason: str) -> None:
    told = "A JSON schema cannot be checked, so every reply fits it: %s. Schema: %.200s"
    logger.warning(told, reason, schema)
