"""Request fields: which ones evert supports, and functions that read and validate them.

``FieldPolicy`` specifies how each field of an API is handled. A field is *honoured* (it affects the
observation, the reply or the token budget), *ignored* (for example sampling parameters, which the
trainer controls) or *refused* with a 400 error that suggests an alternative. Unknown fields raise
an error in calls made through evert's own client. In all other calls they only cause a warning,
because SDKs and frameworks add fields with every release. A null value is treated as a missing
field. The ``read_*`` functions raise a 400 error if a value is invalid.
"""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evert.bridge.chat.bad_requests import bad_request, malformed

logger = logging.getLogger(__name__)

MOST_WARNED = 100  # maximum number of names to warn about per process

_warned_names: set[str] = set()


@dataclass(frozen=True)
class FieldPolicy:
    """How evert handles each field of an API."""

    honoured: frozenset[str]
    ignored: frozenset[str]
    refused: Mapping[str, tuple[Sequence[Any], str]]  # values that are accepted anyway, and advice

    def check(self, fields: Mapping[str, Any], *, strict: bool) -> None:
        """Raise a 400 error for refused fields, and for unknown fields if ``strict``.

        If not ``strict``, each unknown field is logged once.
        """
        for name, value in fields.items():
            if is_absent(value):
                continue
            if name in self.refused:
                allowed_values, advice = self.refused[name]
                if not any(_is_same(value, allowed) for allowed in allowed_values):
                    raise bad_request(
                        f"'{name}'={value!r:.200} is not supported. {advice}", param=name
                    )
            elif name not in self.honoured and name not in self.ignored:
                if strict:
                    raise bad_request(
                        f"Unknown field '{name}'. See docs/requests.md for the fields that evert "
                        "supports.",
                        param=name,
                    )
                warn_once(name, "An agent sent the unknown field %.100r")


def _is_same(value: object, allowed: object) -> bool:
    if isinstance(value, tuple):
        value = [*value]
    return value == allowed and isinstance(value, bool) == isinstance(allowed, bool)


def warn_once(name: str, text: str) -> None:
    """Warn once that ``name`` is ignored. ``text`` contains a ``%`` placeholder for the name."""
    if name in _warned_names or len(_warned_names) >= MOST_WARNED:
        return
    _warned_names.add(name)
    note = " No more names will be reported." if len(_warned_names) == MOST_WARNED else ""
    logger.warning(f"{text}; it will be ignored.%s", name, note)


def is_absent(value: object) -> bool:
    """Return whether a value means "not set": None, or the SDK's ``NotGiven`` or ``Omit``."""
    return value is None or type(value).__name__ in ("NotGiven", "Omit")


def read_messages(value: object, name: str = "messages") -> Sequence[Any]:
    """Return the list of messages, which must not be empty."""
    if isinstance(value, (list, tuple)) and value:
        return value if type(value) in (list, tuple) else list(value)
    raise malformed(name, "a non-empty list of messages", value)


def read_model(value: object, default: str) -> str:
    """Return the model name, or ``default`` if the field is missing or empty."""
    if is_absent(value) or value == "":
        return default
    if isinstance(value, str):
        return value
    raise malformed("model", "a string", value)


def read_kind(value: object, name: str, kind: Any, expected: str, absent: Any = None) -> Any:
    """Return the value, which must have type ``kind``, or ``absent`` if the field is missing.

    ``expected`` describes the type in the error message.
    """
    if is_absent(value):
        return absent
    if isinstance(value, kind):
        return value
    raise malformed(name, expected, value)


def read_list(value: object, name: str, of: str) -> Sequence[Any]:
    """Return a list field, or () if it is missing. Error messages call the items ``of``."""
    return read_kind(value, name, (list, tuple), f"a list of {of}", ())  # type: ignore[no-any-return]


def read_tool_list(value: object) -> list[Any] | None:
    """Return the tools as a list, or None if the field is missing or empty."""
    return [*read_list(value, "tools", "tools")] or None


def read_object(value: object, name: str) -> Mapping[str, Any] | None:
    """Return a JSON object field, or None if it is missing."""
    return read_kind(value, name, Mapping, "an object")  # type: ignore[no-any-return]


def read_cap(fields: Mapping[str, Any], *names: str) -> int | None:
    """Return the smallest of the given token limits, or None if none of them is set."""
    caps = []
    for name in names:
        value = fields.get(name)
        if is_absent(value):
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise malformed(name, "a positive integer", value)
        caps.append(value)
    return min(caps) if caps else None


def read_stop(value: object, name: str = "stop") -> tuple[str, ...]:
    """Return the stop strings as a tuple, which is empty if the field is missing."""
    if is_absent(value):
        return ()
    stops = (value,) if isinstance(value, str) else value
    if isinstance(stops, (list, tuple)) and all(isinstance(s, str) and s for s in stops):
        return tuple(stops)
    raise malformed(name, "a non-empty string or a list of non-empty strings", value)


def read_flag(fields: Mapping[str, Any], name: str, *, absent: bool = False) -> bool:
    """Return a boolean field, or ``absent`` if it is missing."""
    return read_kind(fields.get(name), name, bool, "true or false", absent)  # type: ignore[no-any-return]


def read_train(fields: Mapping[str, Any]) -> bool:
    """Return whether to train on the reply (default: True).

    A request opts out with ``"evert": {"train": false}``.
    """
    options = read_object(fields.get("evert"), "evert") or {}
    if not {*options} <= {"train"} or not isinstance(options.get("train", True), bool):
        raise malformed("evert", '{"train": true} or {"train": false}', options)
    return bool(options.get("train", True))


def json_object(text: str | bytes) -> dict[str, Any] | None:
    """Parse a JSON object; return None if the text is not a valid JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def is_deeper(value: object, levels: int) -> bool:
    """Return whether a JSON value is nested more than ``levels`` levels deep."""
    level = [value]
    for _ in range(levels + 1):
        level = [inner for item in level for inner in _inside(item)]
        if not level:
            return False
    return True


def _inside(value: object) -> Collection[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
