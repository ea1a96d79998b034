"""``gemini_cli``: Google's Gemini CLI as an agent, over Gemini's generateContent.

https://geminicli.com; tried with 0.61.0, ``npm install -g @google/gemini-cli``.

- Its settings lie in the episode's home; yours are not read. They select the API key as the way to
  sign in: with a base URL alone it assumes a gateway, and stops.
- When a task names a file of the folder, "@calc.py", the file is added to the prompt. Files
  elsewhere are not.
- Updates, statistics and loop detection, which calls the model, are switched off.
"""

import json
from collections.abc import Sequence
from typing import Any, Unpack

from evert.agents.process import ProcessAgent
from evert.agents.recipe import ProcessOptions, as_text, make_agent

SETTINGS: dict[str, Any] = {
    "security": {
        "auth": {"selectedType": "gemini-api-key"},
        "folderTrust": {"enabled": False},
    },
    "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
    "model": {"disableLoopDetection": True},
    "privacy": {"usageStatisticsEnabled": False},
}

ENVIRONMENT = {
    "GEMINI_CLI_NO_RELAUNCH": "true",
    "GOOGLE_API_KEY": None,  # would take precedence over GEMINI_API_KEY
}

LEAN_TOOLS = ("read_file", "replace", "write_file")

INSTRUCTIONS = """\
You are a coding agent. Work in the current folder with your tools until the task is done, then \
say so.
"""


def gemini_cli(
    prompt: str = "{task}",
    *,
    tools: Sequence[str] | None = None,
    approval_mode: str = "auto_edit",
    lean: bool = False,
    program: str = "gemini",
    arguments: Sequence[str] = (),
    **options: Unpack[ProcessOptions],
) -> ProcessAgent:
    """Return an agent that runs Gemini CLI on a prompt, in a new folder for each episode.

    Args:
        prompt: The instruction. ``{task}`` stands for the episode's task, ``{task[name]}`` for a
            part of it.
        tools: Names of the tools that it offers the model and may use without approval, such as
            ``("read_file", "replace", "run_shell_command")``; None: Gemini CLI's own choice of
            tools, limited by ``approval_mode``.
        approval_mode: What it may do without approval; it does not offer tools that need approval.
            "auto_edit": read and edit files of its folder. "yolo": everything, for machines with
            nothing of value on them.
        lean: Whether to shorten the prompt from 44 kB to 7 kB, the task included. Tools are then
            read_file, replace and write_file, unless ``tools`` names others.
        program: The program, or its path.
        arguments: Further arguments.
        **options: ``files``, ``setup``, ``reward``, ``cwd``, ``env``, ``host``, ``sandbox``: see
            ``ProcessAgent``. A file ``{home}/.gemini/settings.json`` replaces evert's.

    Raises:
        InvalidAgentError: As for ``ProcessAgent``.
    """
    if tools is None and lean:
        tools = LEAN_TOOLS
    offered = {} if tools is None else {"tools": {"core": [*tools]}}
    files = {"{home}/.gemini/settings.json": json.dumps({**SETTINGS, **offered}, indent=2)}
    env: dict[str, str | None] = dict(ENVIRONMENT)
    if lean:
        files["{home}/.gemini/system.md"] = INSTRUCTIONS
        env["GEMINI_SYSTEM_MD"] = "{home}/.gemini/system.md"
    command = [program, "--model", "{model}", "--approval-mode", approval_mode]
    return make_agent(
        [*command, *arguments, f"--prompt={as_text(prompt)}"],
        options,
        files=files,
        env=env,
        install="npm install -g @google/gemini-cli",
    )
