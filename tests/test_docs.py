"""The README and ``docs/``: snippets run, and everything they refer to exists."""

import ast
import importlib
import importlib.util
import logging
import os
import pkgutil
import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import griffe
import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

import evert
from evert.bridge.clients.dialects import fields
from evert.bridge.errors import EvertError
from evert.envs.games import find_game
from evert.trainers.commands import (
    doctor,
    export,
    init,
    model,
    plan,
    play,
    report,
    rescore,
    serve,
    train,
    view,
)
from evert.trainers.config.evaluate import read_evaluate_settings
from evert.trainers.sweeping.study import read_plan

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"


PAGES = sorted([README, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *DOCS.rglob("*.md")])
TEXTS = {page: page.read_text() for page in PAGES}
SYBIL = Sybil(parsers=[PythonCodeBlockParser(), SkipParser()])

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SKIPPED = re.compile(r"^<!-- skip: .*? -->\n+```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
QUOTED = re.compile(r"^\| (.*?) \|", re.MULTILINE)
MACRO = re.compile(r"\{\{ (\w+)\((?:\"(.*?)\")?\) \}\}")
FIGURE = re.compile(r"\d+\.\d+|\d,\d{3}")
TEST = re.compile(r"`(tests/[\w/]+(?:\.py)?)(?:::(\w+))?`")
ELLIPSIS = "…"
SPEC = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
assert SPEC is not None
assert SPEC.loader is not None
generate = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(generate)


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


# -- snippets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [p for p in PAGES if "```python" in TEXTS[p]], ids=page_name)
def test_every_python_snippet_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # for files that snippets write
    document = SYBIL.parse(page)
    document.namespace["__name__"] = "page"
    for example in document.examples():
        if page == README:  # readers copy a single block into an empty file
            document.namespace.clear()
            document.namespace["__name__"] = "page"
        example.evaluate()


def test_the_file_in_the_readme_trains_with_the_command_in_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, (_, file), (_, command) = FENCE.findall(TEXTS[README])[:3]
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


def test_a_skipped_snippet_is_a_complete_example_file() -> None:
    examples = [path.read_text() for path in (ROOT / "examples").rglob("*.py")]
    skipped = [(page_name(p), s) for p, text in TEXTS.items() for s in SKIPPED.findall(text)]

    assert skipped
    assert [found for found in skipped if found[1] not in examples] == []


# -- commands ------------------------------------------------------------------------------------


def commands(*programs: str) -> Iterator[list[str]]:
    """Yield all lines in the pages' shell blocks that call one of these programs."""
    for text in TEXTS.values():
        for language, block in FENCE.findall(text):
            if language in ("python", "html", "toml"):
                continue
            for line in block.replace("\\\n", " ").splitlines():
                if line.partition(" ")[0].rpartition("/")[2] in programs:
                    yield shlex.split(line, comments=True)


def as_pairs(arguments: Sequence[str]) -> dict[str, str]:
    return dict((key, value) for key, _, value in (each.partition("=") for each in arguments))


def read_model(arguments: Sequence[str]) -> object:
    return model.command_of(arguments).parse(arguments)


READERS: dict[str, Callable[[Sequence[str]], object]] = {
    "train": train.parse,
    "init": init.parse,
    "play": play.parse,
    "evaluate": lambda arguments: read_evaluate_settings(as_pairs(arguments)),
    "sweep": lambda arguments: read_plan(as_pairs(arguments)),
    "report": report.parse,
    "view": view.parse,
    "rescore": rescore.parse,
    "export": export.parse,
    "serve": serve.parse,
    "doctor": doctor.parse,
    "engine": plan.COMMAND.parse,
    "model": read_model,
}
NEEDED = {"train": ["env"], "evaluate": ["env", "models"], "sweep": ["env", "steps"]}
"""Settings that a command line may omit when it continues from an existing folder."""
VALUES = {"env": "identity", "models": "evert-tiny", "steps": "1,2"}


def is_read(words: list[str]) -> bool:
    """Return whether evert accepts a command line."""
    command, *arguments = ["env=identity" if w == "tasks=all-offline" else w for w in words[1:]]
    given = as_pairs([each for each in arguments if "=" in each])
    if "env" in given and find_game(given["env"]) is None:
        arguments[arguments.index(f"env={given['env']}")] = "env=identity"  # stands for any game
    if not {"agent", "tasks"} & given.keys():
        arguments += [f"{key}={VALUES[key]}" for key in NEEDED.get(command, []) if key not in given]
    try:
        return "--help" in arguments or bool(READERS[command](arguments))
    except (EvertError, KeyError):
        return False


ELSEWHERE = (
    r"tasks=(agentdojo|bfcl|harbor|miniwob|openenv|scienceworld|tau2_bench|textarena|verifiers):"
)
"""Matches lines that need a package or server. Tests in that package's environment check them."""


def is_elsewhere(words: list[str]) -> bool:
    """Return whether a line needs a package that is not in this environment."""
    return any(re.match(ELSEWHERE, word) for word in words)


def test_every_evert_command_line_in_the_docs_is_valid() -> None:
    lines = [words for words in commands("evert") if not is_elsewhere(words)]

    assert len(lines) > 30
    assert [shlex.join(words) for words in lines if not is_read(words)] == []
    assert not is_read(["evert", "train", "env=identity", "stpes=1"])


def test_the_command_lines_in_make_real_are_valid() -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "-n", "real", "SETTINGS="]
    printed = subprocess.run(command, cwd=ROOT, env=plain, capture_output=True, text=True)
    lines = [line.partition("evert train ")[2] for line in printed.stdout.splitlines()]
    trained = [shlex.split(line) for line in lines if line]

    assert [arguments[0] for arguments in trained] == ["env=identity", "agent=calculator:agent"]
    assert all(train.parse(arguments) for arguments in trained)


