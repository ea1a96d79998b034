"""Validates replies against JSON schemas with ``jsonschema-rs``.

The schema comes from the agent and is trusted. The reply comes from the policy, so it can be
anything. Validation time is linear in the length of the reply, because the regex engine never
backtracks. The time to locate an error can double with each nesting level, so we locate errors only
in replies nested at most ``DEEPEST`` levels deep, and never inside ``anyOf`` or ``oneOf``.
Validation blocks all threads of the process.

A schema with a dangling reference or a look-around pattern cannot be used for validation, so every
reply passes. Remote references are never fetched.
"""

import json
import logging
from functools import lru_cache
from typing import Any

from jsonschema_rs import RegexOptions, ValidationError, Validator, validator_for
from jsonschema_rs import ValidationErrorKind as Kind

from evert.bridge.chat.fields import is_deeper

logger = logging.getLogger(__name__)

DEEPEST = 10  # maximum nesting depth at which the location of an error is reported


def check_schema(schema: str) -> None:
    """Raise a ``ValueError`` if the text is not a valid JSON schema. References are not checked."""
    try:
        validator_for(json.loads(schema), offline=True)
    except ValidationError as error:
        if not isinstance(error.kind, Kind.Referencing):
            raise ValueError(error.message) from None


def first_error(schema: str, value: Any) -> str | None:
    """Describe where and why a value violates a schema.

    Returns None if the value is valid, or if the schema cannot be used for validation.
    """
    try:
        if _validator(schema).is_valid(value):
            return None
    except Exception as error:  # a bad schema may cause any exception
        _warn(schema, f"{getattr(error, 'message', error)!s:.300}")
        return None
    try:
        if not is_deeper(value, DEEPEST):
            _validator(schema, for_report=True).validate(value)
    except ValidationError as error:
        if not isinstance(error.kind, Kind.Referencing):
            steps = (f"[{s}]" if isinstance(s, int) else f".{s}" for s in error.instance_path)
            message = error.message.replace("False schema does", "the schema does", 1)
            return f"${''.join(steps):.200}: {message:.200}"
    return "$: it is not valid"


@lru_cache(256)
def _validator(schema: str, *, for_report: bool = False) -> Validator:
    value = json.loads(schema)
    value = _without_errors_of_alternatives(value) if for_report else value
    options = RegexOptions()
    return validator_for(value, offline=True, validate_formats=False, pattern_options=options)


_NO_SCHEMAS = {"const", "enum", "dependentRequired", "dependencies"}
"""Keywords that do not contain schemas. Inside them, ``anyOf`` is just a value or a name."""


def _without_errors_of_alternatives(schema: Any) -> Any:
    """Rewrite a schema so that a failed ``anyOf`` or ``oneOf`` reports no nested errors."""
    if isinstance(schema, list):
        return [_without_errors_of_alternatives(item) for item in schema]
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
    text = "Cannot validate with this JSON schema, so all replies are accepted: %s. Schema: %.200s"
    logger.warning(text, reason, schema)
