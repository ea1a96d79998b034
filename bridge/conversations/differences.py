"""Describes the first message that differs between two requests."""

import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from evert.bridge.tokens.probes import common

AROUND = 40
"""Characters that are shown on each side of a difference."""

_UNSEEN = {"reasoning_content", "reasoning", "name", "refusal", "annotations", "audio"}
"""Fields that do not count: agents leave them out, or an SDK adds them."""

_IDS = {"id", "tool_call_id"}


def in_messages(then: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> str:
    """The first difference, in words, or "". Ids of calls come last: agents may change them."""
    return _in_messages(then, now, _IDS) or _in_messages(then, now, set())


def _in_messages(
    then: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]], unseen: set[str]
) -> str:
    for index, (old, new) in enumerate(zip_longest(then, now)):
        if old is None or new is None:
            what = "is new" if old is None else "is missing"
            return f"messages[{index}] {what}: {shortened(words(new if old is None else old))}."
        fields = {*old, *new} - _UNSEEN - unseen
        for field in sorted(fields, key=lambda field: (field != "role", field)):
            if found := _first(field, _said(old.get(field)), _said(new.get(field)), unseen):
                place, before, after = found
                return _changed(
                    f"messages[{index}].{place} of the {old.get('role')}", before, after
                )
    return ""


def in_field(place: str, then: Any, now: Any) -> str:
    """What differs in a field, in words; "" if nothing does, or both are empty."""
    found = _first(place, _said(then), _said(now), set())
    return _changed(*found) if found else ""


def _said(value: Any) -> Any:
    """A field's value without what agents change: they strip texts, and leave empty fields out."""
    if isinstance(value, list):
        texts = [part["text"] for part in value if isinstance(part, Mapping) and "text" in part]
        if texts and len(texts) == len(value):
            return "".join(map(str, texts)).strip() or None  # joined, they are the same message
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


def _first(place: str, then: Any, now: Any, unseen: set[str]) -> tuple[str, Any, Any] | None:
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        keys = [key for key in {**then, **now} if key not in unseen]
        pairs = [(f"{place}.{key}", then.get(key), now.get(key)) for key in keys]
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        pairs = [(f"{place}[{i}]", a, b) for i, (a, b) in enumerate(zip(then, now, strict=True))]
    else:
        return None if then == now else (place, then, now)
    return next((found for pair in pairs if (found := _first(*pair, unseen))), None)


def _changed(place: str, then: Any, now: Any) -> str:
    old, new = words(then), words(now)
    start = len(common(old, new))
    return f"{place} was {shortened(old, start)} and is now {shortened(new, start)}."


def words(value: Any) -> str:
    """A value as text."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=repr)


def shortened(text: str, place: int = 0) -> str:
    """The part of a text around ``place``, quoted."""
    start, end = max(0, place - AROUND), place + AROUND
    return f"{'…' * (start > 0)}{text[start:end]!r}{'…' * (end < len(text))}"
