# ruff: noqa: E501 (whitespace matters in templates)
"""Tool calls, thoughts and stop tokens, whose formats are learned from a chat template.

1. Calls with all sorts of arguments are parsed back exactly, in the format of every family.
2. The parser tolerates variants that models write, but only delivers valid calls.
3. The learned frames, thought markup and stop tokens are those that the template uses in replies.
4. A prompt that is rendered incrementally has the same tokens as one rendered from scratch.
"""

import json
import pickle
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.bridge.tokens.call_families import (
    CALLS,
    FAMILIES,
    SAY,
    TOOLS,
    UNSHOWN,
    Function,
    tokenizer_of,
)
from tests.kit import play, reward
from tests.nightly import draws
from tinker_cookbook.renderers.base import Message, ToolCall, get_text_content
from tinker_cookbook.rl.data_processing import trajectory_to_data

from evert import AgentClient
from evert.bridge.conversations.drift import Drift, drift_of
from evert.bridge.errors import InvalidModelError, RendererMismatchError
from evert.bridge.tokens.bases import BASE_MODEL, model_renderer, with_variables
from evert.bridge.tokens.call_values import read_typed
from evert.bridge.tokens.renderer import PromptRenderer
from evert.bridge.tokens.rendering import EMPTY
from evert.bridge.tokens.template import TemplateRenderer
from evert.bridge.tokens.template_variables import variables_of

NAMES = [tool["function"]["name"] for tool in TOOLS]


def renderer_of(family: str) -> TemplateRenderer:
    if family not in _RENDERERS:
        template, _, marks = UNSHOWN.get(family) or (FAMILIES[family], "", [])
        _RENDERERS[family] = TemplateRenderer(tokenizer_of(template, *marks))
    return _RENDERERS[family]


_RENDERERS: dict[str, TemplateRenderer] = {}


def reply_of(family: str, functions: list[Function], say: str = "") -> str:
    """Return a reply with calls as rendered by the template, without the generation prompt."""
    tokenizer: Any = renderer_of(family).tokenizer
    question = {"role": "user", "content": "Go."}
    calls = []
    for number, (name, arguments) in enumerate(functions):
        call_id = (
            f"functions.{name}:{number}" if "only in the id" in family else f"abcdefg{number:02}"
        )
        arguments_shown: Any = json.dumps(arguments) if "must be text" in family else arguments
        function = {"name": name, "arguments": arguments_shown}
        calls.append({"id": call_id, "type": "function", "function": function})
    reply = {"role": "assistant", "content": say, "tool_calls": calls}
    options = {"tools": TOOLS, "tokenize": False}
    opened = tokenizer.apply_chat_template([question], add_generation_prompt=True, **options)
    text = tokenizer.apply_chat_template([question, reply], **options)
    return str(text[len(opened.removesuffix("</think>")) :])


def read(family: str, text: str, tools: Any = TOOLS) -> Message:
    renderer = renderer_of(family)
    tokens = renderer.tokenizer.encode(text, add_special_tokens=False)
    ends = [at for at, token in enumerate(tokens) if token in renderer.template.stops]
    tokens = tokens[: ends[0] + 1] if ends else [*tokens, renderer.template.stops[0]]
    return renderer.parse_response(tokens, tools)[0]


def functions_of(message: Message) -> list[Function]:
    calls = message.get("tool_calls", ())
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls]


@pytest.mark.parametrize("family", FAMILIES)
def test_all_types_of_calls_are_parsed_as_they_were_written(family: str) -> None:
    cases = {**{kind: ("", calls) for kind, calls in CALLS.items()}}
    cases["a text and a call"] = (SAY, CALLS["two arguments"])
    for kind, (say, functions) in cases.items():
        text = reply_of(family, functions, say)
        message = read(family, text)

        got = json.dumps(functions_of(message), sort_keys=True)
        assert got == json.dumps([[*call] for call in functions], sort_keys=True), kind
        assert get_text_content(message).strip() == (say if say in text else ""), kind


@pytest.mark.parametrize("family", UNSHOWN)
def test_unusual_call_formats_are_parsed_and_rendered_into_the_history(family: str) -> None:
    renderer, text = renderer_of(family), UNSHOWN[family][1]
    message = read(family, text)
    assert functions_of(message) == CALLS["one"]

    rendered = renderer.template.text([Message(role="user", content="Go."), message])
    assert ("look_up" in rendered and '"cats"' in rendered) or "'cats'" in rendered


