"""Converts Gemini's contents to messages in the chat completions format.

A ``Content`` has a role and a list of parts. A part is text (flagged if it is a thought), a
function call, a function response or an image.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evert.bridge.chat.bad_requests import unexpected
from evert.bridge.chat.fields import is_absent, read_list, read_object
from evert.bridge.chat.reply import reply_message
from evert.bridge.clients.dialects import shapes
from evert.bridge.clients.dialects.gemini_tools import read_fields

_PARTS = (
    "a part with text, a functionCall, a functionResponse, or an image. Other media, code and the "
    "hosted API's own tools are not supported."
)


def read_system(system: object) -> list[dict[str, Any]]:
    """Return a system message with one paragraph per part, or [] if there is no instruction."""
    if is_absent(system):
        return []
    place = "systemInstruction"
    parts = _part_list(read_fields(system, place), place)
    return shapes.system_messages([_text(*part) for part in parts])


def read_contents(contents: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Convert contents to messages.

    Consecutive contents from the model (for example from a stream) become one message.
    """
    turns = [_read_content(*content) for content in shapes.placed(contents, "contents")]
    for is_reply, group in itertools.groupby(turns, lambda content: content[0] == "model"):
        if is_reply:
            yield _read_reply([part for _, parts in group for part in parts])
            continue
        for _, parts in group:
            yield from _read_user(parts)


def _read_content(content: object, place: str) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    fields = read_fields(content, place)
    role = fields.get("role", "user")
    if role not in ("user", "model", "function", "tool"):
        raise unexpected(place, content, "an object with role 'user' or 'model'.")
    parts = _part_list(fields, place)
    if not parts and role != "model":
        raise unexpected(place, content, "a content with at least one part.")
    return role, [(where, read_fields(part, where)) for part, where in parts]


def _part_list(fields: Mapping[str, Any], place: str) -> list[tuple[Any, str]]:
    place = f"{place}.parts"
    return [*shapes.placed(read_list(fields.get("parts"), place, "parts"), place)]


def _read_reply(parts: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for place, part in parts:
        if "functionCall" in part:
            calls.append(_read_call(part["functionCall"], f"{place}.functionCall"))
        else:
            (thoughts if part.get("thought") is True else texts).append(_text(part, place))
    return reply_message("".join(texts), "".join(thoughts) if thoughts else None, calls)


def _read_call(call: object, place: str) -> dict[str, Any]:
    fields = read_fields(call, place)
    arguments = read_object(fields.get("args"), f"{place}.args") or {}
    return shapes.function_call(fields.get("id"), fields.get("name"), json.dumps(arguments))


def _read_user(parts: Sequence[tuple[str, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    user_parts: list[dict[str, Any]] = []
    for place, part in parts:
        if "functionResponse" in part:
            yield _read_result(part["functionResponse"], f"{place}.functionResponse")
        else:
            user_parts.append(_read_part(part, place))
    if user_parts:
        yield {"role": "user", "content": user_parts}


def _read_result(result: object, place: str) -> dict[str, Any]:
    fields = read_fields(result, place)
    response = read_object(fields.get("response"), f"{place}.response") or {}
    text = json.dumps(response, ensure_ascii=False)
    parts = _part_list(fields, place)
    images = [_read_part(read_fields(part, where), where) for part, where in parts]
    identity = {"tool_call_id": fields.get("id"), "name": fields.get("name")}
    content = [shapes.text_part(text), *images] if images else text
    return {"role": "tool", **identity, "content": content}


def _read_part(part: Mapping[str, Any], place: str) -> dict[str, Any]:
    url = _image_url(part, place)
    return shapes.text_part(_text(part, place)) if url is None else shapes.image_part(url)


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
        standard = value.replace("-", "+").replace("_", "/")  # the SDK sends URL-safe base64
        return f"data:{kind};base64,{standard}"
    return None


def _text(part: object, place: str) -> str:
    text = shapes.get(part, "text")
    if isinstance(text, str):
        return text
    if isinstance(part, Mapping) and {*part} == {"thoughtSignature"}:
        return ""
    raise unexpected(place, part, _PARTS)
