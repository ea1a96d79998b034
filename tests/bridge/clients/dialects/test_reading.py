"""Messages of all APIs are converted to Chat Completions messages. Each reply becomes a single
message, and so does each tool result."""

from typing import Any

import pytest
from tests.bridge.clients.dialects.apis import APIS, HI, HI_PARTS, Fields, called

SYSTEM = {"role": "system", "content": "Add.\n\nWell."}
HI_READ = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
REMOTE, INLINE = "https://example.com/a.png", "data:image/png;base64,AA"


def said(role: str, *parts: Any) -> Fields:
    return {"role": role, "content": [*parts]}


def parts(role: str, *parts: Any) -> Fields:
    return {"role": role, "parts": [*parts]}


def text(text: str) -> Fields:
    return {"type": "text", "text": text}


def image(url: str) -> Fields:
    return {"type": "image_url", "image_url": {"url": url}}


def result(call_id: str | None, content: Any, **name: Any) -> Fields:
    return {"role": "tool", "tool_call_id": call_id, **name, "content": content}


def answer(content: str, *calls: Fields, **thought: str) -> Fields:
    called = {"tool_calls": [*calls]} if calls else {}
    return {"role": "assistant", **thought, "content": content, **called}


HM = {"reasoning_content": "Hm."}
REASONING = {"type": "reasoning", "id": "r", "summary": [], "content": [{"text": "Hm."}]}
SUMMARY = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
OUTPUT = {**said("assistant", {"type": "output_text", "text": "A"}), "type": "message"}
CALLS = [
    {"type": "function_call", "call_id": f"c{n}", "name": "add", "arguments": "{}"}
    for n in range(2)
]
RESULTS = [{"type": "function_call_output", "call_id": f"c{n}", "output": "5"} for n in range(2)]
TWO = (called("c0"), called("c1"))
STREAMED = [
    parts("model", part)
    for part in ({"text": "A"}, {"text": "B"}, {"functionCall": {"id": "c", "name": "add"}})
]
THINKING = [
    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
    {"type": "redacted_thinking", "data": "x"},
    text("Let me "),
    text("see."),
    {"type": "tool_use", "id": "c", "name": "add", "input": {"x": 1}},
]  # fmt: skip
TOOLS_SAID = [
    {"type": "tool_result", "tool_use_id": "a", "content": "1"},
    {"type": "tool_result", "tool_use_id": "b", "content": [text("2")] * 2},
    {"type": "tool_result", "tool_use_id": "c"},
    text("So?"),
]  # fmt: skip
THOUGHTS = [
    {"text": "H", "thought": True},
    {"text": "m.", "thought": True, "thoughtSignature": "cw=="},
    {"text": "Let me "},
    {"text": "see."},
    {"thoughtSignature": "cw=="},
    {"functionCall": {"id": "c", "name": "add", "args": {"x": 1}}},
    {"functionCall": {"name": "end"}},
]  # fmt: skip
FUNCTIONS_SAID = [
    {"functionResponse": {"id": "a", "name": "add", "response": {"result": "größer"}}},
    {"text": "So?"},
    {"function_response": {"name": "end"}},
]  # fmt: skip
FUNCTIONS_READ = [
    result("a", '{"result": "größer"}', name="add"),
    result(None, "{}", name="end"),
    said("user", text("So?")),
]  # fmt: skip
INLINE_DATA = {"inlineData": {"mimeType": "image/png", "data": "_-8="}}
FILE_DATA = {"file_data": {"mime_type": "image/png", "file_uri": REMOTE}}
URL_SOURCE = {"type": "image", "source": {"type": "url", "url": REMOTE}}
BASE64 = {"type": "base64", "media_type": "image/png", "data": "AA"}


def looked(*parts: Any) -> Fields:
    return {"functionResponse": {"name": "look", "response": {}, "parts": [*parts]}}


