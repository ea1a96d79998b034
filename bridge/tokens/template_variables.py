"""The date and the other variables that a chat template reads besides the conversation.

Templates always get the fixed date ``TODAY``, so that a run can be resumed on another day.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Environment, TemplateError, nodes
from jinja2.meta import find_undeclared_variables

from evert.bridge.errors import RendererMismatchError, did_you_mean

TODAY = datetime(2024, 7, 26)
"""The date passed to templates, which is also the fallback date in Llama's templates."""

_NOW = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")

_BUILTIN = {
    *("messages", "tools", "documents", "add_generation_prompt", "strftime_now"),
    *("raise_exception", "namespace", "range", "dict", "lipsum", "cycler", "joiner", "tojson"),
}
"""Names that are defined in every template."""

_GENERATION = re.compile(r"{%-?\s*(?:end)?generation\s*-?%}")
"""A Jinja tag added by transformers, which marks the text to train on."""


def template_of(tokenizer: Any, tools: Any = None) -> str:
    """Return a tokenizer's chat template, with ``TODAY`` in place of the current date."""
    return _without_clock(tokenizer.get_chat_template(tools=tools))


@lru_cache
def _without_clock(template: str) -> str:
    return _NOW.sub(lambda call: f"{call[1]}{TODAY.strftime(call[2])}{call[1]}", template)


def variables_of(tokenizer: Any) -> set[str]:
    """Return the variables of a tokenizer's chat template that a run may set."""
    template = getattr(tokenizer, "chat_template", None) or ""
    texts = template.values() if isinstance(template, Mapping) else [template]
    environment = Environment(extensions=["jinja2.ext.loopcontrols"])
    names: set[str] = set()
    for text in texts:
        try:
            tree = environment.parse(_GENERATION.sub("", text))
        except TemplateError:
            continue  # the error is raised when the template is rendered
        names |= find_undeclared_variables(tree) - _assigned_names(tree)
    builtin_names = _BUILTIN | {str(name) for name in getattr(tokenizer, "special_tokens_map", ())}
    return {name for name in names - builtin_names if not name.endswith("_token")}


def _assigned_names(tree: nodes.Template) -> set[str]:
    """Return the names that the template itself assigns, so that a run cannot set them."""
    by_use: dict[str, set[str]] = {"store": set(), "param": set(), "load": set()}
    for name in tree.find_all(nodes.Name):
        by_use[name.ctx].add(name.name)
    tests = [test for test in tree.find_all(nodes.Test) if test.name in ("defined", "undefined")]
    defaults = [node for node in tree.find_all(nodes.Filter) if node.name in ("default", "d")]
    optional = {node.node.name for node in (*tests, *defaults) if isinstance(node.node, nodes.Name)}
    return by_use["store"] - (optional - by_use["param"])


def check_variables(tokenizer: Any, values: Mapping[str, Any]) -> None:
    """Check that the template uses all variables that are set.

    Raises:
        RendererMismatchError: The template does not use one of them.
    """
    if not values:
        return
    names = sorted(variables_of(tokenizer))
    for name in values:
        if name not in names:
            raise RendererMismatchError(
                f"The chat template of {tokenizer.name_or_path!r} does not use a variable {name}."
                f"{did_you_mean(name, names, '{}')} It uses: {', '.join(names) or 'no variables'}."
            )
