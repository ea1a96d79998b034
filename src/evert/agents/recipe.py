"""The options shared by the ready-made agents, and the function that creates ``ProcessAgent``s.

``HOME`` is set to a per-episode folder, so programs do not find your settings or other episodes'
files, and shells do not read your profile, which would be slow and take locks. The programs run in
a sandbox if possible.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from evert.agents.process import ProcessAgent, ProcessReward, ProcessSetup
from evert.agents.sandboxed import SandboxChoice
from evert.bridge.env.options import EnvOptions


class CommonOptions(TypedDict, total=False):
    """Options that all ready-made agents pass to ``ProcessAgent``, which documents them."""

    files: Mapping[str, str | bytes | Path]
    setup: ProcessSetup | None
    reward: ProcessReward
    cwd: str | Path | None
    env: Mapping[str, str | None]
    host: str


class ProcessOptions(CommonOptions, total=False):
    """Options for agents whose program has no sandbox of its own."""

    sandbox: SandboxChoice


def as_text(prompt: str) -> str:
    """Prevent a program from mistaking the task for a command, such as "/run", "!ls" or "-".

    Programs look for commands at the very start of the prompt. We add a leading newline if the
    prompt starts with a placeholder. Commands in the prompt itself ("/ask {task}") still work.
    """
    return f"\n{prompt}" if prompt.lstrip().startswith("{") else prompt


def make_agent(
    command: Sequence[str],
    options: ProcessOptions,
    *,
    install: str,
    files: Mapping[str, str] | None = None,
    env: Mapping[str, str | None],
    env_options: EnvOptions | None = None,
    command_in_sandbox: Sequence[str] | None = None,
) -> ProcessAgent:
    """Create an agent that runs ``command``. User options override ``files`` and ``env``."""
    settings: ProcessOptions = {"sandbox": None, **options}
    settings["files"] = {**(files or {}), **options.get("files", {})}
    settings["env"] = {**env, **options.get("env", {})}
    return ProcessAgent(
        command,
        command_in_sandbox=command_in_sandbox,
        install=install,
        env_options=env_options,
        **settings,
    )
