"""``gemini_cli``: Google's Gemini CLI as an agent, using Gemini's generateContent API.

https://geminicli.com; tested with 0.61.0, ``npm install -g @google/gemini-cli``.

- Gemini CLI's settings are in the episode's home, so it does not read yours. These settings make it
  sign in with an API key. If only the base URL were set, it would assume a gateway and stop.
- If a task mentions a file in the folder, such as "@calc.py", Gemini CLI adds the file to the
  prompt. It does not add files from other folders.
- Updates, usage statistics and loop detection (which calls the model) are disabled.
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
    """Create an agent that runs Gemini CLI on a prompt, in a new folder for each episode.

    Args:
        prompt: The instruction. ``{task}`` is replaced by the episode's task, and ``{task[name]}``
            by a part of the task.
        tools: Names of the tools that the model is offered and can use without approval, such as
            ``("read_file", "replace", "run_shell_command")``. By default, Gemini CLI chooses the
            tools, limited by ``approval_mode``.
        approval_mode: What Gemini CLI may do without approval. Tools that need approval are not
            offered. "auto_edit" allows reading and editing files in its folder. "yolo" allows
            everything; only use it on machines that contain nothing of value.
        lean: Whether to shorten the prompt from 44 kB to 7 kB, including the task. The tools then
            default to read_file, replace and write_file.
        program: The name or path of the program.
        arguments: Additional arguments.
        **options: ``files``, ``setup``, ``reward``, ``cwd``, ``env``, ``host``, ``sandbox``: see
            ``ProcessAgent``. A file ``{home}/.gemini/settings.json`` replaces evert's.

    Raises:
        InvalidAgentError: See ``ProcessAgent``.
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
