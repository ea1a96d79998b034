"""The fields of a request: which are supported, and how their values are read.

Every field of an API has a policy (``FieldPolicy``). It is *honoured* (it shapes the observation,
the reply or the budget), *ignored* (sampling belongs to the trainer), or *refused* with a 400 that
says what to do instead. In the native handle, a field without a policy is an error. Over HTTP it
only causes a warning, because SDKs and frameworks add fields with every release. A null counts as
an absent field. A reader raises the 400 if a value has the wrong form.
"""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evert.bridge.chat.bad_requests import bad_request, malformed

logger = logging.getLogger(__name__)

MOST_WARNED = 100  # a process warns about at most this many names

_warned_names: set[str] = set()


@dataclass(frozen=True)
class FieldPolicy:
    """The policy for each field of an API."""

    honoured: frozenset[str]
    ignored: frozenset[str]
    refused: Mapping[str, tuple[Sequence[Any], str]]  # values that pass, and what to do instead

    def check(self, fields: Mapping[str, Any], *, strict: bool) -> None:
        """Raise a 400 for a refused field, and for an unknown one if ``strict``; else warn."""
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
                        f"Unknown field '{name}'. The fields that evert knows are listed in "
                        "docs/requests.md.",
                        param=name,
                    )
                warn_once(name, "An agent sends the field %.100r, which evert does not know")


def _is_same(value: object, allowed: object) -> bool:
    if isinstance(value, tuple):
        value = [*value]
    return value == allowed and isinstance(value, bool) == isinstance(allowed, bool)


def warn_once(name: str, text: str) -> None:
    """Log once that a name is ignored; ``text`` says what it is, with a place for the name."""
    if name in _warned_names or len(_warned_names) >= MOST_WARNED:
        return
    _warned_names.add(name)
    note = " Further names are not reported." if len(_warned_names) == MOST_WARNED else ""
    logger.warning(f"{text}: it is ignored.%s", name, note)


def is_absent(value: object) -> bool:
    """Whether a field counts as absent: null, or one of the SDK's markers."""
    return value is None or type(value).__name__ in ("NotGiven", "Omit")


def read_messages(value: object, name: str = "messages") -> Sequence[Any]:
    """The field as a non-empty list."""
    if isinstance(value, (list, tuple)) and value:
        return value if type(value) in (list, tuple) else list(value)
    raise malformed(name, "a non-empty list of messages", value)


def read_model(value: object, default: str) -> str:
    """The model's name; ``default`` when the field is absent or empty."""
    if is_absent(value) or value == "":
        return default
    if isinstance(value, str):
        return value
    raise malformed("model", "a string", value)


def read_kind(value: object, name: str, kind: Any, expected: str, absent: Any = None) -> Any:
    """The field, of the type ``kind`` (``expected`` in words); ``absent`` when it is absent."""
    if is_absent(value):
        return absent
    if isinstance(value, kind):
        return value
    raise malformed(name, expected, value)


def read_list(value: object, name: str, of: str) -> Sequence[Any]:
    """The field as a list ``of`` something; empty when it is absent."""
    return read_kind(value, name, (list, tuple), f"a list of {of}", ())  # type: ignore[no-any-return]


def read_tool_list(value: object) -> list[Any] | None:
    """The tools as a list; None if it is empty."""
    return [*read_list(value, "tools", "tools")] or None


def read_object(value: object, name: str) -> Mapping[str, Any] | None:
    """The field as an object; None when it is absent."""
    return read_kind(value, name, Mapping, "an object")  # type: ignore[no-any-return]


def read_cap(fields: Mapping[str, Any], *names: str) -> int | None:
    """The smallest of several caps on the reply's tokens; None when no cap is given."""
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
    """The stop strings; empty when the field is absent."""
    if is_absent(value):
        return ()
    stops = (value,) if isinstance(value, str) else value
    if isinstance(stops, (list, tuple)) and all(isinstance(s, str) and s for s in stops):
        return tuple(stops)
    raise malformed(name, "a non-empty string or a list of them", value)


def read_flag(fields: Mapping[str, Any], name: str, *, absent: bool = False) -> bool:
    """A boolean field; ``absent`` when it is absent."""
    return read_kind(fields.get(name), name, bool, "true or false", absent)  # type: ignore[no-any-return]


def read_train(fields: Mapping[str, Any]) -> bool:
    """Whether to train on the reply: the field ``evert`` ({"train": false}), by default True."""
    options = read_object(fields.get("evert"), "evert") or {}
    if not {*options} <= {"train"} or not isinstance(options.get("train", True), bool):
        raise malformed("evert", '{"train": true} or {"train": false}', options)
    return bool(options.get("train", True))


def json_object(text: str | bytes) -> dict[str, Any] | None:
    """The JSON object in a text; None if the text is not a JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def is_deeper(value: object, levels: int) -> bool:
    """Whether a JSON value nests lists and objects more than ``levels`` deep."""
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
