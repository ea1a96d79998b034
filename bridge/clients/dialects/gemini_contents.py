"""The contents of Gemini's API as messages of chat completions.

A content is a role and parts; a part is a text (a thought, where it says so), a call of a function,
its result, or an image.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evert.bridge.chat.bad_requests import malformed, unexpected
from evert.bridge.chat.fields import is_absent
from evert.bridge.clients.dialects.gemini_tools import read_fields

_PARTS = (
    "a part with text, a functionCall, a functionResponse, or an image. Other media, code and the "
    "API's own tools are not behind the policy."
)


def read_system(system: object) -> list[dict[str, Any]]:
    """The system's message, its parts a paragraph each; none where there is no instruction."""
    if is_absent(system):
        return []
    place = "systemInstruction"
    parts = _part_list(read_fields(system, place), place)
    texts = [_text(part, f"{place}.parts[{index}]") for index, part in enumerate(parts)]
    return [{"role": "system", "content": "\n\n".join(texts)}]


def read_contents(contents: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """The messages; contents of the model that follow on each other, as of a stream, are one."""
    read = [_read_content(content, f"contents[{i}]") for i, content in enumerate(contents)]
    for is_reply, group in itertools.groupby(read, lambda content: content[0] == "model"):
        if is_reply:
            yield _read_reply([part for _, parts in group for part in parts])
            continue
        for _, parts in group:
            yield from _read_user(parts)


def _read_content(content: object, place: str) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    fields = read_fields(content, place)
    role = fields.get("role", "user")
    if role not in ("user", "model", "function"):
        raise unexpected(place, content, "an object whose role is 'user' or 'model'.")
    parts = _part_list(fields, place)
    if not parts and role != "model":
        raise unexpected(place, content, "parts: what the user says.")
    placed = [(f"{place}.parts[{index}]", part) for index, part in enumerate(parts)]
    return role, [(where, read_fields(part, where)) for where, part in placed]


def _part_list(fields: Mapping[str, Any], place: str) -> list[Any]:
    parts = fields.get("parts", [])
    if isinstance(parts, list):
        return parts
    raise malformed(f"{place}.parts", "a list of parts", parts)


def _read_reply(parts: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for place, part in parts:
        if "functionCall" in part:
            calls.append(_read_call(part["functionCall"], f"{place}.functionCall"))
        else:
            (thoughts if part.get("thought") is True else texts).append(_text(part, place))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _read_call(call: object, place: str) -> dict[str, Any]:
    fields = read_fields(call, place)
    arguments = fields.get("args", {})
    if not isinstance(arguments, Mapping):
        raise malformed(f"{place}.args", "an object", arguments)
    function = {"name": fields.get("name"), "arguments": json.dumps(arguments)}
    return {"id": fields.get("id"), "type": "function", "function": function}


def _read_user(parts: Sequence[tuple[str, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    said: list[dict[str, Any]] = []
    for place, part in parts:
        if "functionResponse" in part:
            yield _read_result(part["functionResponse"], f"{place}.functionResponse")
        else:
            said.append(_read_part(part, place))
    if said:
        yield {"role": "user", "content": said}


def _read_result(result: object, place: str) -> dict[str, Any]:
    fields = read_fields(result, place)
    response = fields.get("response", {})
    if not isinstance(response, Mapping):
        raise malformed(f"{place}.response", "an object", response)
    content: str | list[dict[str, Any]] = json.dumps(response, ensure_ascii=False)
    images = [
        _read_part(read_fields(part, f"{place}.parts[{i}]"), f"{place}.parts[{i}]")
        for i, part in enumerate(_part_list(fields, place))
    ]
    if images:
        content = [{"type": "text", "text": content}, *images]
    return {
        "role": "tool",
        "tool_call_id": fields.get("id"),
        "name": fields.get("name"),
        "content": content,
    }


def _read_part(part: Mapping[str, Any], place: str) -> dict[str, Any]:
    url = _image_url(part, place)
    if url is not None:
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "text", "text": _text(part, place)}


def _image_url(part: Mapping[str, Any], place: str) -> str | None:
    for name, field in (("inlineData", "data"), ("fileData", "fileUri")):
        if name not in part:
            continue
        media = read_fields(part[name], f"{place}.{name}")
        kind, value = media.get("mimeType"), media.get(field)
        if not str(kind).startswith("image/") or not isinstance(value, str):
            raise unexpected(place, part, _PARTS)
        if name == "fileData":
            return value
        standard = value.replace("-", "+").replace("_", "/")  # the SDK writes the other alphabet
        return f"data:{kind};base64,{standard}"
    return None


def _text(part: object, place: str) -> str:
    if isinstance(part, Mapping):
        text = part.get("text")
        if isinstance(text, str):
            return text
        if {*part} == {"thoughtSignature"}:  # a part that says nothing
            return ""
    raise unexpected(place, part, _PARTS)