def test_every_make_command_uses_an_existing_target() -> None:
    [phony] = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    text = "\n".join(TEXTS.values())
    named = set(re.findall(r"(?:^|`)make ([a-z0-9-]+)", text, re.MULTILINE))

    assert len(named) > 10
    assert named <= set(phony.split())


# -- links and size ------------------------------------------------------------------------------


def test_every_relative_link_leads_to_an_existing_file_and_heading() -> None:
    found = [(page, *link) for page, text in TEXTS.items() for link in LINK.findall(text)]
    inner = [(page, file, name) for page, file, name in found if "://" not in file]
    links = [(page, page.parent / file if file else page, name) for page, file, name in inner]

    assert len(links) > 100
    assert [(page_name(page), str(to)) for page, to, _ in links if not to.exists()] == []
    named = [link for link in links if link[2] and link[1].suffix == ".md"]
    assert [(page_name(p), to.name, n) for p, to, n in named if n not in headings(to)] == []


def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_every_test_mentioned_in_the_docs_exists() -> None:
    missing = [
        f"{page_name(page)}: {file}::{name}"
        for page, text in TEXTS.items()
        for file, name in TEST.findall(text)
        if not (ROOT / file).exists() or (name and f"def {name}(" not in (ROOT / file).read_text())
    ]

    assert missing == []


def test_each_measurement_is_on_one_page_only() -> None:
    found: set[tuple[str, str, str]] = set()
    for page, text in TEXTS.items():
        for line in text.splitlines():
            for command in re.findall(r"`python (benchmarks/\w+\.py)", line):
                found |= {(command, number, page_name(page)) for number in FIGURE.findall(line)}
    times = Counter((command, number) for command, number, _ in found)

    assert [figure for figure, count in times.items() if count > 1] == []


def test_the_pages_are_few_and_short_and_all_in_the_navigation() -> None:
    navigation = (ROOT / "zensical.toml").read_text()
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]

    assert len(re.findall(r'= "[\w/-]+\.md"', navigation)) <= 28
    assert len(TEXTS[README].splitlines()) < 200
    assert sum(len(text.split()) for page, text in TEXTS.items() if page.parent != ROOT) < 31_000
    assert [page for page in pages if page not in navigation] == []


# -- generated parts -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "argument"),
    sorted({found for page in DOCS.rglob("*.md") for found in MACRO.findall(page.read_text())}),
)
def test_generated_parts_of_pages_are_not_empty(function: str, argument: str) -> None:
    made = getattr(generate, function)(*[argument][: bool(argument)])

    assert len(made.splitlines()) > 2


def test_every_guarantee_has_tests() -> None:
    _, *sections = TEXTS[DOCS / "guarantees.md"].split("\n## ")

    assert len(sections) > 10
    assert all("{{ sentences(" in section for section in sections[:-1])


def test_every_field_of_every_api_has_a_row() -> None:
    page = (DOCS / "requests.md").read_text()
    apis = {argument for function, argument in MACRO.findall(page) if function == "request_fields"}

    assert apis == set(fields._table()) - {"common"}
    for api in apis:
        policy, made = fields.field_policy(api), generate.request_fields(api)
        for name in (*policy.honoured, *policy.ignored, *policy.refused):
            assert f"`{name}`" in made


# -- reference -----------------------------------------------------------------------------------


def test_every_public_name_is_in_the_reference() -> None:
    reference = "\n".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    named = re.findall(r"^::: evert\.(\w+)$", reference, re.MULTILINE)

    assert sorted(named) == sorted({*dir(evert)} - {"__version__"})


def test_docstrings_match_the_signatures(caplog: pytest.LogCaptureFixture) -> None:
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

PACKAGES_ELSEWHERE = ("bfcl_eval", "harbor", "omegaconf", "ray", "trl", "verifiers", "verl")
"""Packages of other trainers, Harbor and BFCL, which are installed in separate environments."""


def all_errors() -> set[type[EvertError]]:
    """Return all error classes in the package."""
    for module in pkgutil.walk_packages(evert.__path__, "evert."):
        if ".making" not in module.name and not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ImportError as absent:
                if str(absent.name).partition(".")[0] not in PACKAGES_ELSEWHERE:
                    raise
    found = [EvertError]
    for error in found:
        found += error.__subclasses__()
    ours = {error for error in found if error.__module__.startswith("evert.")}
    return {error for error in ours if "." not in error.__name__}  # AgentError.KeyError


def test_every_error_is_listed_and_every_quoted_message_exists() -> None:
    text = generate.errors()
    nodes = [node for _, tree in generate.trees() for node in ast.walk(tree)]
    ours = "\n".join(map(generate.as_text, nodes))
    cells = QUOTED.findall(TEXTS[DOCS / "errors.md"])
    quoted = [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]

    assert {e.__name__ for e in all_errors() if f"#### {e.__name__}\n" not in text} == set()
    assert len(quoted) > 25
    pieces = [(message, piece.strip()) for message in quoted for piece in message.split(ELLIPSIS)]
    assert [message for message, piece in pieces if piece not in ours] == []


# -- peers ---------------------------------------------------------------------------------------


def rows_of(title: str) -> list[str]:
    """Return the cells in the last column of the table in a section of peers.md."""
    section = (DOCS / "peers.md").read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\|.*\| (`.*`) \|$", section, re.MULTILINE)


def test_features_listed_as_missing_do_not_exist() -> None:
    absent = {*re.findall(r"`(\w+)`", " ".join(rows_of("What evert lacks")))}
    names = [*(path.stem for path, _ in generate.trees()), *dir(evert)]

    assert len(absent) > 5
    assert [name for name in names if absent & {*name.lower().split("_")}] == []
