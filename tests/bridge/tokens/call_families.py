# ruff: noqa: E501 (whitespace matters in templates)
"""A minimal chat template for each family of tool-call formats, and a variety of calls.

The templates were written for these tests and follow the formats of public models. Each template uses
the bundled base model's tokenizer, extended with the template's control tokens.
"""

import copy
import re
from functools import cache
from typing import Any

from tokenizers import AddedToken  # type: ignore[import-untyped]

from evert.bridge.tokens.bases import base_tokenizer

Function = tuple[str, dict[str, Any]]

CALLS: dict[str, list[Function]] = {
    "one": [("look_up", {"q": "cats"})],
    "two arguments": [("look_up", {"q": "cats", "n": 3})],
    "two calls": [("look_up", {"q": "cats"}), ("other_tool", {"q": "dogs"})],
    "three of a tool": [("look_up", {"q": q}) for q in "abc"],
    "nested": [("look_up", {"o": {"x": [1, {"y": "z"}], "t": True, "u": None}, "xs": ["a", "b"]})],
    "quotes": [("look_up", {"q": "say \"hi\"\nline two\t\\ back 'x' é漢🐕"})],
    "typed": [("look_up", {"n": 7, "flag": False})],
    "empty": [("look_up", {})],
    "digits": [("look_up", {"q": "12345"})],
    "JSON in a string": [("look_up", {"q": '{"a": 1}'})],
    "markup": [("look_up", {"q": "x </parameter> </tool_call> y"})],
    "spaces": [("look_up", {"q": "  padded \n"})],
    "dots": [("fs.read-file_2", {"q": "cats"})],
}
SAY = "Let me see."

_STRING = {"q": {"type": "string"}}
_ANY: dict[str, Any] = {
    **_STRING,
    "n": {"type": "integer"},
    "o": {"type": "object"},
    "flag": {"type": "boolean"},
    "xs": {"type": "array", "items": {"type": "string"}},
}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "A tool.",
            "parameters": {"type": "object", "properties": properties},
        },
    }
    for name, properties in (
        ("look_up", _ANY),
        ("other_tool", _STRING),
        ("fs.read-file_2", _STRING),
    )
]

_HEAD = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
_TAIL = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_VALUE = "{{ v if v is string else v | tojson }}"
_OBJECT = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'


def _template(
    calls: str, text: str = "{{ m.content }}", *, after: bool = False, tail: str = _TAIL
) -> str:
    calls = f"{{% if m.tool_calls %}}{calls}{{% endif %}}"
    return _HEAD + (calls + text if after else text + calls) + tail


def _each(body: str, sep: str = "") -> str:
    between = f"{{% if not loop.last %}}{sep}{{% endif %}}" if sep else ""
    return f"{{% for c in m.tool_calls %}}{{% set f = c.function %}}{body}{between}{{% endfor %}}"


def _pairs(body: str) -> str:
    return f"{{% for k, v in f.arguments.items() %}}{body}{{% endfor %}}"


