"""``aider``: Aider as an agent, using chat completions.

https://aider.chat; tested with aider-chat 0.86.2. Its pinned dependencies conflict with evert's, so
install it in a separate environment and pass the path of its ``aider`` as ``program``.

- Analytics, updates and the download of model prices are disabled.
- Aider stores its caches and settings in the episode's home, and does not read yours.
- Aider runs prompts that start with "/run" or "!" as commands, so we add a newline before the task.
"""

import json
from collections.abc import Sequence
from typing import Unpack

from evert.agents.process import ProcessAgent
from evert.agents.recipe import ProcessOptions, as_text, make_agent

PRICES = json.dumps({"evert": {"litellm_provider": "openai", "mode": "chat"}})
"""Aider's cache of model prices. Aider does not download them if this file exists."""

QUIET = [
    "--yes-always",
    "--analytics-disable",
    "--no-check-update",
    "--no-show-release-notes",
    "--no-show-model-warnings",
    "--no-detect-urls",
    "--no-suggest-shell-commands",
    "--no-gitignore",
    "--no-auto-commits",  # Aider would ask the model for commit messages
    "--no-pretty",
    "--no-fancy-input",
]


def aider(
    prompt: str = "{task}",
    *,
    edit: Sequence[str] = (),
    edit_format: str | None = None,
    program: str = "aider",
    arguments: Sequence[str] = (),
    **options: Unpack[ProcessOptions],
) -> ProcessAgent:
    """Create an agent that runs Aider on a prompt, in a new folder for each episode.

    Args:
        prompt: The instruction. ``{task}`` is replaced by the episode's task, and ``{task[name]}``
            by a part of the task.
        edit: Names of the files that Aider may edit.
        edit_format: How the model writes edits: "whole" files, "diff" blocks, or another Aider
            format (default: "whole", which Aider uses for unknown models).
        program: The name or path of the program.
        arguments: Additional arguments. For example, ``["--map-tokens", "0"]`` removes the
            repository map from the prompt.
        **options: ``files``, ``setup``, ``reward``, ``cwd``, ``env``, ``host``, ``sandbox``: see
            ``ProcessAgent``.

    Raises:
        InvalidAgentError: See ``ProcessAgent``.
    """
    model = "openai/{model}"
    command = [program, *QUIET, "--model", model, "--weak-model", model]
    if edit_format is not None:
        command += ["--edit-format", edit_format]
    return make_agent(
        [*command, *arguments, f"--message={as_text(prompt)}", "--", *edit],
        options,
        files={"{home}/.aider/caches/model_prices_and_context_window.json": PRICES},
        env={
            "OPENAI_API_BASE": "{base_url}",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        install="python -m venv aider && aider/bin/pip install aider-chat, then "
        "program='aider/bin/aider'",
    )
