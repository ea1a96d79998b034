"""Writes ``AGENTS.md`` and ``llms.txt``, for coding agents, from the project's own files.

    python docs/for_agents.py

``llms.txt`` (https://llmstxt.org) lists the site's pages and their headings, in the order of
``zensical.toml``. ``AGENTS.md`` lists the rooms, from their packages' docstrings, and the main
commands, from the head of the Makefile. A test checks that both files are up to date.
"""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SITE, REPOSITORY = PROJECT["urls"]["Documentation"], PROJECT["urls"]["Repository"]
FOLDERS = ("bridge", "src/evert/agents", "envs", "trainers")
TARGETS = ("train", "test", "lint", "docs", "wheel", "nightly")
OTHERS = {
    "CHANGELOG.md": "what changed, by version",
    "CONTRIBUTING.md": "the map of the code, and how we write",
    "SECURITY.md": "what evert trusts",
    "examples": "an agent in each framework",
    "benchmarks": "the script for each figure",
}

AGENTS = """\
# Working on evert

evert turns a chat agent into a token-level reinforcement-learning environment. `README.md` says
what it does. [CONTRIBUTING.md](CONTRIBUTING.md) has the map, the path of a call, where new things
go, and how we write: read it first. `python docs/for_agents.py` writes this file.

## Build and test

`make` creates `.venv` (Python 3.11 or newer) and installs evert into it, editable. One test:
`.venv/bin/python -m pytest -n 0 tests/bridge/env/test_env.py`.

{commands}

## Rooms

A room is a folder with one idea, and imports only rooms below it (`make lint`; `pyproject.toml` has
the order). `src/evert` links to them: `evert.bridge`, `evert.envs` and `evert.trainers`.

{rooms}

## Rules

- Run `make lint` and the tests of the room that you change: `tests/` has the same folders.
- Fix the cause. Each fix has a test that fails without it; its name is a sentence.
- Tests script the model (`evert.ScriptedPolicy`), and never fake what they test.
- Bad input gets an `EvertError`: what we got, what was expected, what to do next.
- Update the docs in the same commit; what users notice gets a line in `CHANGELOG.md`.
"""


def texts() -> dict[str, str]:
    """Return the text of each file, by its name."""
    agents = AGENTS.format(commands="\n".join(commands()), rooms="\n".join(rooms()))
    return {"AGENTS.md": agents, "llms.txt": llms()}


def llms() -> str:
    """Return ``llms.txt``: the pages by section, with their headings, then links to GitHub."""
    lines = ["# evert", "", f"> {PROJECT['description']}", ""]
    lines += [
        "From a checkout: `pip install ./evert`, Python 3.11 or newer; the command is `evert`."
    ]
    lines += [""]
    for section in tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]:
        [(title, pages)] = section.items()
        lines += [f"## {title}", ""]
        lines += [page(*entry) for each in pages for entry in each.items()] + [""]
    lines += ["## Optional", ""]
    lines += [f"- [{o}]({REPOSITORY}/tree/main/{o}): {note}" for o, note in OTHERS.items()]
    return "\n".join(lines) + "\n"


def page(title: str, file: str) -> str:
    """Return a line of ``llms.txt``: a page's address and its headings."""
    headings = re.findall(r"^## (.+)$", (ROOT / "docs" / file).read_text(), re.MULTILINE)
    address = SITE + file.removesuffix("index.md").replace(".md", "/")
    return f"- [{title}]({address}): {'; '.join(headings)}"


def commands() -> list[str]:
    """Return a line for each main target, with its text from the head of the Makefile."""
    head = (ROOT / "Makefile").read_text().partition("\n\n")[0]
    lines = dict(re.findall(r"^#   make (\w+) +(.+(?:\n#    +\S.*)*)", head, re.MULTILINE))
    return [
        f"- `make {name}`: {' '.join(lines[name].replace('#', '').split())}" for name in TARGETS
    ]


def rooms() -> list[str]:
    """Return a line for each folder and each room, from the first paragraph of its docstring."""
    lines = []
    for folder in FOLDERS:
        lines.append(f"- `{folder}/`: {idea(ROOT / folder)}")
        inner = sorted(path.parent for path in (ROOT / folder).glob("*/__init__.py"))
        lines += [f"  - `{room.name}/`: {idea(room)}" for room in inner]
    return lines


def idea(room: Path) -> str:
    """Return the first paragraph of a package's docstring, in Markdown."""
    text = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    return " ".join(text.partition("\n\n")[0].replace("``", "`").split())


if __name__ == "__main__":
    for name, text in texts().items():
        (ROOT / name).write_text(text)
