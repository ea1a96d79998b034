"""Parts of the pages that are generated from the source when the site is built.

zensical calls ``define_env``. Where a page has ``{{ errors() }}``, the site has its return value.

    request_fields  how each field of an API is treated      bridge/clients/dialects/fields.toml
    errors          classes of errors, and their messages   raise statements of the package
    settings        what ``evert COMMAND --help`` prints    the classes of the settings
    sentences       the names of tests, as sentences        tests/
    recipes         which of the Cookbook's recipes run     tests/trainers/integrations/recipes
"""

import ast
import contextlib
import importlib
import io
import re
import sys
import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("bridge", "envs", "trainers", "src/evert")
ELLIPSIS = "…"
REFUSALS = {"bad_request": "BadRequestError", "malformed": "BadRequestError"}
SETTING = re.compile(r"^  ([\w.]+=\S*) +(\S.*(?:\n {30,}\S.*)*)", re.MULTILINE)


def define_env(env: Any) -> None:
    """Register the functions that pages may call; zensical's macros call this."""
    for function in (request_fields, errors, settings, sentences, recipes):
        env.macro(function)


def request_fields(api: str) -> str:
    """Return a table of an API's fields: honoured, ignored, and refused with what to do instead."""
    table = tomllib.loads((ROOT / "bridge/clients/dialects/fields.toml").read_text())
    own = table[api]
    rows = ["| | fields |", "|---|---|"]
    rows.append(f"| honoured | {names(own['honoured'])} |")
    rows.append(f"| ignored | {names([*own['ignored'], *table['common']['ignored']])} |")
    advice: dict[str, list[str]] = {}
    for name, rule in own["refused"].items():
        advice.setdefault(rule["advice"], []).append(name)
    rows += [f"| refused | {names(fields)}: {text} |" for text, fields in advice.items()]
    return "\n".join(rows)


def names(words: list[str]) -> str:
    """Return the words as code, separated by commas."""
    return ", ".join(f"`{word}`" for word in words)


# -- errors --------------------------------------------------------------------------------------


def errors() -> str:
    """Return every class of error, with its meaning, its file and its messages."""
    said = messages()
    parts = []
    for name, (parents, about, place) in sorted(error_classes().items()):
        own = said.pop(name, [])
        parts.append(f"#### {name}\n\n{about} Parents: {parents}. Defined in `{place}`.\n")
        parts += [f"- {code(text)}" for text in own]
        parts.append("")
    refused = said.pop("BadRequestError", [])
    parts.append("#### BadRequestError (400)\n\nMessages with which a model call is refused.\n")
    parts += [f"- {code(text)}" for text in refused]
    return "\n".join(parts)


def code(text: str) -> str:
    """Return a message as code, even if it contains backquotes."""
    return f"`` {' '.join(text.split())} ``"


def trees() -> Iterator[tuple[Path, ast.Module]]:
    """Yield the path and the syntax tree of every module of the package."""
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "making" not in path.parts and not path.is_symlink():
                if folder == "src/evert" and path.parts[len(ROOT.parts) + 2] in SOURCES:
                    continue  # the links
                yield path, ast.parse(path.read_text())


def error_classes() -> dict[str, tuple[str, str, str]]:
    """Return, by class name, its parents, the first paragraph of its docstring, and its file."""
    found = {"EvertError": ("`Exception`", "", "")}
    waiting = [
        (path, node)
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    grown = True
    while grown:
        grown = False
        for path, node in waiting:
            parents = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
            is_error = node.name == "EvertError" or any(each in found for each in parents)
            if is_error and not found.get(node.name, ("", "", ""))[2]:
                about = (ast.get_docstring(node) or "").partition("\n\n")[0]
                place = str(path.relative_to(ROOT))
                about = " ".join(about.split()).replace("``", "`")
                own = [each for each in parents if each != "EvertError" and each[0] != "_"]
                found[node.name] = (names(own or ["Exception"]), about, place)
                grown = True
    return {name: entry for name, entry in found.items() if not name.startswith("_")}


def messages() -> dict[str, list[str]]:
    """Return each error class's messages, with an ellipsis for each part that varies."""
    classes = {*error_classes(), *REFUSALS}
    found: dict[str, list[str]] = {}
    for _, tree in trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = ast.unparse(node.func).rpartition(".")[2]
            text = as_text(node.args[0])
            if name in classes and len(text.replace(ELLIPSIS, "").strip()) > 12:
                own = found.setdefault(REFUSALS.get(name, name), [])
                own += [text] if text not in own else []
    return found


def as_text(node: ast.AST) -> str:
    """Return a string literal, with an ellipsis for each part that varies; "" for other nodes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else ELLIPSIS for part in node.values]
        return "".join(map(str, parts))
    return ""


# -- commands, tests, recipes --------------------------------------------------------------------


def settings(command: str) -> str:
    """Return a table of the longest block of settings that ``evert COMMAND --help`` prints."""
    module = importlib.import_module(f"evert.trainers.commands.{command}")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        module.main(["--help"])
    blocks = [SETTING.findall(block) for block in printed.getvalue().split("\n\n")]
    longest = [(name, re.sub(r"-\n +", "-", about)) for name, about in max(blocks, key=len)]
    rows = [
        f"| `{name}` | {escape(' '.join(about.split()), quote=False)} |" for name, about in longest
    ]
    return "\n".join(["| setting | what it is |", "|---|---|", *rows])


def sentences(words: str) -> str:
    """Return the tests whose names match ``words``, a regular expression, in a collapsed note."""
    rows = []
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in re.findall(r"^\s*(?:async )?def test_(\w+)\(", file.read_text(), re.MULTILINE):
            if re.search(words, text := name.replace("_", " ")):
                rows.append(f"    - {text.capitalize()} (`{file.relative_to(ROOT)}`)")
    if not rows:
        raise LookupError(f"No test has {words!r} in its name.")
    return "\n".join([f'??? note "{len(rows)} tests"', "", *rows])


def recipes() -> str:
    """Return a table of the Cookbook's recipes: each runs, or needs something that is missing."""
    sys.path.insert(0, str(ROOT))
    table = importlib.import_module("tests.trainers.integrations.recipes.table")
    rows = [f"| `{each.name}` | {each.needs or 'runs'} |" for each in table.RECIPES]
    return "\n".join(["| recipe | |", "|---|---|", *rows])
