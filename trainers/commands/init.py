"""``evert init NAME``: create a starter project from ``src/evert/starters``."""

import shutil
import textwrap
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Literal

import chz

from evert.bridge.errors import EvertError
from evert.trainers.config.arguments import read_pairs, read_settings, settings_help
from evert.trainers.config.fields import setting
from evert.trainers.system.command import run_command

USAGE = """\
Usage: evert init [NAME] [--agent openai|openai-agents|anthropic|langgraph|command]

  evert init my-agent
  evert init my-agent --agent langgraph

Creates a folder with an agent, its tasks, a test that runs without a model, and a README with the
commands to play, train and evaluate the agent.

"""


class InitError(EvertError, FileExistsError):
    """The target path already exists and is not an empty folder."""


@chz.chz
class InitSettings:
    """The folder to create, and the type of agent."""

    name: str = setting("my-agent", "folder to create")
    agent: Literal["openai", "openai-agents", "anthropic", "langgraph", "command"] = setting(
        "openai", "the agent's SDK or framework, or `command` for a program in any language"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see ``run_command``."""
    help_text = USAGE + settings_help(InitSettings, {})
    return run_command(lambda typed: _init(parse(typed)), argv, lambda _: help_text)


def parse(arguments: Sequence[str]) -> InitSettings:
    """Parse ``NAME --agent KIND``, which is short for ``name=NAME agent=KIND``."""
    pairs = list[str]()
    for word in arguments:
        if pairs and pairs[-1] == "--agent":
            pairs[-1] = f"agent={word}"
        elif word.startswith("-") or "=" in word:
            pairs.append(word.replace("--agent=", "agent="))
        else:
            pairs.append(f"name={word}")
    return read_settings(InitSettings, read_pairs(pairs, chz.chz_fields(InitSettings)))


def _init(settings: InitSettings) -> None:
    folder = Path(settings.name).expanduser()
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InitError(
            f"{folder} already exists and is not an empty folder, so nothing was changed. Choose "
            "a different name: evert init NAME."
        )
    for part in ("common", settings.agent):
        source = Path(str(files("evert"))) / "starters" / part
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, folder, ignore=skipped, dirs_exist_ok=True)
    print(f"{folder}: {', '.join(sorted(file.name for file in folder.iterdir()))}\n")
    print(f"  cd {folder}")
    if (folder / "requirements.txt").exists():
        print("  pip install -r requirements.txt")
    commands = (folder / "README.md").read_text().partition("\n\n    ")[2]
    print(textwrap.indent(textwrap.dedent(f"    {commands}"), "  "))
