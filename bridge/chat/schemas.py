"""JSON schemas, held against replies within limits.

The agent brings the schema and the policy the reply, and either may make a check as long as it
likes: by a pattern that backtracks, by references that double at each level, by sheer size. So
patterns go to RE2, every keyword looks at the clock, and what ``jsonschema`` does in one long step
is done here in short ones. (A validator in native code holds all threads until it is done.)

A check on the event loop is a hasty one: past ``HASTY_SECONDS`` it raises ``TooLong``, and is made
anew in a thread (``formats.py``). One that cannot be made at all (a pattern that RE2 does not know,
a reference into nothing, more than ``MOST_SECONDS``) is not held against the policy.
"""

import json
import logging
import re
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache, lru_cache, partial
from typing import Any

import re2  # type: ignore[import-untyped]
import referencing
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend, validator_for

logger = logging.getLogger(__name__)

HASTY_SECONDS = 0.02  # what a check may take of the event loop

HASTY_TEXT = 100_000
"""Characters of a schema or a reply; a longer one is no work for the event loop at all."""

HASTY_MATCH = 5_000_000
"""Steps of one match on the event loop: a pattern's instructions times a text's characters."""

MOST_SECONDS = 2.0  # what a check may take of a thread's processor time

MOST_MATCH = 500_000_000
"""Steps of one match anywhere: about a second, in which it cannot be stopped."""

LONGEST_PATTERN = 1_000  # characters of a pattern
LONGEST_VETTED = 10_000  # characters of a schema that is itself checked, before any reply
MOST_WARNED = 100  # schemas that a process warns of

_warned: set[str] = set()

Keyword = Callable[..., Iterator[ValidationError] | None]


class TooLong(Exception):
    """A hasty check has to go on elsewhere, or any other has taken its time."""


class _Unknown(Exception):
    """What cannot be checked."""


class _Clock:
    def __init__(self, *, hasty: bool) -> None:
        self._now = time.perf_counter if hasty else time.thread_time
        self._end = self._now() + (HASTY_SECONDS if hasty else MOST_SECONDS)
        self._longest_match = HASTY_MATCH if hasty else MOST_MATCH

    def look(self, steps: int = 0) -> None:
        """Raise ``TooLong`` if the time is over, or the next match has too many steps."""
        if steps > self._longest_match or self._now() > self._end:
            raise TooLong("it takes too long")


_clock: ContextVar[_Clock] = ContextVar("evert_schema_clock")


def vet(schema: str) -> None:
    """Raise jsonschema's ``SchemaError`` for what is none; a very long one is taken as it comes."""
    if len(schema) <= LONGEST_VETTED:
        _validator(schema).check_schema(json.loads(schema))


def first_error(schema: str, value: Any, *, hasty: bool = False) -> ValidationError | None:
    """Where ``value`` does not fit the schema; None when it does, or cannot be checked."""
    token = _clock.set(_Clock(hasty=hasty))
    try:
        if all(f'"{name}Properties"' in schema for name in ("unevaluated", "pattern")):
            raise _Unknown("it has 'unevaluatedProperties' beside 'patternProperties'")
        return next(iter(_validator(schema).iter_errors(value)), None)
    except ArithmeticError as error:
        return ValidationError(f"a number in it cannot be checked ({error})")
    except Exception as error:  # whatever becomes of a schema that is none
        if hasty and isinstance(error, TooLong):
            raise
        _warn(schema, f"{error!s:.300}")
        return None
    finally:
        _clock.reset(token)


def _warn(schema: str, reason: str) -> None:
    if schema not in _warned and len(_warned) < MOST_WARNED:
        _warned.add(schema)
        logger.warning(
            "A JSON schema cannot be checked, so every reply fits it: %s. Schema: %.200s",
            reason,
            schema,
        )


@lru_cache(256)
def _validator(schema: str) -> Validator:
    value: Any = json.loads(schema)
    kind = _timed(validator_for(value, default=Draft202012Validator))
    made: Validator = kind(value, registry=referencing.Registry())
    return made


# -- keywords ------------------------------------------------------------------------------------


