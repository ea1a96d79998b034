"""Describes the first difference between the messages of two requests."""

import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from evert.bridge.tokens.probes import common_prefix

AROUND = 40
"""Number of characters to show on each side of a difference."""

_UNSEEN = {"reasoning_content", "reasoning", "name", "refusal", "annotations", "audio"}
"""Fields that are not compared, because agents omit them or SDKs add them."""

_IDS = {"id", "tool_call_id"}


def in_messages(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> str:
    """Describe the first difference, or return "" if there is none.

    Call ids are only compared if nothing else differs, because agents often change them.
    """
    return _in_messages(before, after, _IDS) or _in_messages(before, after, set())


def _in_messages(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], unseen: set[str]
) -> str:
    for index, (old, new) in enumerate(zip_longest(before, after)):
        if old is None or new is None:
            what = "is new" if old is None else "is missing"
            return f"messages[{index}] {what}: {excerpt(as_text(new if old is None else old))}."
        fields = {*old, *new} - _UNSEEN - unseen
        for field in sorted(fields, key=lambda field: (field != "role", field)):
            if change := _change(field, _plain(old.get(field)), _plain(new.get(field)), unseen):
                place, *values = change
                return _describe(f"messages[{index}].{place} of the {old.get('role')}", *values)
    return ""


def in_field(place: str, before: Any, after: Any) -> str:
    """Describe how a field differs, or return "" if the values are equal or both empty."""
    change = _change(place, _plain(before), _plain(after), set())
    return _describe(*change) if change else ""


def _plain(value: Any) -> Any:
    """Normalize a field: strip surrounding whitespace, and return None for empty values."""
    if isinstance(value, list):
        texts = [part["text"] for part in value if isinstance(part, Mapping) and "text" in part]
        if texts and len(texts) == len(value):
            return "".join(map(str, texts)).strip() or None  # parts are equivalent to joined text
        return [_call(part) for part in value] or None
    return (value.strip() if isinstance(value, str) else value) or None


def _call(part: Any) -> Any:
    function = part.get("function") if isinstance(part, Mapping) else None
    if not isinstance(function, Mapping) or "arguments" not in function:
        return part
    try:
        arguments = json.loads(function["arguments"])
    except (TypeError, ValueError, RecursionError):
        arguments = function["arguments"]
    return {"id": part.get("id"), "function": {**function, "arguments": arguments}}


def _change(place: str, before: Any, after: Any, unseen: set[str]) -> tuple[str, Any, Any] | None:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        keys = [key for key in {**before, **after} if key not in unseen]
        pairs = [(f"{place}.{key}", before.get(key), after.get(key)) for key in keys]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = [
            (f"{place}[{i}]", a, b) for i, (a, b) in enumerate(zip(before, after, strict=True))
        ]
    else:
        return None if before == after else (place, before, after)
    return next((change for pair in pairs if (change := _change(*pair, unseen))), None)


def _describe(place: str, before: Any, after: Any) -> str:
    old, new = as_text(before), as_text(after)
    start = len(common_prefix(old, new))
    return f"{place} was {excerpt(old, start)} and is now {excerpt(new, start)}."


def as_text(value: Any) -> str:
    """Return a string unchanged, and any other value as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=repr)


def excerpt(text: str, place: int = 0) -> str:
    """Return a quoted excerpt of the text around index ``place``."""
    start, end = max(0, place - AROUND), place + AROUND
    return f"{'…' * (start > 0)}{text[start:end]!r}{'…' * (end < len(text))}"