@pytest.mark.parametrize("family", [family for family in UNSHOWN if family != "Harmony"])
def test_calls_that_evert_writes_into_the_history_are_parsed(family: str) -> None:
    renderer = renderer_of(family)
    user = Message(role="user", content="Go.")
    for kind, functions in CALLS.items():
        bodies = [ToolCall.FunctionBody(name=n, arguments=json.dumps(a)) for n, a in functions]
        calls = [
            ToolCall(id=f"functions.{body.name}:{number}", function=body)
            for number, body in enumerate(bodies)
        ]
        reply = Message(role="assistant", content=SAY, tool_calls=calls)
        message = read(family, renderer.template.reply_to(user, reply))

        assert functions_of(message) == functions, kind
        assert get_text_content(message).strip() == SAY, kind


async def test_a_template_that_requires_nine_character_ids_gets_them() -> None:
    renderer = renderer_of("list of objects with ids of nine")

    async def agent(client: AgentClient) -> float:
        messages: list[Any] = [{"role": "user", "content": "Go."}]
        for _ in range(2):
            reply = await client.chat.completions.create(messages=messages, tools=TOOLS)
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": "42"}
                for call in message.tool_calls or ()
            ]
        return float(len(messages))

    call = '[TOOL_CALLS][{"name": "look_up", "arguments": {"q": "cats"}, "id": "a1B2c3D4e"}]'
    trajectory = await play(agent, call, "Done.", renderer=renderer)

    assert reward(trajectory) == 4.0
    assert len(trajectory_to_data(trajectory, 1.0)) == 1


# -- tolerant parsing, strict delivery ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "text", "functions", "content"),
    [
        ("objects, marked", "<tool_call>{'name': 'look_up', 'arguments': {'q': 'a'}}</tool_call>", [("look_up", {"q": "a"})], ""),
        ("objects, marked", '<tool_call>{"name": "look_up"}</tool_call>', [("look_up", {})], ""),
        ("objects, marked", '<tool_call>{"name": "look_up", "parameters": {"q": "a"}}</tool_call>', [("look_up", {"q": "a"})], ""),
        ("objects, marked", 'So. <tool_call>{"name": "look_up", "arguments": {}}</tool_call> I wait.', [("look_up", {})], "So.\nI wait."),
        ("keyed, lines", "<tool_call><function=look_up><parameter=flag>False</parameter></function></tool_call>", [("look_up", {"flag": False})], ""),
        ("python", "<|tool_call_start|>[look_up(n='3')]<|tool_call_end|>", [("look_up", {"n": 3})], ""),
        ("objects, unmarked", 'Yes: {"name": "look_up", "parameters": {"q": "a"}}', [("look_up", {"q": "a"})], "Yes:"),
        ("objects, unmarked", '{"name": "Ann", "parameters": {}}', [], '{"name": "Ann", "parameters": {}}'),
        ("objects, unmarked", '{"answer": 42}', [], '{"answer": 42}'),
    ],
)  # fmt: skip
def test_common_variants_of_calls_are_parsed(
    family: str, text: str, functions: list[Function], content: str
) -> None:
    message = read(family, text)

    assert functions_of(message) == functions
    assert message["content"] == content
    assert "unparsed_tool_calls" not in message


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            '{"name": "drop_it", "arguments": {}}',
            "the tool 'drop_it' was not offered; offered: look",
        ),
        ('{"name": "", "arguments": {}}', "expected a name"),
        ('{"name": "look_up", "arguments": [1]}', "expected a name and an object"),
        ('{"name": "look_up", "arguments": {"n": NaN}}', "not JSON compliant"),
        ('{"name": "look_up", "arguments": {"n": 1}', "expected"),
    ],
)
def test_an_invalid_call_stays_in_the_text_with_its_error(arguments: str, error: str) -> None:
    text = f"<tool_call>{arguments}</tool_call>"
    message = read("objects, marked", text)

    assert message["content"] == text
    [broken] = message["unparsed_tool_calls"]
    assert error in broken.error
    assert "tool_calls" not in message


def test_without_tools_markup_is_text() -> None:
    text = '<tool_call>{"name": "look_up", "arguments": {}}</tool_call>'
    assert functions_of(read("objects, marked", text, ())) == []


def test_valid_calls_are_delivered_even_if_another_one_is_broken() -> None:
    good = '<tool_call>{"name": "look_up", "arguments": {}}</tool_call>'
    message = read("objects, marked", f"{good}\n<tool_call>{{</tool_call>")

    assert functions_of(message) == [("look_up", {})]
    [broken] = message["unparsed_tool_calls"]
    assert broken.raw_text == message["content"] == "<tool_call>{</tool_call>"


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("12345", {"type": "string"}, "12345"),
        ("12345", {"type": "integer"}, 12345),
        ("null", {"type": ["string", "null"]}, None),
        ("null", {"type": "string"}, "null"),
        ("True", {"anyOf": [{"type": "boolean"}, {"type": "null"}]}, True),
        ("{'a': [1]}", {"type": "object"}, {"a": [1]}),
        ('{"a": 1}', {"enum": ["x", "y"]}, '{"a": 1}'),
        ("cats", {"type": "integer"}, "cats"),
        ("3", None, 3),
        ('"3"', None, '"3"'),
        ("[" * 5000, {"type": "array"}, "[" * 5000),
        ("1, 2", {}, "1, 2"),
    ],
)
def test_the_schema_determines_the_type_of_an_argument(text: str, schema: Any, value: Any) -> None:
    assert read_typed(text, schema) == value


