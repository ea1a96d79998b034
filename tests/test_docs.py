"""The README and ``docs/``: what they show runs, what they name is there.

snippets     every Python block of a page runs, from top to bottom, in one namespace; each of the
             README's in an empty one, and its file trains by its command
commands     every ``evert ...`` and ``make ...`` line parses
links        every relative link leads somewhere
reference    every public name is on one of its pages, and every docstring is in order
errors       every error is explained, and every message quoted is one of ours
"""

import ast
import importlib
import logging
import pkgutil
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import griffe
import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

import evert
from evert.bridge.errors import EvertError
from evert.envs.games import find_game
from evert.trainers.commands import export, plan, report, rescore, serve, train
from evert.trainers.config.evaluate import read_evaluate_settings
from evert.trainers.sweeping.study import read_plan

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *DOCS.rglob("*.md")]
SYBIL = Sybil(parsers=[PythonCodeBlockParser(), SkipParser()])

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SKIPPED = re.compile(r"^<!-- skip: .*? -->\n+```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
QUOTED = re.compile(r"^\| (.*?) \|", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+(?:\.py)?)(?:::(\w+))?`")
ELLIPSIS = "…"


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


# -- snippets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", sorted(PAGES), ids=page_name)
def test_every_python_snippet_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # for what a snippet writes
    document = SYBIL.parse(page)
    document.namespace["__name__"] = "page"
    for example in document.examples():
        if page == README:  # a reader copies one block into an empty file
            document.namespace.clear()
            document.namespace["__name__"] = "page"
        example.evaluate()


def test_the_readmes_file_trains_by_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = FENCE.findall(README.read_text())
    (_, file), (_, command) = blocks[:2]
    assert len(file.splitlines()) == 15
    (tmp_path / "who.py").write_text(file)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    evert_, train_, *settings = shlex.split(command)
    given = as_pairs(settings) | {"steps": "2", "log_path": "run", "device": "cpu"}

    assert (evert_, train_) == ("evert", "train")
    assert train.main([f"{key}={value}" for key, value in given.items()]) == 0

    assert "24 held-out tasks" in capsys.readouterr().out
    assert len((tmp_path / "run" / "batches.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("page", sorted(PAGES), ids=page_name)
def test_a_snippet_that_does_not_run_here_is_a_whole_example_that_runs_elsewhere(
    page: Path,
) -> None:
    examples = [path.read_text() for path in (ROOT / "examples").rglob("*.py")]

    assert all(snippet in examples for snippet in SKIPPED.findall(page.read_text()))


# -- commands ------------------------------------------------------------------------------------


def commands(*programs: str) -> Iterator[list[str]]:
    """Every line of the pages' plain blocks that calls one of these programs."""
    for page in PAGES:
        for language, text in FENCE.findall(page.read_text()):
            if language in ("python", "html", "toml"):
                continue
            for line in text.replace("\\\n", " ").splitlines():
                if line.partition(" ")[0].rpartition("/")[2] in programs:
                    yield shlex.split(line, comments=True)


def as_pairs(arguments: Sequence[str]) -> dict[str, str]:
    return dict((key, value) for key, _, value in (each.partition("=") for each in arguments))


READERS = {
    "train": train.parse,
    "evaluate": lambda arguments: read_evaluate_settings(as_pairs(arguments)),
    "sweep": lambda arguments: read_plan(as_pairs(arguments)),
    "report": report.parse,
    "rescore": rescore.parse,
    "export": export.parse,
    "serve": serve.parse,
    "engine": plan.parse,
}
NEEDED = {"train": ["env"], "evaluate": ["env", "models"], "sweep": ["env", "steps"]}
"""What a line may leave out because the folder it goes on with knows; and any value for it."""
VALUES = {"env": "identity", "models": "evert-tiny", "steps": "1,2"}


@pytest.mark.parametrize("words", list(commands("evert")), ids=shlex.join)
def test_every_evert_line_is_one_that_its_command_reads(words: list[str]) -> None:
    command, *arguments = words[1:]
    given = as_pairs([each for each in arguments if "=" in each])
    if "env" in given and find_game(given["env"]) is None:
        arguments[arguments.index(f"env={given['env']}")] = "env=identity"  # a game of the reader's
    if not {"agent", "gym"} & given.keys():
        arguments += [f"{key}={VALUES[key]}" for key in NEEDED.get(command, []) if key not in given]

    assert "--help" in arguments or READERS[command](arguments)


@pytest.mark.parametrize("words", list(commands("make")), ids=shlex.join)
def test_every_make_line_names_a_target_that_there_is(words: list[str]) -> None:
    [phony] = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert {word for word in words[1:] if "=" not in word} <= set(phony.split())


# -- links, size ---------------------------------------------------------------------------------


@pytest.mark.parametrize("page", sorted(PAGES), ids=page_name)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link]

    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", sorted(PAGES), ids=page_name)
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    missing = [
        f"{file}::{name}"
        for file, name in TEST.findall(page.read_text())
        if not (ROOT / file).exists() or (name and f"def {name}(" not in (ROOT / file).read_text())
    ]

    assert missing == []


def test_every_guarantee_names_a_test_that_holds_it() -> None:
    page = (DOCS / "guarantees.md").read_text()
    rows = re.findall(r"^\| (?!promise |---)(.+?) \| (.+?) \|$", page, re.MULTILINE)

    assert len(rows) > 30
    assert [promise for promise, tests in rows if not TEST.search(tests)] == []


def test_the_readme_is_read_in_one_sitting() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 200


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "zensical.toml").read_text()

    assert [
        page for page in DOCS.rglob("*.md") if str(page.relative_to(DOCS)) not in navigation
    ] == []


# -- reference -----------------------------------------------------------------------------------


def test_every_public_name_is_in_the_reference() -> None:
    reference = "\n".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    named = re.findall(r"^::: evert\.(\w+)$", reference, re.MULTILINE)

    assert sorted(named) == sorted({*dir(evert)} - {"__version__"})


def test_the_docstrings_agree_with_the_signatures(caplog: pytest.LogCaptureFixture) -> None:
    def visit(module: griffe.Object) -> int:
        own = [member for member in module.members.values() if isinstance(member, griffe.Object)]
        read = sum(len(member.docstring.parsed) > 0 for member in own if member.docstring)
        return read + sum(visit(member) for member in own if member.members)

    with caplog.at_level(logging.WARNING, "griffe"):
        package = griffe.load("evert", search_paths=[ROOT / "src"], docstring_parser="google")
        assert isinstance(package, griffe.Object)
        assert visit(package) > 1000
    assert caplog.messages == []


# -- errors --------------------------------------------------------------------------------------

ERRORS = DOCS / "errors.md"


ELSEWHERE = ("omegaconf", "ray", "trl", "verifiers", "verl")
"""Packages of other trainers, in an environment of their own."""


def all_errors() -> set[type[EvertError]]:
    """Every class of error in the package."""
    for module in pkgutil.walk_packages(evert.__path__, "evert."):
        if ".making" not in module.name and not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ImportError as absent:
                if str(absent.name).partition(".")[0] not in ELSEWHERE:
                    raise
    found: set[type[EvertError]] = set()
    waiting = [EvertError]
    while waiting:
        error = waiting.pop()
        found.add(error)
        waiting += error.__subclasses__()
    ours = {error for error in found if error.__module__.startswith("evert.")}
    return {error for error in ours if "." not in error.__name__}  # AgentError.KeyError


def test_every_error_is_on_the_page() -> None:
    text = ERRORS.read_text()

    assert (
        sorted(error.__name__ for error in all_errors() if f"`{error.__name__}`" not in text) == []
    )


def spoken() -> str:
    """Every text in the package's code, with an ellipsis for what is filled in."""
    texts = []
    folders = [ROOT / name for name in ("bridge", "envs", "trainers", "src/evert/agents")]
    own = (ROOT / "src" / "evert").glob("*.py")
    for path in [*own, *(path for folder in folders for path in folder.rglob("*.py"))]:
        texts += [as_text(node) for node in ast.walk(ast.parse(path.read_text()))]
    return "\n".join(texts)


def as_text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else ELLIPSIS for part in node.values]
        return "".join(map(str, parts))
    return ""


def test_every_message_on_the_page_is_one_of_ours() -> None:
    ours = spoken()
    quoted = [
        message
        for cell in QUOTED.findall(ERRORS.read_text())
        for message in re.findall(r"`([^`]+)`", cell)
        if not message.endswith("Error")
    ]
    missing = [
        message
        for message in quoted
        if not all(piece.strip() in ours for piece in message.split(ELLIPSIS))
    ]

    assert len(quoted) > 60
    assert missing == []
