"""Plays the examples that ship with SDKs, unchanged, with a scripted model: ``make examples``.

    python frameworks/play_examples.py [--only PATTERN] [--out PATH]

``examples.toml`` determines which examples are played. Examples are files in the packages' sources,
and Python blocks in their READMEs and docstrings. Examples that do not call a model, or that need
more than a scripted model, are excluded. ``examples.toml`` also lists the expected failures and
their reasons. Any other outcome is an error. A block is played together with the earlier blocks on
its page that define the names it uses. ``play_example.py`` plays a single example. Results are
written to ``PATH.json``, and the table for ``benchmarks/README.md`` to ``PATH.md``.
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
from collections import Counter
from collections.abc import Iterable, Iterator
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
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass
class Example:
    """A file, or a block on a page. ``name`` is its name in the tables."""

    package: str
    name: str
    code: str
    path: Path | None = None  # for files: relative to the sources
    before: list[str] = field(default_factory=list)  # earlier blocks that it needs
    missing: set[str] = field(default_factory=set)  # names not defined on its page


# -- finding examples ----------------------------------------------------------------------------


def examples() -> Iterator[Example]:
    """Yield all files and blocks in the packages, including those that are not played."""
    for package in TABLE["packages"]:
        yield from files_of(package["name"]) if package.get("files") else ()
        for page, text in pages_of(package):
            yield from blocks_of(package["name"], page, text)


def files_of(package: str) -> Iterator[Example]:
    """Yield the Python examples in a package's sources, downloading them if necessary."""
    sources = ENVIRONMENT / "sources" / package
    if not sources.exists():
        unpack(package, version_of(package), "examples", sources)
    for path in sorted(sources.rglob("*.py")):
        name = str(path.relative_to(sources))
        yield Example(package, f"{package}: {name}", path.read_text(), path.relative_to(sources))


def version_of(package: str) -> str:
    """Return the installed version of a package."""
    [info] = PACKAGES.glob(f"{package.replace('-', '_')}-*.dist-info")
    return str(info.name.removesuffix(".dist-info").rpartition("-")[2])


