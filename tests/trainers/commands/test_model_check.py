# ruff: noqa: E501 (whitespace in templates matters)
"""``evert model check FOLDER`` reports what a model's template does and loses, and how to fix it.

Each row is a folder with a different chat template. A setting may be suggested only if it helps, so
a test checks the folder again with that setting and asserts that less is lost.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.bridge.tokens.call_families import FAMILIES
from tests.kit import Shown
from tests.trainers.kit import Cli

from evert.bridge.tokens.bases import base_path
from evert.trainers.commands import model

_HEAD = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
_TAIL = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_THOUGHT = "{% if m.reasoning_content and (loop.last or keep_thoughts) %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
_CALL = '{% for c in m.tool_calls or [] %}<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'

THINKS = _HEAD + _THOUGHT + "{{ m.content }}" + _CALL + _TAIL
_CLOSED = "<think>\n\n</think>\n\n"
FORGETS = (
    THINKS.replace(" or keep_thoughts", "")
    .replace("\n{% endif %}{{ m.content", "\n{% elif m.role == 'assistant' and enable_thinking is false %}" + _CLOSED + "{% endif %}{{ m.content")
    .replace("assistant\n{% endif %}", "assistant\n{% if enable_thinking is false %}" + _CLOSED + "{% endif %}{% endif %}")
)  # fmt: skip
PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}" + _TAIL
NO_SYSTEM = PLAIN.replace("<|im_start|>{{ m.role }}", "{% if m.role == 'system' %}{{ raise_exception('no system prompts') }}{% endif %}<|im_start|>{{ m.role }}")  # fmt: skip
ONE_CALL = THINKS.replace(_CALL, "{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}" + _CALL).replace(" or keep_thoughts", " or true")  # fmt: skip
NO_ARGUMENTS = THINKS.replace("c.function.arguments | tojson", "c.function.arguments | length")

TEMPLATES: dict[str, tuple[str, list[str], list[str]]] = {
    "tools and thoughts": (
        THINKS,
        [
            "shown; calls can be parsed (objects); several calls per reply",
            "thoughts dropped from earlier turns",
            "the history changes thoughts, so the next turn starts a new sequence",
            "stops <|im_end|>",
            "variables keep_thoughts (chat_template.NAME=VALUE)",
            "plain replies 'Qzreply' is parsed as text 'Qzreply'",
            r"'<think>\nQzthought\n</think>\n\nQzreply' is parsed as thought 'Qzthought', text 'Qzreply'",
            "is parsed as qzname({'qzkey': 'qzvalue', 'qzlast': 'qzend'})",
            "one token sequence for a whole conversation chat_template.keep_thoughts=True helps",
        ],
        ["settings help", "template_hermes"],
    ),
    "thoughts that are forgotten": (
        FORGETS,
        [
            "one token sequence for a whole conversation chat_template.enable_thinking=False helps; the model then writes no thoughts",
            "lost thoughts of earlier turns none of this template's settings help",
        ],
        ["template_hermes", "enable_thinking=True"],
    ),
    "no tools": (
        PLAIN,
        [
            "none: it does not render the tools",
            "lost tools renderer_name=template_hermes helps",
            "each turn adds its own tokens and extends the previous prompt",
        ],
        ["settings help", "chat_template.", "is parsed as qzname"],
    ),
    "no system prompts, which Hermes needs": (
        NO_SYSTEM,
        [
            "system rejected: requests with a system prompt get a 400",
            "lost system prompts; tools none of this template's settings help",
        ],
        ["template_hermes"],
    ),
    "one call a reply": (
        ONE_CALL,
        ["calls can be parsed (objects); one call per reply", "lost several calls in one reply none of"],
        ["helps;", "template_hermes"],
    ),
    "calls that cannot be learned": (
        NO_ARGUMENTS,
        [
            """none: it renders the call qzname({"qzkey": "qzvalue", "qzlast": "qzend"}) without ['qzkey', 'qzvalue']: '<tool_call>""",
            '"arguments": 2}',
            "tools renderer_name=template_hermes helps",
        ],
        ["is parsed as qzname"],
    ),
    "nothing is lost": (FAMILIES["keyed, lines"], ["(keyed)", "lost nothing"], ["helps"]),
}  # fmt: skip
"""Description -> chat template, lines that the command prints, lines that it does not print."""


def folder_with(template: str, folder: Path) -> Path:
    shutil.copytree(base_path(), folder)
    (folder / "chat_template.jinja").write_text(template)
    return folder


def screen(cli: Cli, *arguments: str) -> str:
    """Return the output of the command as one line."""
    shown = cli("model check", *arguments)
    assert max(map(len, shown.splitlines())) <= 100
    return " ".join(shown.split())


@pytest.mark.parametrize("kind", TEMPLATES)
def test_the_output_reports_what_templates_do_and_lose(kind: str, tmp_path: Path, cli: Cli) -> None:
    template, lines, absent = TEMPLATES[kind]
    shown = screen(cli, str(folder_with(template, tmp_path / "model")))

    assert [line for line in lines if line not in shown] == [], shown
    assert [line for line in absent if line in shown] == [], shown


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_suggested_setting_helps(kind: str, tmp_path: Path, cli: Cli) -> None:
    folder = str(folder_with(TEMPLATES[kind][0], tmp_path / "model"))
    for losses, setting in re.findall(r"lost ([^.]*?) (\S+=\S+) helps", screen(cli, folder)):
        again = screen(cli, folder, setting).partition(" lost ")[2]
        assert [loss for loss in losses.split("; ") if loss in again] == [], again


def test_importing_a_model_prints_the_check(tmp_path: Path, cli: Cli) -> None:
    folder = folder_with(THINKS, tmp_path / "model")
    shown = cli("model import", str(folder), f"out={tmp_path / 'out'}")
    assert "chat_template.keep_thoughts=True helps" in shown


def test_a_matching_cookbook_renderer_is_reported(cli: Cli) -> None:
    assert "renderer qwen3_instruct format the Cookbook's" in screen(cli, "evert-tiny")


def _write(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda folder: (folder / "chat_template.jinja").unlink(), "has no chat template"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer"),
        (_write("tokenizer.json", "{"), "could not be loaded"),
        (_write("chat_template.jinja", "{% for m in"), "cannot render a user message"),
        (_write("chat_template.jinja", "Hello."), "without its text"),
        (_write("chat_template.jinja", PLAIN.replace("<|", "")), "no control token"),
        (shutil.rmtree, "neither a folder"),
    ],
)
def test_a_broken_folder_is_a_one_line_error_with_its_cause(
    damage: Callable[[Path], object], error: str, tmp_path: Path, capsys: Shown
) -> None:
    folder = folder_with(THINKS, tmp_path / "model")
    damage(folder)

    assert model.main(["check", str(folder)]) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ")
    assert error in shown.err
    assert "Traceback" not in shown.err + shown.out


def test_a_variable_that_the_template_does_not_read_is_refused(tmp_path: Path, cli: Cli) -> None:
    folder = folder_with(THINKS, tmp_path / "model")
    shown = cli("model check", str(folder), "chat_template.keep_thought=True", status=1)
    assert (
        "does not use a variable keep_thought. Did you mean keep_thoughts? It uses: keep" in shown
    )