FAMILIES: dict[str, str] = {
    "objects, marked": _template(_each("\n<tool_call>\n" + _OBJECT + "\n</tool_call>")),
    "list of objects with ids of nine": _template(
        "[TOOL_CALLS]["
        + _each(
            '{% if c.id | length != 9 %}{{ raise_exception("ids have nine characters") }}{% endif %}{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}, "id": "{{ c.id }}"}',
            ", ",
        )
        + "]"
    ),
    "objects, unmarked": _template(
        _each('{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}', "; ")
    ),
    "list, unmarked": _template("[" + _each(_OBJECT, ", ") + "]"),
    "objects of one key": _template(
        "<|calls|>["
        + _each("{ {{- f.name | tojson }}: {{ f.arguments | tojson }}}", ", ")
        + "]<|/calls|>"
    ),
    "objects with an index": _template(
        "<|ACTION|>["
        + _each(
            '{"id": "{{ loop.index0 }}", "tool": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}',
            ", ",
        )
        + "]<|/ACTION|>"
    ),
    "named": _template(_each("<|call|>{{ f.name }}<|args|>{{ f.arguments | tojson }}<|/call|>")),
    "named after an id": _template(
        _each("<|call|>{{ c.id }}<|name|>{{ f.name }}<|args|>{{ f.arguments | tojson }}<|/call|>")
    ),
    "name only in the id": _template(
        _each("<|call|>{{ c.id }}<|args|>{{ f.arguments | tojson }}<|/call|>")
    ),
    "named with an index": _template(
        "<|calls|>"
        + _each(
            "<|call|>functions.{{ f.name }}:{{ loop.index0 }}<|args|>{{ f.arguments | tojson }}<|/call|>"
        )
        + "<|/calls|>"
    ),
    "arguments must be text": _template(
        _each("<|call|>{{ f.name + '\n' + f.arguments }}<|/call|>")
    ),
    "keyed, lines": _template(
        _each(
            "\n<tool_call>\n<function={{ f.name }}>\n"
            + _pairs("<parameter={{ k }}>\n" + _VALUE + "\n</parameter>\n")
            + "</function>\n</tool_call>"
        )
    ),
    "keyed, Python values": _template(
        _each(
            "\n<tool_call>\n<function={{ f.name }}>\n"
            + _pairs("<parameter={{ k }}>\n{{ v }}\n</parameter>\n")
            + "</function>\n</tool_call>"
        )
    ),
    "keyed, pairs": _template(
        _each(
            "\n<tool_call>{{ f.name }}\n"
            + _pairs("<arg_key>{{ k }}</arg_key>\n<arg_value>" + _VALUE + "</arg_value>\n")
            + "</tool_call>"
        )
    ),
    "keyed, says the type": _template(
        "<calls>\n"
        + _each(
            '<invoke name="{{ f.name }}">\n'
            + _pairs(
                '<parameter name="{{ k }}" string="{{ "true" if v is string else "false" }}">'
                + _VALUE
                + "</parameter>\n"
            )
            + "</invoke>\n"
        )
        + "</calls>"
    ),
    "keyed, keys as tags": _template(
        "<tool_call>\n"
        + _each(
            '<invoke name="{{ f.name }}">'
            + _pairs("<{{ k }}>" + _VALUE + "</{{ k }}>")
            + "</invoke>\n"
        )
        + "</tool_call>"
    ),
    "keyed, CDATA": _template(
        _each(
            '<function name="{{ f.name }}">'
            + _pairs(
                '<param name="{{ k }}">{% if v is string and ("<" in v or "&" in v or "\n" in v or v | trim != v) %}<![CDATA[{{ v }}]]>{% else %}'
                + _VALUE
                + "{% endif %}</param>"
            )
            + "</function>"
        )
    ),
    "python": _template(
        "<|tool_call_start|>["
        + _each(
            "{{ f.name }}("
            + "{% for k, v in f.arguments.items() %}{{ k }}={{ v | tojson if v is string else v }}{% if not loop.last %}, {% endif %}{% endfor %})",
            ", ",
        )
        + "]<|tool_call_end|>"
    ),
    "python, unmarked, no quotes": _template(
        "["
        + _each(
            "{{ f.name }}("
            + "{% for k, v in f.arguments.items() %}{{ k }}={{ v }}{% if not loop.last %}, {% endif %}{% endfor %})",
            ", ",
        )
        + "]"
    ),
    "marks as quotes": "{% macro val(v) %}{% if v is string %}<|q|>{{ v }}<|q|>{% elif v is mapping %}{ {%- for k, x in v.items() %}{{ k }}:{{ val(x) }}{% if not loop.last %},{% endif %}{% endfor %}}{% elif v is sequence %}[{% for x in v %}{{ val(x) }}{% if not loop.last %},{% endif %}{% endfor %}]{% else %}{{ v | tojson }}{% endif %}{% endmacro %}"
    + _template(_each("<|call|>call:{{ f.name }}{{ val(f.arguments) }}<|/call|>")),
    "name twice, a message a call": _template(
        _each(
            'to={{ f.name }}<|message|><invoke name="{{ f.name }}">'
            + _pairs('<parameter name="{{ k }}">' + _VALUE + "</parameter>")
            + "</invoke>",
            "<|eom|><|im_start|>assistant\n",
        ),
        text="{% if not m.tool_calls %}to=user<|message|>{{ m.content }}{% endif %}",
    ),
    "another stop after calls": _template(
        _each("<|call|>{{ f.name }}<|args|>{{ f.arguments | tojson }}<|/call|>"),
        tail="{% if m.tool_calls %}<|calls_end|>{% else %}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    ),
    "text after calls": _template(
        _each("<|call|>{{ f.name }}<|args|>{{ f.arguments | tojson }}<|/call|>"), after=True
    ),
    "prompt closes the thought": _template(
        _each("<tool_call>{{ f.name }}<arg>{{ f.arguments | tojson }}</tool_call>"),
        tail="<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n</think>{% endif %}",
    ),
    "a frame around text": _template(
        "<|call|>" + _each("{{ f.name }} {{ f.arguments | tojson }}", "<|call|>"),
        text="{% if m.role == 'assistant' %}{% if m.content %}<|text|>{{ m.content }}<|/text|>{% endif %}{% else %}{{ m.content }}{% endif %}",
    ),
}
"""Maps each family to its template."""

_HARMONY = """{% for m in messages %}{% if m.role == 'assistant' %}{% if m.tool_calls %}{% set f = m.tool_calls[0].function %}\
<|start|>assistant to=functions.{{ f.name }}<|channel|>commentary json<|message|>{{ f.arguments | tojson }}<|call|>{% else %}\
{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}\
<|start|>assistant<|channel|>final<|message|>{{ m.content }}{% if loop.last %}<|return|>{% else %}<|end|>{% endif %}{% endif %}{% else %}\
{% if loop.first and tools %}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif %}\
<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"""

UNSHOWN: dict[str, tuple[str, str, list[str]]] = {
    "Harmony": (
        _HARMONY,
        '<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.look_up <|constrain|>json<|message|>{"q": "cats"}',
        [
            "<|constrain|>",
            "<|call|>",
            "<|return|>",
            "<|channel|>",
            "<|message|>",
            "<|start|>",
            "<|end|>",
        ],
    ),
    "Python after a mark": (_template(""),
        '<|tool_call_start|>[look_up(q="cats")]<|tool_call_end|>', ["<|tool_list_start|>",
        "<|tool_call_start|>", "<|tool_call_end|>"]),
    "a list after a mark": (_template(""),
        '<|tool_call|>[{"name": "look_up", "arguments": {"q": "cats"}}]', ["<|tool_call|>"]),
    "names in ids": (
        _template(""),
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.look_up:0<|tool_call_argument_begin|>{"q": "cats"}<|tool_call_end|><|tool_calls_section_end|>',
        [
            "<|tool_calls_section_begin|>",
            "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
            "<|tool_calls_section_end|>",
        ],
    ),
}  # fmt: skip
"""Families whose templates do not render calls. Values: (template, reply with a call, control tokens)."""

_MARK = re.compile(r"<\|[^|{}<> ]+\|>|</?tool_call>|</?think>|\[TOOL_CALLS\]|</?arg_(?:key|value)>")


@cache
def tokenizer_of(template: str, *more: str) -> Any:
    """Return the bundled tokenizer with this template, its control tokens, and ``more`` tokens."""
    tokenizer = copy.deepcopy(base_tokenizer())
    marks = dict.fromkeys([*_MARK.findall(template), *more])
    vocabulary = tokenizer.get_vocab()
    new = [
        AddedToken(mark, special=mark[1] == "|", normalized=False)
        for mark in marks
        if mark not in vocabulary
    ]
    tokenizer.add_tokens(new)
    tokenizer.chat_template, tokenizer.name_or_path = template, "a made-up model"
    return tokenizer