def pages_of(package: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of a package's README and its public docstrings."""
    name = package["name"]
    [metadata] = PACKAGES.glob(f"{name.replace('-', '_')}-*.dist-info/METADATA")
    yield "README", metadata.read_text().partition("\n\n")[2]
    for module in package.get("docstrings", ()):
        for path in sorted((PACKAGES / module).rglob("*.py")):
            yield from docstrings_of(ast.parse(path.read_text()), path.relative_to(PACKAGES).stem)


def docstrings_of(tree: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    """Yield all docstrings below a node, except for private names."""
    if isinstance(tree, (ast.Module, *FUNCTIONS)):
        yield name, ast.get_docstring(tree) or ""
        for node in tree.body:
            inside = getattr(node, "name", "_")
            if not inside.startswith("_"):
                yield from docstrings_of(node, f"{name}.{inside}")


def blocks_of(package: str, page: str, text: str) -> Iterator[Example]:
    """Yield the Python blocks on a page, each with the earlier blocks that it needs."""
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
    """Return the earlier blocks that the code needs, and the names that no earlier block defines.

    If several blocks define a name, use the one that needs the fewest other names (on ties, the
    first).
    """
    chosen: set[int] = set()
    missing: set[str] = set()
    wanted = [(name, len(before)) for name in undefined(code)]
    while wanted:
        name, end = wanted.pop()
        homes = [number for number in range(end) if name in globals_of(before[number])]
        if not homes:
            missing.add(name)
            continue
        home = min(homes, key=lambda number: (len(undefined(before[number])), number))
        if home not in chosen:
            chosen.add(home)
            wanted += [(name, home) for name in undefined(before[home])]
    return [before[number] for number in sorted(chosen)], missing


def outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes below a node, except for the nodes inside functions and classes."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, (*FUNCTIONS, ast.Lambda)):
            yield from outside_functions(child)


def defined(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names defined by some nodes."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, FUNCTIONS):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def globals_of(code: str) -> set[str]:
    """Return the names that a block defines for later blocks."""
    return defined(outside_functions(ast.parse(code)))


def undefined(code: str) -> set[str]:
    """Return names that a block uses before defining them, assuming that functions run last."""
    body = ast.parse(code).body
    functions = [statement for statement in body if isinstance(statement, FUNCTIONS)]
    others = [statement for statement in body if not isinstance(statement, FUNCTIONS)]
    known = {*vars(builtins), *(function.name for function in functions)}
    missing: set[str] = set()
    for statement in [*others, *functions]:
        nodes = [*ast.walk(statement)]
        used = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        # An assignment evaluates its value before it binds the name.
        inside = defined(ast.walk(getattr(statement, "value", None) or statement))
        missing |= used - known - inside
        known |= defined(nodes)
    return missing


# -- selecting examples --------------------------------------------------------------------------


def exclusion(example: Example) -> str | None:
    """Return why an example is skipped, or None if it is played."""
    if example.missing:
        return "its page does not define a name that it uses"
    for reason, pattern in TABLE["excluded"].items():
        if re.search(pattern, f"{example.name}\n{example.code}"):
            return str(reason)
    return None


def failure_of(example: str, problem: str) -> dict[str, str] | None:
    """Return the ``failures`` entry that covers an example's problem, or None if there is none."""
    for failure in TABLE["failures"]:
        if example in failure["examples"] and re.search(failure["error"], problem):
            return dict(failure)
    return None


# -- playing -------------------------------------------------------------------------------------


def play(chosen: list[Example], folder: Path) -> Iterator[dict[str, Any]]:
    """Play examples in copies of their sources and yield the results."""
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
        sys.exit("play_example.py exited with an error.")


def problem_of(played: dict[str, Any]) -> str | None:
    """Return what went wrong with an example, or None if it was played successfully."""
    if played["problem"] is not None:
        return str(played["problem"])
    if not played["calls"]:
        return "it made no model call"
    return None if played["exact"] else "its tokens differ from the sampled tokens"


def surprise(played: dict[str, Any]) -> str | None:
    """If an outcome does not match the expected failures, return why; otherwise, return None."""
    problem, name = problem_of(played), played["example"]
    if problem is not None:
        return None if failure_of(name, problem) else f"{name}: {problem}"
    listed = any(name in failure["examples"] for failure in TABLE["failures"])
    return f"{name}: played, but listed as a failure" if listed else None


# -- the table -----------------------------------------------------------------------------------


def table(every: list[Example], results: list[dict[str, Any]]) -> str:
    """Return the results as Markdown: counts per package, failures and exclusions."""
    lines = [
        "| package | examples | played | failed | calls | tool calls |",
        "|---|---|---|---|---|---|",
    ]
    for package in TABLE["packages"]:
        name = package["name"]
        mine = [played for played in results if played["example"].startswith(f"{name}: ")]
        good = [played for played in mine if problem_of(played) is None]
        calls, tools = (sum(played[key] for played in good) for key in ("calls", "tools"))
        cells = (f"{name} {version_of(name)}", len(mine), len(good), len(mine) - len(good))
        lines.append(f"| {' | '.join(map(str, (*cells, calls, tools)))} |")
    lines += ["", "| failed | because of | reason |", "|---|---|---|"]
    for failure in TABLE["failures"]:
        names = ", ".join(f"`{name}`" for name in failure["examples"])
        lines.append(f"| {names} | {failure['of']} | {failure['reason']} |")
    lines += ["", "| not played | it needs, or has |", "|---|---|"]
    reasons = Counter(filter(None, map(exclusion, every)))
    lines += [f"| {number} | {reason} |" for reason, number in reasons.most_common()]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Play the examples selected on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="only play examples that match this pattern")
    parser.add_argument("--out", default=str(ENVIRONMENT / "played"), help="where to write results")
    options = parser.parse_args()
    every = [example for example in examples() if re.search(TABLE["calls"], example.code)]
    chosen = [example for example in every if exclusion(example) is None]
    chosen = [example for example in chosen if re.search(options.only, example.name)]
    print(f"playing {len(chosen)} of {len(every)} examples", flush=True)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for played in play(chosen, Path(folder)):
            results.append(played)
            print(f"{played['example']}: {problem_of(played) or 'played':.200}", flush=True)
    Path(f"{options.out}.json").write_text(json.dumps(results, indent=1))
    Path(f"{options.out}.md").write_text(table(every, results))
    surprises = [told for played in results if (told := surprise(played))]
    if not options.only:
        names = {played["example"] for played in results}
        listed = {name for failure in TABLE["failures"] for name in failure["examples"]}
        surprises += [f"{name}: listed as a failure, but not played" for name in listed - names]
    if surprises:
        sys.exit("\n".join(["", "Outcomes that differ from examples.toml:", *surprises]))


if __name__ == "__main__":
    main()