READ: dict[str, tuple[str, Fields, list[Fields]]] = {
    "chat completions as they are": ("chat", {"messages": [HI, HI]}, [HI, HI]),
    "a text alone": ("responses", {"input": "Hi"}, [HI]),
    "instructions": ("responses", {"input": "Hi", "instructions": "Add.\n\nWell."}, [SYSTEM, HI]),
    "instructions of items": ("responses",
        {"input": "Hi", "instructions": [{"role": "developer", "content": "Add."}]},
        [{"role": "developer", "content": "Add."}, HI]),
    "the parts of a message": ("responses",
        {"input": [said("user", {"type": "input_text", "text": "Hi"},
            {"type": "input_image", "image_url": INLINE, "detail": "auto"})]},
        [said("user", text("Hi"), image(INLINE))]),
    "what one reply consisted of": ("responses",
        {"input": [HI, REASONING, OUTPUT, *CALLS, *RESULTS, REASONING, *CALLS, OUTPUT]},
        [HI, answer("A", *TWO, **HM), result("c0", "5"), result("c1", "5"), answer("", *TWO, **HM),
            answer("A")]),
    "two replies in a row": ("responses", {"input": [HI, OUTPUT, OUTPUT, SUMMARY, OUTPUT]},
        [HI, answer("A"), answer("A"), answer("A", **HM)]),
    "a result of parts": ("responses",
        {"input": [{"type": "custom_tool_call_output", "call_id": "c",
            "output": [{"type": "input_text", "text": "5"}]}]}, [result("c", [text("5")])]),
    "a system of a text": ("anthropic", {"system": "Add.\n\nWell."}, [SYSTEM, HI]),
    "a system of blocks": ("anthropic",
        {"system": [text("Add."), {**text("Well."), "cache_control": {"type": "ephemeral"}}]},
        [SYSTEM, HI]),
    "a system message in between": ("anthropic",
        {"messages": [HI, said("system", text("Now subtract.")), HI]},
        [HI, said("system", text("Now subtract.")), HI]),
    "a reply of blocks": ("anthropic", {"messages": [HI, said("assistant", *THINKING)]},
        [HI, answer("Let me see.", called("c", arguments='{"x": 1}'), **HM)]),
    "results before what the user says": ("anthropic", {"messages": [said("user", *TOOLS_SAID)]},
        [result("a", "1"), result("b", "2\n2"), result("c", ""), said("user", text("So?"))]),
    "images": ("anthropic",
        {"messages": [said("user", URL_SOURCE, {"type": "image", "source": BASE64})]},
        [said("user", image(REMOTE), image(INLINE))]),
    "images that a tool returned": ("anthropic",
        {"messages": [said("user",
            {"type": "tool_result", "tool_use_id": "c", "content": [text("So"), URL_SOURCE]})]},
        [result("c", [text("So"), image(REMOTE)])]),
    "the parts of a system instruction": ("gemini",
        {"systemInstruction": parts("user", {"text": "Add."}, {"text": "Well."})},
        [SYSTEM, HI_READ]),
    "underscores": ("gemini", {"system_instruction": {"parts": [{"text": "Add.\n\nWell."}]}},
        [SYSTEM, HI_READ]),
    "who says nothing of a role": ("gemini", {"contents": [{"parts": [{"text": "Hi"}]}]},
        [HI_READ]),
    "a reply of parts": ("gemini", {"contents": [parts("model", *THOUGHTS)]},
        [answer("Let me see.", called("c", arguments='{"x": 1}'), called(None, "end"), **HM)]),
    "the pieces of a stream": ("gemini", {"contents": [HI_PARTS, *STREAMED, HI_PARTS]},
        [HI_READ, answer("AB", called("c")), HI_READ]),
    "empty replies": ("gemini",
        {"contents": [{"role": "model"}, parts("model"), {"role": "model", "parts": None}]},
        [answer("")]),
    "functions' results before what the user says": ("gemini",
        {"contents": [parts("user", *FUNCTIONS_SAID)]}, FUNCTIONS_READ),
    "results by the role of functions": ("gemini",
        {"contents": [parts("function", *FUNCTIONS_SAID)]}, FUNCTIONS_READ),
    "inline and remote images": ("gemini", {"contents": [parts("user", INLINE_DATA, FILE_DATA)]},
        [said("user", image("data:image/png;base64,/+8="), image(REMOTE))]),
    "images that a function returned": ("gemini",
        {"contents": [parts("user", looked(INLINE_DATA), looked(FILE_DATA))]},
        [
            result(None, [text("{}"), image(url)], name="look")
            for url in ("data:image/png;base64,/+8=", REMOTE)
        ]),
}  # fmt: skip


@pytest.mark.parametrize("row", READ)
def test_messages_of_every_api_are_read_as_chat_messages(row: str) -> None:
    name, body, messages = READ[row]

    assert [*APIS[name].read(**body).messages] == messages
