"""Plays the examples that SDKs ship, unchanged, with a script as the model: ``make examples``.

    python frameworks/play_examples.py [--only WORDS] [--out examples]

``examples.toml`` says which examples: files of the packages' sources, and Python blocks of their
READMEs and docstrings that call a model, but those that need what no script can be. It lists the
failures to expect, with their reasons; any other outcome ends this with an error. A block is played
after the blocks of its page that define the names it uses. ``play_example.py`` plays one. Results
go to ``OUT.json``, and the table of ``benchmarks/README.md`` to ``OUT.md``.
"""

import argparse
import ast
import builtins
import json
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from add_agents import unpack
from run_uv import ROOT

HERE = ROOT / "frameworks"
ENVIRONMENT = ROOT / ".frameworks" / "examples"
[PACKAGES] = ENVIRONMENT.glob("lib/python3*/site-packages")
TABLE: dict[str, Any] = tomllib.loads((HERE / "examples.toml").read_text())
FENCED = re.compile(r"^( *)```py(?:thon)?\b.*?\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
DIRECTIVE = re.compile(r"^( *)\.\. code-block:: python\n\n((?:\1 +.*\n|\s*\n)+)", re.MULTILINE)


@dataclass
class Example:
    """One file, or one block of a page; ``name`` is how the tables call it."""

    package: str
    name: str
    code: str
    path: Path | None = None  # of a file, below its sources
    before: list[str] = field(default_factory=list)  # the blocks that it needs
    missing: set[str] = field(default_factory=set)  # the names that its page does not define


# -- what there is -------------------------------------------------------------------------------


def examples() -> Iterator[Example]:
    """All files and blocks of the packages, whether they are played or not."""
    for package in TABLE["packages"]:
        yield from files_of(package["name"]) if package.get("files") else ()
        for page, text in pages_of(package):
            yield from blocks_of(package["name"], page, text)


def files_of(package: str) -> Iterator[Example]:
    """The Python files among the examples in a package's sources, which are fetched once."""
    sources = ENVIRONMENT / "sources" / package
    if not sources.exists():
        unpack(package, version_of(package), "examples", sources)
    for path in sorted(sources.rglob("*.py")):
        name = str(path.relative_to(sources))
        yield Example(package, f"{package}: {name}", path.read_text(), path.relative_to(sources))


def version_of(package: str) -> str:
    """The installed version of a package."""
    [info] = PACKAGES.glob(f"{package.replace('-', '_')}-*.dist-info")
    return info.name.removesuffix(".dist-info").rpartition("-")[2]


def pages_of(package: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A package's README, and the docstrings of its public modules, with their names."""
    name = package["name"]
    [metadata] = PACKAGES.glob(f"{name.replace('-', '_')}-*.dist-info/METADATA")
    yield "README", metadata.read_text().partition("\n\n")[2]
    for module in package.get("docstrings", ()):
        for path in sorted((PACKAGES / module).rglob("*.py")):
            yield from docstrings_of(ast.parse(path.read_text()), path.relative_to(PACKAGES).stem)


def docstrings_of(tree: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    """The docstrings below a node, private names left out."""
    if isinstance(tree, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield name, ast.get_docstring(tree) or ""
        for node in tree.body:
            inside = getattr(node, "name", "_")
            if not inside.startswith("_"):
                yield from docstrings_of(node, f"{name}.{inside}")


def blocks_of(package: str, page: str, text: str) -> Iterator[Example]:
    """The Python blocks of a page, each with the earlier ones that it needs."""
    blocks = [(m.start(), m[2]) for style in (FENCED, DIRECTIVE) for m in style.finditer(text)]
    before: list[str] = []
    for number, (_, block) in enumerate(sorted(blocks), 1):
        example = Example(package, f"{package}: {page} {number}", textwrap.dedent(block))
        try:
            example.before, example.missing = needed(example.code, before)
        except SyntaxError:
            continue  # a fragment
        yield example
        if not exclusion(example):
            before.append(example.code)


def needed(code: str, before: list[str]) -> tuple[list[str], set[str]]:
    """The latest blocks before some code that define names it uses; the names that none defines."""
    chosen: set[int] = set()
    wanted = undefined(code)
    for number in reversed(range(len(before))):
        if wanted & defined(before[number]):
            chosen.add(number)
            wanted = wanted - defined(before[number]) | undefined(before[number])
    return [before[number] for number in sorted(chosen)], wanted


def defined(code: str) -> set[str]:
    """The names that a block defines, inside functions too."""
    names = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def undefined(code: str) -> set[str]:
    """The names that a block uses and does not define."""
    used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    return used - defined(code) - {*vars(builtins)}


# -- which are played ----------------------------------------------------------------------------


def exclusion(example: Example) -> str | None:
    """Why an example is not played; None if it is."""
    if example.missing:
        return "its page does not define a name that it uses"
    for reason, pattern in TABLE["excluded"].items():
        if re.search(pattern, f"{example.name}\n{example.code}"):
            return str(reason)
    return None


def calls_a_model(example: Example) -> bool:
    """Whether an example's code, or a program's code beside it, calls a text model."""
    return re.search(TABLE["calls"], example.code) is not None


def expected(example: str, problem: str) -> str | None:
    """The reason for which an example is expected to fail so; None if it is not."""
    for failure in TABLE["failures"]:
        if example in failure["examples"] and re.search(failure["error"], problem):
            return str(failure["reason"])
    return None


# -- playing -------------------------------------------------------------------------------------


def play(chosen: list[Example], folder: Path) -> Iterator[dict[str, Any]]:
    """Play examples in copies of their sources, and yield what came of each."""
    jobs = []
    for number, example in enumerate(chosen):
        home = folder / str(number)
        path = home / (example.path or "block.py")
        if example.path is None:
            home.mkdir()
            path.write_text("\n".join([*example.before, example.code]))
        else:
            home.mkdir()
            shutil.copytree(ENVIRONMENT / "sources" / example.package, home, dirs_exist_ok=True)
        place = {"path": str(path), "folder": str(home), "result": f"{home}.json"}
        jobs.append({"example": example.name, **place})
    process = subprocess.Popen(
        [ENVIRONMENT / "bin" / "python", HERE / "play_example.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    pipes: Any = process
    with pipes.stdin as pipe:
        json.dump(jobs, pipe)
    yield from map(json.loads, pipes.stdout)
    if process.wait():
        sys.exit("The player ended with an error.")


def main() -> None:
    """Play what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="a pattern for the examples' names")
    parser.add_argument("--out", default="examples", help="where results go: OUT.json, OUT.md")
    options = parser.parse_args()
    every = [example for example in examples() if calls_a_model(example)]
    chosen = [example for example in every if exclusion(example) is None]
    chosen = [example for example in chosen if re.search(options.only, example.name)]
    print(f"{len(chosen)} of {len(every)} examples", flush=True)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for played in play(chosen, Path(folder)):
            results.append(played)
            print(f"{played['example']}: {problem_of(played) or 'played'}"[:300], flush=True)
    Path(f"{options.out}.json").write_text(json.dumps(results, indent=1))


def problem_of(played: dict[str, Any]) -> str | None:
    """What kept an example from being played to its end; None if nothing did."""
    if played["problem"] is not None:
        return str(played["problem"])
    if not played["calls"]:
        return "it made no call"
    return None if played["exact"] else "tokens differ"


if __name__ == "__main__":
    main()
