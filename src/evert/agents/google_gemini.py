"""``gemini_cli``: Google's Gemini CLI as an agent, over Gemini's generateContent.

https://geminicli.com; tried with 0.61.0, ``npm install -g @google/gemini-cli``.

- Its settings lie in the episode's home, with the key as the way to sign in: by the address alone
  it takes itself to be behind a gateway, and stops. Yours are not read.
- A file of the folder that a task names, "@calc.py", is added to the prompt; none of elsewhere.
- Updates, statistics and the search for loops, for which it would ask the model, are switched off.
"""

import json
from collections.abc import Sequence
from typing import Any, Unpack

from evert.agents.process import ProcessAgent
from evert.agents.recipe import ProcessOptions, as_text, made

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
    "GOOGLE_API_KEY": None,  # would be taken before GEMINI_API_KEY
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
    """Gemini CLI on a prompt, in a folder of its own.

    Args:
        prompt: What to do; ``{task}`` in it is the episode's task, ``{task[name]}`` a part of it.
        tools: Names of the tools that it offers and may use unasked, ``("read_file", "replace",
            "run_shell_command")``; None: its own choice of tools, of which ``approval_mode`` says
            what they may do.
        approval_mode: What it may do unasked; what it would ask for it does not offer.
            "auto_edit": read and edit files of its folder. "yolo": everything, for machines that
            hold nothing else.
        lean: Whether to leave out what makes the prompt long: 7 kB with the task, where its own
            has 44. Tools are then read_file, replace and write_file, unless ``tools`` says others.
        program: The program, or its path.
        arguments: Further arguments.
        **options: ``files``, ``setup``, ``reward``, ``cwd``, ``env``, ``host``, ``sandbox``: see
            ``ProcessAgent``. A file ``{home}/.gemini/settings.json`` replaces the one of evert's.

    Raises:
        InvalidAgentError: As ``ProcessAgent``.
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
    return made(
        [*command, *arguments, f"--prompt={as_text(prompt)}"],
        options,
        files=files,
        env=env,
        install="npm install -g @google/gemini-cli",
    )
