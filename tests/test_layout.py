"""The layout of the project. (``make lint`` checks which rooms may import each other.)"""

import ast
import importlib
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import evert
from evert.envs.games import games
from evert.envs.twenty_questions import VARIANTS

ROOT = Path(__file__).parent.parent
FACE = ROOT / "src" / "evert"
FOLDERS = ("bridge", "envs", "trainers")
"""Import order: each folder may only import the ones before it."""
SUBFOLDERS = sorted(
    str(path.parent.relative_to(ROOT))
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("__init__.py")
    if path.parent != ROOT / folder
)
"""The rooms and the games' folders."""

AGENTS = "src/evert/agents"
"""The ready-made agents, which are in the package itself."""

MAKING = "bases"
"""The scripts that made the bundled base models."""

SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
PACKAGES = (*FOLDERS, *SUBFOLDERS, AGENTS, MAKING)
MODULES = [path for folder in PACKAGES for path in sorted((ROOT / folder).glob("*.py"))]
HOMES = {
    alias.name: str(node.module)
    for node in ast.parse((FACE / "__init__.pyi").read_text()).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
"""Maps each public name to the module that defines it, as seen by type checkers."""


def module_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def python(code: str, cwd: Path) -> str:
    """Run code in a fresh interpreter outside the checkout and return its output."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def trees() -> dict[Path, ast.Module]:
    """Parse all modules."""
    return {path: ast.parse(path.read_text()) for path in MODULES}


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield every module and member that a file imports, including inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            arguments = [argument for argument in node.args if isinstance(argument, ast.Constant)]
            yield from (str(argument.value) for argument in arguments)


def test_our_folders_are_never_imported_as_top_level_packages() -> None:
    imports = [(path, name) for path, tree in trees().items() for name in imported(tree)]

    assert [found for found in imports if found[1].partition(".")[0] in FOLDERS] == []


@cache
def names_in(module: str) -> set[str]:
    """Return the submodules of one of our modules, and all names in its source."""
    root, *parts = module.split(".")
    path = (FACE if root == "evert" else ROOT / root).joinpath(*parts)
    source = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
    nodes = [*ast.walk(ast.parse(source.read_text()))] if source.exists() else []
    names = {getattr(node, name, None) for node in nodes for name in ("id", "name", "asname")}
    submodules = {child.stem for child in path.glob("*")}
    return {*map(str, names), *submodules, *(HOMES if module == "evert" else ())}


def test_files_for_other_environments_import_only_names_that_exist() -> None:
    """Type checkers and most test runs skip these files, because ``.venv`` lacks their packages."""
    folders = ("benchmarks", "examples", "frameworks", "tests")
    missing = [
        f"{path.relative_to(ROOT)}: {node.module}.{alias.name}"
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module
        if node.module.partition(".")[0] in ("evert", "tests")
        for alias in node.names
        if alias.name not in names_in(node.module)
    ]
    assert not missing


def test_packages_links_and_folders_match_and_are_flat() -> None:
    links = {path.name: path for path in FACE.iterdir() if path.is_symlink()}
    rooms = [folder for folder in (*FOLDERS, *SUBFOLDERS) if not folder.startswith("envs/")]

    assert {n: link.readlink() for n, link in links.items()} == {
        folder: Path("..", "..", folder) for folder in FOLDERS
    }  # relative, so that a checkout can be moved
    packages = ["evert", "evert.agents", *sorted(f"evert.{r.replace('/', '.')}" for r in rooms)]
    assert SETUPTOOLS["packages"] == packages
    for folder in (*FOLDERS, *SUBFOLDERS):
        inside = {f"{folder}/{path.name}" for path in (ROOT / folder).iterdir() if path.is_dir()}
        assert inside <= {f"{folder}/__pycache__", *SUBFOLDERS}


def test_every_public_name_is_visible_to_type_checkers_and_loads_from_its_module() -> None:
    assert dir(evert) == sorted(vars(evert)["__all__"]) == sorted([*HOMES, "__version__"])
    for name, home_module in HOMES.items():
        value = getattr(evert, name)
        if home_module == "evert":
            assert value is importlib.import_module(f"evert.{name}")
            continue
        assert value is getattr(importlib.import_module(home_module), name)
        assert value.__module__ == home_module, name
        assert value.__doc__, name
    with pytest.raises(AttributeError, match="module 'evert' has no attribute 'ChatEnv'"):
        getattr(evert, "ChatEnv")  # noqa: B009 (type checkers know better)


def test_every_error_defined_in_a_public_module_is_public() -> None:
    for module in ("evert.bridge.errors", *sorted({*HOMES.values()} - {"evert"})):
        members = vars(importlib.import_module(module)).values()
        own = [value for value in members if getattr(value, "__module__", None) == module]
        errors = {e.__name__ for e in own if isinstance(e, type) and issubclass(e, BaseException)}

        assert errors <= {*dir(evert)}, module


def test_importing_evert_is_cheap(tmp_path: Path) -> None:
    code = "import evert; import json, sys; print(json.dumps([*sys.modules]))"
    loaded = set(json.loads(python(code, tmp_path)))

    modules = {f"evert.envs.{game}" for game in games().keys() - VARIANTS.keys()}
    assert {"evert", "gymnasium", *modules} <= loaded
    assert not loaded & {"torch", "tinker", "tinker_cookbook", "transformers", "openai", "rich"}


def test_the_distribution_claims_only_the_name_evert() -> None:
    owned = importlib.metadata.packages_distributions()
    ours = {name for name, owners in owned.items() if "evert" in owners}

    assert ours == {"evert"}
    files = importlib.metadata.files("evert") or []
    assert files
    assert not [file for file in files if file.parts[0].removesuffix(".py") in FOLDERS]


def test_a_users_own_folder_with_the_same_name_can_be_imported(tmp_path: Path) -> None:
    code = ""
    for name in FOLDERS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("MINE = True\n")
        code += f"import {name}, evert.{name}\n"
        code += f"assert {name}.MINE and not hasattr(evert.{name}, 'MINE')\n"

    assert python(code, tmp_path) == ""


MAP_LINE = re.compile(r"^    (\w+(?:\.py|/))\s+\S", re.MULTILINE)


def test_every_packages_map_lists_exactly_its_modules() -> None:
    """Games are exempt, because adding a game should not change any other file."""
    found = {f"envs/{name}{end}" for name in games() for end in (".py", "/")}
    for folder in PACKAGES:
        told = ast.get_docstring(trees()[ROOT / folder / "__init__.py"], clean=False) or ""
        names = MAP_LINE.findall(told)
        drawn = {f"{folder}/{name}" for name in names}
        beside = [path for path in MODULES if path.parent == ROOT / folder]
        there = {module_name(path) for path in beside if not path.stem.startswith("_")}
        there |= {f"{one}/" for one in SUBFOLDERS if Path(one).parent == Path(folder)}

        assert len(drawn) == len(names), folder
        assert drawn <= there <= drawn | found, folder


OTHERS_SURFACES = {"TrainingClient", "ServiceClient", "RestClient", "SamplingClient"}
"""Classes that replicate a class of the Tinker SDK method by method."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def test_functions_files_and_classes_are_short() -> None:
    functions = {
        f"{module_name(path)}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, Function)
    }
    files = {module_name(path): len(path.read_text().splitlines()) for path in MODULES}
    methods = {
        node.name: sum(isinstance(child, Function) for child in node.body)
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name not in OTHERS_SURFACES
    }

    assert {name: lines for name, lines in functions.items() if lines > 50} == {}
    assert sorted(functions.values())[int(0.95 * len(functions))] <= 30
    assert {name: lines for name, lines in files.items() if lines > 400} == {}
    assert {name: count for name, count in methods.items() if count > 20} == {}
    assert {"bridge", "envs", "trainers"} <= {name.partition("/")[0] for name in files}