PIECES = ["", "{", "}", "[", "]", '"', "'", ",", ":", "(", ")", "=", "</", ">", "\n", " " * 300, "\\", "[" * 3000,
    "null", "NaN", '{"name": 1}', "<tool_call>", "</tool_call>", "</parameter>", "<think>", "look_up", "é"]  # fmt: skip


@settings(max_examples=draws(120), deadline=None)
@given(st.data())
def test_a_malformed_reply_is_parsed_quickly_and_only_calls_offered_tools(data: Any) -> None:
    family = data.draw(st.sampled_from([*FAMILIES, *UNSHOWN]))
    kinds = st.sampled_from(sorted(CALLS))
    text = UNSHOWN[family][1] if family in UNSHOWN else reply_of(family, CALLS[data.draw(kinds)])
    for _ in range(data.draw(st.integers(1, 5))):
        at, until = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
        piece = data.draw(st.sampled_from([*PIECES, text[at:until] * 3, text[::-1][:30]]))
        text = text[:at] + piece + text[data.draw(st.sampled_from([at, until])) :]
    message = read(family, text)

    assert message["role"] == "assistant"
    assert {name for name, _ in functions_of(message)} <= {*NAMES}


# -- frames, thoughts, stop tokens ---------------------------------------------------------------------

_FORGETFUL = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}THOUGHT{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\nOPENS{% endif %}"
THOUGHTS = {
    "the prompt closes it": (
        _FORGETFUL.replace("THOUGHT", "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n{% else %}</think>\n{% endif %}").replace("OPENS", "</think>"),
        "\nParis.", "", "\nParis.",
    ),
    "a part of the content": (
        _FORGETFUL.replace("THOUGHT{% endif %}{{ m.content }}", "{% endif %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'thinking' %}[THINK]{{ p.thinking }}[/THINK]{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}").replace("OPENS", ""),
        "[THINK]Hm.[/THINK]Paris.", "Hm.", "Paris.",
    ),
    "a channel around the text": (
        _FORGETFUL.replace("THOUGHT", "{% if m.thinking %}<|think|>{{ m.thinking }}<|/think|>{% endif %}<|text|>").replace("OPENS", ""),
        "<|text|>Paris.", "", "Paris.",
    ),
    "a thought and a channel": (
        _FORGETFUL.replace("THOUGHT", "{% if m.thinking %}<|think|>{{ m.thinking }}<|/think|>{% endif %}<|text|>").replace("OPENS", ""),
        "<|think|>Hm.<|/think|><|text|>Paris.", "Hm.", "Paris.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", THOUGHTS)
def test_the_frame_of_a_thought_is_neither_content_nor_thinking(kind: str) -> None:
    template, text, thought, content = THOUGHTS[kind]
    renderer = TemplateRenderer(
        tokenizer_of(template, "[THINK]", "[/THINK]", "<think>", "</think>")
    )
    tokens = renderer.tokenizer.encode(text, add_special_tokens=False)
    message, _ = renderer.parse_response([*tokens, renderer.template.stops[0]])

    parts = message["content"] if isinstance(message["content"], list) else []
    assert "".join(p["thinking"] for p in parts if p["type"] == "thinking") == thought
    assert get_text_content(message) == content


def test_a_token_that_also_ends_a_thought_is_not_a_stop_token() -> None:
    template = "{% for m in messages %}{% if m.reasoning %}<|begin|>assistant<|think|>{{ m.reasoning }}<|end|>{% endif %}<|begin|>{{ m.role }}<|content|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|begin|>assistant{% endif %}"
    renderer = TemplateRenderer(tokenizer_of(template))
    text = "<|think|>Hm.<|end|><|begin|>assistant<|content|>Paris."
    tokens = renderer.tokenizer.encode(text, add_special_tokens=False)

    assert renderer.tokenizer.convert_tokens_to_ids("<|end|>") not in renderer.get_stop_sequences()
    message, _ = renderer.parse_response([*tokens, renderer.template.stops[0]])
    assert get_text_content(message).strip() == "Paris."


def test_calls_can_have_their_own_stop_token() -> None:
    renderer = renderer_of("another stop after calls")
    names = renderer.tokenizer.convert_ids_to_tokens(renderer.get_stop_sequences())
    assert names == ["<|im_end|>", "<|calls_end|>"]


def test_a_call_format_that_cannot_be_learned_is_reported_with_the_probe() -> None:
    template = FAMILIES["named"].replace("{{ f.arguments | tojson }}", "{{ f.arguments | length }}")
    why = TemplateRenderer(tokenizer_of(template)).template.why_no_calls
    assert "qzname({" in why
    assert "without ['qzkey', 'qzvalue']" in why
    assert "<|args|>2" in why


# -- template variables, prompts and ids ---------------------------------------------------------------

VARIABLE = FAMILIES["objects, marked"].replace(
    "{% if add_generation_prompt %}<|im_start|>assistant\n",
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}",
)


def test_only_variables_that_the_template_reads_can_be_set() -> None:
    tokenizer = tokenizer_of(VARIABLE)
    message = [Message(role="user", content="Go.")]
    renderer = TemplateRenderer(tokenizer, chat_template={"enable_thinking": False})

    assert renderer.template.text(message, opens=True).endswith("</think>\n\n")
    assert not TemplateRenderer(tokenizer).template.text(message, opens=True).endswith("\n\n")
    with pytest.raises(RendererMismatchError, match="Did you mean enable_thinking.*uses: enable"):
        TemplateRenderer(tokenizer, chat_template={"enable_thinkin": False})


def test_a_renderers_name_includes_its_variables() -> None:
    name = with_variables("template", {"add_generation": "x"})
    assert name == "template(add_generation='x')"
    assert with_variables("template", {"b": "False", "a": "true"}) == "template(a=True, b=False)"
    assert with_variables("qwen3", {}) == "qwen3"
    with pytest.raises(InvalidModelError, match=r"chat_template.a only works with the model's"):
        with_variables("qwen3", {"a": 1})
    with pytest.raises(RendererMismatchError, match="does not use a variable add_generation"):
        model_renderer(BASE_MODEL, name)
    renderer = model_renderer(BASE_MODEL, "template")
    assert (
        pickle.loads(pickle.dumps(renderer)).get_stop_sequences() == renderer.get_stop_sequences()
    )


@pytest.mark.parametrize("family", ["objects, marked", "a frame around text", "keyed, pairs"])
def test_an_incrementally_rendered_prompt_equals_one_rendered_from_scratch(family: str) -> None:
    renderer, rng = renderer_of(family), random.Random(3)
    words = ["a", " b", "\n", "<|im_", "im_end|>", "<", "tool_call>", "é", " 12"]
    for _ in range(draws(30)):
        last = EMPTY
        messages: list[Message] = []
        for turn in range(rng.randrange(2, 7)):
            if messages and rng.random() < 0.2:  # simulate an agent that rewrites its history
                messages[rng.randrange(len(messages))]["content"] = "other"
            role = "assistant" if turn % 2 else "user"
            messages.append(Message(role=role, content="".join(rng.choices(words, k=6))))
            last = renderer.render_after(messages, last)
            assert last.tokens == renderer.build_generation_prompt(messages).to_ints()


def test_a_reply_that_merges_with_whitespace_in_the_prompt_counts_as_retokenised() -> None:
    renderer = TemplateRenderer(tokenizer_of(FAMILIES["objects, marked"], "\n\n"))
    prompts, encode = PromptRenderer(renderer), renderer.tokenizer.encode
    messages = [Message(role="user", content="Go."), Message(role="assistant", content="\nYes.")]
    sampled = [*encode("\nYes.", add_special_tokens=False), renderer.template.stops[0]]

    assert drift_of(prompts.as_history(messages, 1, 0), sampled, prompts) is Drift.RETOKENISED


def test_names_that_a_template_sets_itself_are_not_variables() -> None:
    template = "{% if x is not defined %}{% set x = 1 %}{% endif %}{% for m in messages %}{% if m.y %}{% set y = m.y %}{% endif %}{{ y }}{{ x }}{{ z | default(0) }}{{ v }}{% endfor %}"
    assert variables_of(tokenizer_of(template)) == {"x", "z", "v"}


def test_a_call_written_by_the_agent_gets_an_id_that_the_template_accepts() -> None:
    renderer = renderer_of("list of objects with ids of nine")
    body = ToolCall.FunctionBody(name="look_up", arguments="{}")
    for call_id in (None, "call_0123456789abcdef", "abcdefghi"):
        reply = Message(
            role="assistant", content="", tool_calls=[ToolCall(id=call_id, function=body)]
        )
        assert '"id": "' in renderer.template.text([Message(role="user", content="Go."), reply])
