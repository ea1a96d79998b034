"""The fields of a request: which ones are supported, and the functions that read their values.

Each known field of an API has a policy (``FieldPolicy``). It is *honoured* (it affects the
observation, the reply or the token budget), *ignored* (sampling parameters are the trainer's), or
*refused* with a 400 that says what to do instead. The native handle raises an error for an unknown
field. Over HTTP evert only warns, because SDKs and frameworks add fields with every release. A null
counts as an absent field. The ``read_*`` functions raise a 400 if a value has the wrong form.
"""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evert.bridge.chat.bad_requests import bad_request, malformed

logger = logging.getLogger(__name__)

MOST_WARNED = 100  # maximum number of names that a process warns about

_warned_names: set[str] = set()


@dataclass(frozen=True)
class FieldPolicy:
    """How each field of an API is treated."""

    honoured: frozenset[str]
    ignored: frozenset[str]
    refused: Mapping[str, tuple[Sequence[Any], str]]  # accepted values, and what to do instead

    def check(self, fields: Mapping[str, Any], *, strict: bool) -> None:
        """Raise a 400 for a refused field; for an unknown field raise if ``strict``, else warn."""
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
    """Log once that a name is ignored; ``text`` describes it, with a placeholder for the name."""
    if name in _warned_names or len(_warned_names) >= MOST_WARNED:
        return
    _warned_names.add(name)
    note = " Further names are not reported." if len(_warned_names) == MOST_WARNED else ""
    logger.warning(f"{text}: it is ignored.%s", name, note)


def is_absent(value: object) -> bool:
    """Return whether a field counts as absent: it is null, or one of the SDK's markers."""
    return value is None or type(value).__name__ in ("NotGiven", "Omit")


def read_messages(value: object, name: str = "messages") -> Sequence[Any]:
    """Return the field, which must be a non-empty list."""
    if isinstance(value, (list, tuple)) and value:
        return value if type(value) in (list, tuple) else list(value)
    raise malformed(name, "a non-empty list of messages", value)


def read_model(value: object, default: str) -> str:
    """Return the model's name; ``default`` if the field is absent or empty."""
    if is_absent(value) or value == "":
        return default
    if isinstance(value, str):
        return value
    raise malformed("model", "a string", value)


def read_kind(value: object, name: str, kind: Any, expected: str, absent: Any = None) -> Any:
    """Return a field of type ``kind`` (``expected`` in words); ``absent`` if there is none."""
    if is_absent(value):
        return absent
    if isinstance(value, kind):
        return value
    raise malformed(name, expected, value)


def read_list(value: object, name: str, of: str) -> Sequence[Any]:
    """Return the field, a list ``of`` something; empty if it is absent."""
    return read_kind(value, name, (list, tuple), f"a list of {of}", ())  # type: ignore[no-any-return]


def read_tool_list(value: object) -> list[Any] | None:
    """Return the tools as a list; None if there are none."""
    return [*read_list(value, "tools", "tools")] or None


def read_object(value: object, name: str) -> Mapping[str, Any] | None:
    """Return the field, a JSON object; None if it is absent."""
    return read_kind(value, name, Mapping, "an object")  # type: ignore[no-any-return]


def read_cap(fields: Mapping[str, Any], *names: str) -> int | None:
    """Return the smallest of several caps on the reply's tokens; None if no cap is given."""
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
    """Return the stop strings; empty if the field is absent."""
    if is_absent(value):
        return ()
    stops = (value,) if isinstance(value, str) else value
    if isinstance(stops, (list, tuple)) and all(isinstance(s, str) and s for s in stops):
        return tuple(stops)
    raise malformed(name, "a non-empty string or a list of them", value)


def read_flag(fields: Mapping[str, Any], name: str, *, absent: bool = False) -> bool:
    """Return a boolean field; ``absent`` if it is absent."""
    return read_kind(fields.get(name), name, bool, "true or false", absent)  # type: ignore[no-any-return]


def read_train(fields: Mapping[str, Any]) -> bool:
    """Return whether to train on the reply; False if the field ``evert`` is {"train": false}."""
    options = read_object(fields.get("evert"), "evert") or {}
    if not {*options} <= {"train"} or not isinstance(options.get("train", True), bool):
        raise malformed("evert", '{"train": true} or {"train": false}', options)
    return bool(options.get("train", True))


def json_object(text: str | bytes) -> dict[str, Any] | None:
    """Parse a JSON object; return None if the text is not one."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def is_deeper(value: object, levels: int) -> bool:
    """Return whether a JSON value nests lists and objects more than ``levels`` deep."""
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