@cache
def _timed(kind: type[Validator]) -> type[Validator]:
    own: dict[str, Callable[[Keyword], Keyword]] = {
        "pattern": lambda _: _pattern,
        "patternProperties": lambda _: _pattern_properties,
        "additionalProperties": _additional_properties,
        "unevaluatedItems": _unevaluated,
        "unevaluatedProperties": _unevaluated,
        "uniqueItems": lambda _: _unique_items,
        "anyOf": lambda _: partial(_some_of, most=None),
        "oneOf": lambda _: partial(_some_of, most=1),
    }
    timed = {
        name: _looking(own[name](check) if name in own else check)
        for name, check in kind.VALIDATORS.items()
    }
    extended: type[Validator] = extend(kind, timed)  # type: ignore[no-untyped-call]
    return extended


def _looking(check: Keyword) -> Keyword:
    def looking(validator: Any, wanted: Any, instance: Any, schema: Any) -> Any:
        _clock.get().look()
        return check(validator, wanted, instance, schema)

    return looking


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _is_found(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any
) -> Iterator[ValidationError]:
    for name, value in instance.items() if isinstance(instance, dict) else ():
        for pattern, wanted in patterns.items():
            if _is_found(pattern, name):
                yield from validator.descend(value, wanted, path=name, schema_path=pattern)


def _additional_properties(check: Keyword) -> Keyword:
    def additional(validator: Any, wanted: Any, instance: Any, schema: Any) -> Any:
        if not isinstance(instance, dict):
            return None
        own, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        rest = {
            name: value
            for name, value in instance.items()
            if name not in own and not any(_is_found(pattern, name) for pattern in patterns)
        }
        return check(validator, wanted, rest, {})

    return additional


def _some_of(
    validator: Any, wanted: list[Any], instance: Any, schema: Any, *, most: int | None
) -> Iterator[ValidationError]:
    """``anyOf`` and ``oneOf`` without the errors of what does not fit: to free millions of them
    blocks all threads."""
    fitting = 0
    for one in wanted:
        fitting += next(validator.descend(instance, one), None) is None
        if fitting and most is None:
            return
        if most is not None and fitting > most:
            yield ValidationError(f"{instance!r} is valid under more than one of the given schemas")
            return
    if not fitting:
        yield ValidationError(f"{instance!r} is not valid under any of the given schemas")


def _unevaluated(check: Keyword) -> Keyword:
    def unevaluated(validator: Any, wanted: Any, instance: Any, schema: Any) -> Any:
        if isinstance(instance, list | dict):  # each of them is looked up in a list
            _clock.get().look(len(instance) ** 2)
        return check(validator, wanted, instance, schema)

    return unevaluated


def _unique_items(
    validator: Any, wanted: bool, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if wanted and isinstance(instance, list) and len({*map(_hashable, instance)}) < len(instance):
        yield ValidationError(f"{instance!r} has non-unique elements")


def _hashable(value: Any) -> Hashable:
    """What equals another if the JSON does: 1 is 1.0, but true is not 1."""
    if isinstance(value, bool):
        return bool, value
    if isinstance(value, list):
        return list, *map(_hashable, value)
    if isinstance(value, dict):
        return dict, frozenset((name, _hashable(inner)) for name, inner in value.items())
    return value  # type: ignore[no-any-return]


# -- patterns ------------------------------------------------------------------------------------


def _is_found(pattern: str, text: str) -> bool:
    compiled = _compiled(pattern)
    _clock.get().look(compiled.programsize * len(text))
    # JSON may hold halves of surrogate pairs, which no encoding knows
    return compiled.search(text.encode("utf-8", "replace")) is not None


@lru_cache(128)
def _compiled(pattern: str) -> Any:
    if len(pattern) > LONGEST_PATTERN:
        raise _Unknown(f"a pattern of {len(pattern)} characters is too long to be tried")
    options = re2.Options()
    options.max_mem = 2 << 20
    options.log_errors = False
    try:
        return re2.compile(_ESCAPE.sub(_as_re2, pattern), options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        reason = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
        raise _Unknown(f"RE2, which tries patterns, does not know {pattern!r}: {reason}") from None


_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)


def _as_re2(escape: re.Match[str]) -> str:
    """JavaScript's escape of a character by its number, as RE2 writes it."""
    return f"\\x{{{escape[1]}}}" if escape[1] else escape[0]
