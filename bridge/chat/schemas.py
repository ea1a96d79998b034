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
from functools import lru_cache
from typing import Any

from jsonschema_rs import RegexOptions, ValidationError, Validator, validator_for
from jsonschema_rs import ValidationErrorKind as Kind

from evert.bridge.chat.fields import is_deeper

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
        if not is_deeper(value, DEEPEST):
            _validator(schema, as_told=True).validate(value)
    except ValidationError as error:
        if not isinstance(error.kind, Kind.Referencing):
            steps = (f"[{s}]" if isinstance(s, int) else f".{s}" for s in error.instance_path)
            message = error.message.replace("False schema does", "the schema does", 1)
            return f"${''.join(steps):.200}: {message:.200}"
    return "$: it is not valid"


@lru_cache(256)
def _validator(schema: str, *, as_told: bool = False) -> Validator:
    value = json.loads(schema)
    value = _without_errors_of_alternatives(value) if as_told else value
    options = RegexOptions()
    return validator_for(value, offline=True, validate_formats=False, pattern_options=options)


_NO_SCHEMAS = {"const", "enum", "dependentRequired", "dependencies"}
"""Keywords whose objects are values, or have names of the agent's before lists."""


def _without_errors_of_alternatives(schema: Any) -> Any:
    """The schema, which says only whether one of its alternatives fits."""
    if isinstance(schema, list):
        return [_without_errors_of_alternatives(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    part = {
        name: inner if name in _NO_SCHEMAS else _without_errors_of_alternatives(inner)
        for name, inner in schema.items()
    }
    names = [name for name in ("anyOf", "oneOf") if isinstance(part.get(name), list)]
    if names:
        conditions = [{"if": {name: part.pop(name)}, "else": False} for name in names]
        part["allOf"] = [*part.get("allOf", ()), *conditions]
    return part


@lru_cache(100)
def _warn(schema: str, reason: str) -> None:
    told = "A JSON schema cannot be checked, so every reply fits it: %s. Schema: %.200s"
    logger.warning(told, reason, schema)
