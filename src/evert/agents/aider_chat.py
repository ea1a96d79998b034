"""``aider``: Aider as an agent, over chat completions.

https://aider.chat; tried with aider-chat 0.86.2, whose pins conflict with evert's: it lives in an
environment of its own, and ``program`` is the path of its ``aider``.

- Analytics, updates and the look for models' prices are switched off.
- Its caches and settings lie in the episode's home; yours are not read.
- It would run what follows "/run" or "!" at the beginning of a task: a new line stands before it.
"""

import json
from collections.abc import Sequence
from typing import Unpack

from evert.agents.process import ProcessAgent
from evert.agents.recipe import ProcessOptions, as_text, made

PRICES = json.dumps({"evert": {"litellm_provider": "openai", "mode": "chat"}})
"""Where Aider finds prices of models, it does not fetch them."""

QUIET = [
    "--yes-always",
    "--analytics-disable",
    "--no-check-update",
    "--no-show-release-notes",
    "--no-show-model-warnings",
    "--no-detect-urls",
    "--no-suggest-shell-commands",
    "--no-gitignore",
    "--no-auto-commits",  # it would ask the model for their messages
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
    """Aider on a prompt, in a folder of its own.

    Args:
        prompt: What to do; ``{task}`` in it is the episode's task, ``{task[name]}`` a part of it.
        edit: Names of the files that it is given to edit.
        edit_format: How the model writes its edits: "whole" files, "diff" blocks, or another of
            Aider's; None: "whole", as Aider chooses for models that it does not know.
        program: The program, or its path.
        arguments: Further arguments: ``["--map-tokens", "0"]`` leaves the map of the repository
            out of the prompt.
        **options: ``files``, ``setup``, ``reward``, ``cwd``, ``env``, ``host``, ``sandbox``: see
            ``ProcessAgent``.

    Raises:
        InvalidAgentError: As ``ProcessAgent``.
    """
    model = "openai/{model}"
    command = [program, *QUIET, "--model", model, "--weak-model", model]
    if edit_format is not None:
        command += ["--edit-format", edit_format]
    return made(
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
