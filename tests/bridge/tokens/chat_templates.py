# ruff: noqa: E501 (whitespace matters in templates)
"""Short chat templates with the exact formats of many model families, written for these tests.

Each template uses the bundled base model's tokenizer, extended with the template's control tokens.
"""

import copy
import re
from functools import cache
from typing import Any

from evert.bridge.tokens.bases import base_tokenizer

CONTROL = re.compile(
    r"<[|｜][^\s<>\"'{}]+[|｜]>|</?s>|<(?:start|end)_of_turn>|\[/?[A-Z_]{3,}\]|</?think>"
)

_OPENS = "{% if add_generation_prompt %}OPENING{% endif %}"


def _turns(header: str, footer: str, opening: str, first: str = "") -> str:
    """Return a template that formats all roles the same way. ``ROLE`` stands for the role."""
    header = header.replace("ROLE", "{{ m.role }}")
    frame = f"{header}{{{{ m.content }}}}{footer}"
    return f"{first}{{% for m in messages %}}{frame}{{% endfor %}}" + _OPENS.replace(
        "OPENING", opening
    )


_TOOLS_FIRST = """\
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}# Tools{% for t in tools %}
{{ t | tojson }}{% endfor %}<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}"""

_RESULTS = """\
{%- elif m.role == 'tool' %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}
<tool_response>
{{ m.content }}
</tool_response>{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>
{% endif %}"""


def _chatml_with(call: str, before: str = "", thought: str = "") -> str:
    """Return a ChatML template with tool calls. In ``call``, the variable ``c`` is the function."""
    return (
        _TOOLS_FIRST
        + """{%- for m in messages %}{% if m.role == 'user' or (m.role == 'system' and not loop.first) %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% elif m.role == 'assistant' %}<|im_start|>assistant
"""
        + thought
        + "{{ m.content }}{% for k in m.tool_calls or [] %}{% set c = k.function %}"
        + "{% if not loop.first or m.content %}\n{% endif %}"
        + call
        + "{% endfor %}<|im_end|>\n"
        + _RESULTS
        + "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
        + before
        + "{% endif %}"
    )


HERMES = """<tool_call>
{"name": {{ c.name | tojson }}, "arguments": {{ c.arguments | tojson }}}
</tool_call>"""
KEYED = """<tool_call>
<function={{ c.name }}>
{% for key, value in c.arguments | items %}<parameter={{ key }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}</function>
</tool_call>"""
NAMED = "<|call|>{{ c.name }}<|args|>{{ c.arguments | tojson }}<|done|>"

TEMPLATES = {
    "ChatML": _turns("<|im_start|>ROLE\n", "<|im_end|>\n", "<|im_start|>assistant\n"),
    "SmolLM2": "{% if messages[0].role != 'system' %}<|im_start|>system\nYou help.<|im_end|>\n{% endif %}"
    + _turns("<|im_start|>ROLE\n", "<|im_end|>\n", "<|im_start|>assistant\n"),
    "Llama 2": """<s>{% for m in messages %}{% if m.role == 'system' %}{% elif m.role == 'user' %}\
[INST] {% if loop.index0 == 1 and messages[0].role == 'system' %}<<SYS>>\n{{ messages[0].content }}\n<</SYS>>\n\n{% endif %}\
{{ m.content }} [/INST]{% elif m.role == 'assistant' %} {{ m.content }}</s>{% else %}{{ raise_exception('no tools') }}{% endif %}{% endfor %}""",
    "Llama 3": _turns("<|start_header_id|>ROLE<|end_header_id|>\n\n", "<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|begin_of_text|>"),
    "Llama 4": _turns("<|header_start|>ROLE<|header_end|>\n\n", "<|eot|>",
        "<|header_start|>assistant<|header_end|>\n\n", "<|begin_of_text|>"),
    "Gemma": """<s>{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}
{{ m.content | trim }}<end_of_turn>
{% endfor %}{% if add_generation_prompt %}<start_of_turn>model
{% endif %}""",
    "Phi 4": _turns("<|im_start|>ROLE<|im_sep|>", "<|im_end|>", "<|im_start|>assistant<|im_sep|>"),
    "Zephyr": _turns("<|ROLE|>\n", "</s>\n", "<|assistant|>\n"),
    "Granite": _turns("<|start_of_role|>ROLE<|end_of_role|>", "<|end_of_text|>\n",
        "<|start_of_role|>assistant<|end_of_role|>"),
    "OLMo": _turns("<|ROLE|>\n", "<|endoftext|>\n", "<|assistant|>\n", "<|endoftext|>"),
    "Command": _turns("<|START_OF_TURN_TOKEN|><|ROLE_TOKEN|>", "<|END_OF_TURN_TOKEN|>",
        "<|START_OF_TURN_TOKEN|><|assistant_TOKEN|>", "<|BOS|>"),
    "GLM, which ends no reply": _turns("<|ROLE|>\n", "", "<|assistant|>\n", "<|gmask|>"),
    "DeepSeek R1, which forgets": """<｜begin｜>{% for m in messages %}{% if m.role == 'assistant' %}<｜Assistant｜>\
{{ m.content.split('</think>')[-1] }}<｜end｜>{% else %}<｜User｜>{{ m.content }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}<｜Assistant｜><think>
{% endif %}""",
    "Hermes": _chatml_with(HERMES),
    "a coder's": _chatml_with(KEYED),
    "names first": _chatml_with(NAMED),
    "a thinker's": _chatml_with(HERMES, "<think>\n",
        "<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n"),
    "Mistral": """<s>{% for m in messages %}{% if m.role == 'system' %}[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]\
{% elif m.role == 'user' %}{% if tools and loop.last %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}\
[INST]{{ m.content }}[/INST]{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]{% elif m.tool_calls %}\
[TOOL_CALLS][{% for k in m.tool_calls %}{"name": {{ k.function.name | tojson }}, "arguments": {{ k.function.arguments | tojson }}, "id": {{ k.id | tojson }}}\
{% if not loop.last %}, {% endif %}{% endfor %}]</s>{% else %}{{ m.content }}</s>{% endif %}{% endfor %}""",
    "bare JSON": _TOOLS_FIRST
    + """{%- for m in messages %}{% if m.role != 'system' %}<|im_start|>{{ m.role }}
{% if m.tool_calls %}{"name": {{ m.tool_calls[0].function.name | tojson }}, "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}\
{% else %}{{ m.content }}{% endif %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}""",
    "a list of parts": """{% for m in messages %}<|im_start|>{{ m.role }}
{% for part in m.content %}{{ part.text }}{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}""",
}  # fmt: skip

ADDITIVE = {*TEMPLATES} - {"GLM, which ends no reply", "Mistral"}
"""Templates in which each message only appends tokens to the prompt."""

CALLING = {"Hermes", "a coder's", "names first", "a thinker's", "Mistral", "bare JSON"}
"""Templates that support tools."""


@cache
def tokenizer_of(template: str) -> Any:
    """Return the bundled tokenizer with this template and its control tokens."""
    tokenizer = copy.deepcopy(base_tokenizer())
    roles: tuple[str, ...] = (
        ("<|user|>", "<|assistant|>", "<|system|>", "<|tool|>") if "<|{{" in template else ()
    )
    if "{{ m.role }}_TOKEN" in template:
        roles = tuple(f"<|{role}_TOKEN|>" for role in ("user", "assistant", "system", "tool"))
    marks = {name for name in CONTROL.findall(template) if "{" not in name}
    tokenizer.add_special_tokens({"additional_special_tokens": sorted({*marks, *roles})})
    tokenizer.chat_template = template
    return tokenizer
