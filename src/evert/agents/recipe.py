"""The options that the ready-made agents share, and the function that makes ``ProcessAgent``s.

``HOME`` is a folder of the episode. So a program does not find your settings or another episode's
files, and its shells do not read your profile, which would take time and locks. The programs run in
a sandbox where one can be made.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from evert.agents.process import ProcessAgent, ProcessReward, ProcessSetup
from evert.agents.sandboxed import SandboxChoice
from evert.bridge.env.options import EnvOptions


class CommonOptions(TypedDict, total=False):
    """Options that every ready-made agent passes to ``ProcessAgent``, which describes them."""

    files: Mapping[str, str | bytes | Path]
    setup: ProcessSetup | None
    reward: ProcessReward
    cwd: str | Path | None
    env: Mapping[str, str | None]
    host: str


class ProcessOptions(CommonOptions, total=False):
    """The options of an agent whose program has no sandbox of its own."""

    sandbox: SandboxChoice


def as_text(prompt: str) -> str:
    """Return a prompt that no program mistakes for one of its commands: "/run", "!ls", "-".

    Programs look for commands at the very beginning. A prompt that begins with a placeholder gets a
    leading newline; a command that the prompt's author wrote, "/ask {task}", still works.
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
    """Return an agent that runs ``command``; the user's options override ``files`` and ``env``."""
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
