"""What the ready agents share: the options that each of them takes, and how an agent is made.

Their ``HOME`` is the episode's: they find neither your settings nor what another episode left, and
the shells that they start read no profile of yours, which takes time, and locks. They run in a
sandbox where there can be one.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from evert.agents.process import ProcessAgent, ProcessReward, ProcessSetup
from evert.agents.sandboxed import SandboxChoice
from evert.bridge.env.options import EnvOptions


class CommonOptions(TypedDict, total=False):
    """Options that every ready agent hands on to ``ProcessAgent``, which says what they mean."""

    files: Mapping[str, str | bytes | Path]
    setup: ProcessSetup | None
    reward: ProcessReward
    cwd: str | Path | None
    env: Mapping[str, str | None]
    host: str


class ProcessOptions(CommonOptions, total=False):
    """Those of an agent that has no sandbox of its own."""

    sandbox: SandboxChoice


def as_text(prompt: str) -> str:
    """A prompt whose task no program takes for a command of its own: "/run", "!ls", "-".

    Programs look for those at the very beginning, where a new line now stands. A command that the
    author of the prompt wrote there, "/ask {task}", stays one.
    """
    return f"\n{prompt}" if prompt.lstrip().startswith("{") else prompt


def made(
    command: Sequence[str],
    options: ProcessOptions,
    *,
    install: str,
    files: Mapping[str, str] | None = None,
    env: Mapping[str, str | None],
    env_options: EnvOptions | None = None,
    command_in_sandbox: Sequence[str] | None = None,
) -> ProcessAgent:
    """An agent that runs ``command``; what the user gave comes before what the program needs."""
    given: ProcessOptions = {"sandbox": None, **options}
    given["files"] = {**(files or {}), **options.get("files", {})}
    given["env"] = {**env, **options.get("env", {})}
    return ProcessAgent(
        command,
        command_in_sandbox=command_in_sandbox,
        install=install,
        env_options=env_options,
        **given,
    )
