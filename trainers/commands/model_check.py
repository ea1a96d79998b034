"""``evert model check FOLDER``: show what a model's chat format supports, before a long run."""

import textwrap
from collections.abc import Mapping
from typing import Any

import chz

from evert.bridge.tokens.bases import TEMPLATE, model_renderer, renderer_name_of, with_variables
from evert.bridge.tokens.pretrained import trusting_code
from evert.trainers.config.command import Command
from evert.trainers.config.fields import by_path, setting
from evert.trainers.config.train import MAPPINGS

USAGE = """\
Usage: evert model check FOLDER

  evert model check my-model
  evert model check my-model chat_template.enable_thinking=False

Shows how the model's chat template renders system prompts, tools, tool calls, reasoning and
history, how replies are parsed, what gets lost, and which settings can help.

Settings:
"""


@chz.chz
class CheckSettings:
    """The model to check."""

    model: str = chz.field(doc="model name, or a Hugging Face folder with a tokenizer")
    renderer_name: str | None = setting(
        None, "renderer name (default: the one that matches the model)"
    )
    chat_template: Mapping[str, Any] = by_path("variables to pass to the model's chat template")


def screen(
    model: str, renderer_name: str | None = None, variables: Mapping[str, Any] | None = None
) -> str:
    """Summarize what a model's chat format supports."""
    from evert.bridge.tokens.template import TemplateRenderer
    from evert.bridge.tokens.template_report import template_report

    name = renderer_name or (TEMPLATE if variables else renderer_name_of(model))
    name = with_variables(name, variables or {})
    renderer = model_renderer(model, name)
    rows = [("renderer", name)]
    if isinstance(renderer, TemplateRenderer):
        rows += template_report(renderer)
    else:
        rows += [("format", f"the Cookbook's; for the model's own, set renderer_name={TEMPLATE}")]
    return "\n".join(_row(*row) for row in rows)


def _row(subject: str, text: str) -> str:
    margin = " " * 17
    lines = [
        textwrap.fill(line, 100, initial_indent=margin, subsequent_indent=margin)
        for line in text.splitlines()
    ]
    return f"  {subject:<13}  " + "\n".join(lines).lstrip()


def _run(settings: CheckSettings) -> int:
    with trusting_code(False):
        print(screen(settings.model, settings.renderer_name, settings.chat_template))
    return 0


EXAMPLES = {"chat_template": MAPPINGS["chat_template"]}
COMMAND = Command(CheckSettings, USAGE, _run, "model", "model check", EXAMPLES)
