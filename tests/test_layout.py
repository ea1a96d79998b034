"""How the project is laid out.

1. No module claims a user's own name. (Which room may import which, ``make lint`` holds.)
2. Three folders, three links, three lines in pyproject.toml: all the same, and flat; what is in
   them is in the wheel, folders of games without a line of their own.
3. The public face is one list, loaded lazily, and claims no name but ``evert``.
4. Every module has a docstring, and its package's map names it; a game may be left out there, so
   that adding one touches nothing else.
"""

import ast
import importlib
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest
from setuptools.dist import Distribution  # type: ignore[import-untyped]

import evert
from evert.bridge.tokens.bases import BASES
from evert.envs.games import games
from evert.envs.twenty_questions import VARIANTS

ROOT = Path(__file__).parent.parent
FACE = ROOT / "src" / "evert"
FOLDERS = ("bridge", "envs", "trainers")
"""In the order in which they may import each other: each one those before it."""
SUBFOLDERS = tuple(
    sorted(
        str(path.parent.relative_to(ROOT))
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("__init__.py"))
        if path.parent != ROOT / folder
    )
)
"""The rooms, and the folders of games."""

AGENTS = "src/evert/agents"
"""The ready agents: in the package itself, beside the three folders."""

MAKING = "src/evert/bases/making"
"""The scripts that made the shipped bases: beside them in a checkout, and nowhere else."""

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MODULES = [
    path
    for folder in (*FOLDERS, *SUBFOLDERS, AGENTS, MAKING)
    for path in sorted((ROOT / folder).glob("*.py"))
]
HOMES = {
    alias.name: str(node.module)
    for node in ast.parse((FACE / "__init__.pyi").read_text()).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
"""Public name -> the module it lives in, as type checkers see it."""
PUBLIC = [path for path in MODULES if not path.stem.startswith("_")]


def module_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def python(code: str, cwd: Path) -> str:
    """What a fresh interpreter, away from the checkout, prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def modules_after(code: str, cwd: Path) -> set[str]:
    """The modules that a fresh interpreter has loaded after ``code``."""
    report = "; import json, sys; print(json.dumps([*sys.modules]))"
    return set(json.loads(python(code + report, cwd)))


# -- imports -------------------------------------------------------------------------------------


def imported(tree: ast.AST) -> Iterator[str]:
    """Every module and member that a file imports, at its top or inside of a function."""
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
    wrong = [
        f"{module_name(path)} imports {name}"
        for path in MODULES
        for name in imported(ast.parse(path.read_text()))
        if name.partition(".")[0] in FOLDERS
    ]

    assert not wrong


# -- folders, links, pyproject.toml --------------------------------------------------------------


def test_the_mapping_the_links_and_the_folders_are_the_same() -> None:
    links = {path.name: path.resolve() for path in FACE.iterdir() if path.is_symlink()}
    mapping = PROJECT["tool"]["setuptools"]["package-dir"]

    assert links == {folder: ROOT / folder for folder in FOLDERS}
    assert mapping == {"": "src"} | {f"evert.{folder}": folder for folder in FOLDERS}
    assert PROJECT["tool"]["setuptools"]["packages"] == [
        "evert",
        "evert.agents",
        *sorted(
            f"evert.{folder.replace('/', '.')}"
            for folder in (*FOLDERS, *SUBFOLDERS)
            if not folder.startswith("envs/")
        ),
    ]


def test_the_wheel_holds_every_file_of_the_folders() -> None:
    distribution = Distribution({"script_name": "pyproject.toml"})
    distribution.parse_config_files([str(ROOT / "pyproject.toml")])
    build = distribution.get_command_obj("build_py")
    build.ensure_finalized()
    with chdir(ROOT):
        outputs = build.get_outputs(include_bytecode=False)
    built = {str(Path(output).relative_to(build.build_lib)) for output in outputs}
    ours = {
        f"evert/{path.relative_to(ROOT)}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }

    assert ours <= built
    assert {"evert/__init__.py", "evert/__init__.pyi", "evert/py.typed"} <= built


def test_the_links_are_relative_so_that_a_checkout_may_move() -> None:
    for folder in FOLDERS:
        assert (FACE / folder).readlink() == Path("..", "..", folder)


def test_the_folders_hold_modules_and_the_subfolders_named_here() -> None:
    for folder in (*FOLDERS, *SUBFOLDERS):
        inside = {f"{folder}/{path.name}" for path in (ROOT / folder).iterdir() if path.is_dir()}

        assert inside <= {f"{folder}/__pycache__", *SUBFOLDERS}
        assert (ROOT / folder / "__init__.py").is_file(), folder


def test_the_package_is_typed() -> None:
    assert (FACE / "py.typed").is_file()
    assert "py.typed" in PROJECT["tool"]["setuptools"]["package-data"]["evert"]


def test_the_bases_ship_and_the_scripts_that_made_them_do_not() -> None:
    [pattern] = [p for p in PROJECT["tool"]["setuptools"]["package-data"]["evert"] if "bases" in p]
    shipped = {path.relative_to(FACE / "bases").parts[0] for path in FACE.glob(pattern)}

    assert shipped == set(BASES)
    assert f"evert.bases.{Path(MAKING).name}" not in PROJECT["tool"]["setuptools"]["packages"]


# -- the public face -----------------------------------------------------------------------------


def test_the_public_list_is_what_type_checkers_see() -> None:
    assert dir(evert) == sorted(vars(evert)["__all__"]) == sorted([*HOMES, "__version__"])


def test_every_public_name_loads_from_its_home() -> None:
    for name, home_module in HOMES.items():
        value = getattr(evert, name)
        if home_module == "evert":
            assert value is importlib.import_module(f"evert.{name}")
            continue

        assert value is getattr(importlib.import_module(home_module), name)
        assert value.__module__ == home_module, name
        assert value.__doc__, name


def test_every_error_of_a_module_that_users_meet_is_public() -> None:
    for module in ("evert.bridge.errors", *sorted({*HOMES.values()} - {"evert"})):
        members = vars(importlib.import_module(module)).values()
        own = [value for value in members if getattr(value, "__module__", None) == module]
        errors = {e.__name__ for e in own if isinstance(e, type) and issubclass(e, BaseException)}

        assert errors <= {*dir(evert)}, module


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'evert' has no attribute 'ChatEnv'"):
        getattr(evert, "ChatEnv")  # noqa: B009 (type checkers know better)


def test_importing_evert_is_cheap(tmp_path: Path) -> None:
    loaded = modules_after("import evert", tmp_path)

    modules = {f"evert.envs.{game}" for game in games().keys() - VARIANTS.keys()}
    assert {"evert", "gymnasium", *modules} <= loaded
    assert not loaded & {"torch", "tinker", "tinker_cookbook", "transformers", "openai"}


def test_the_distribution_claims_the_name_evert_and_no_other() -> None:
    owned = importlib.metadata.packages_distributions()
    ours = {name for name, owners in owned.items() if "evert" in owners}

    # an editable install's finder is a module of setuptools' making
    assert {name for name in ours if not name.startswith("__editable__")} == {"evert"}
    files = importlib.metadata.files("evert") or []
    assert files
    assert not [file for file in files if file.parts[0].removesuffix(".py") in FOLDERS]


def test_a_users_own_folder_of_the_same_name_is_found(tmp_path: Path) -> None:
    for folder in FOLDERS:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("MINE = True\n")
    code = "\n".join(
        f"import {folder}, evert.{folder}; assert {folder}.MINE; "
        f"assert not hasattr(evert.{folder}, 'MINE')"
        for folder in FOLDERS
    )

    assert python(code, tmp_path) == ""


# -- docstrings and maps -------------------------------------------------------------------------

MAP_LINE = re.compile(r"^    (\w+(?:\.py|/))\s+\S", re.MULTILINE)


def test_every_module_says_what_it_is_for() -> None:
    for path in PUBLIC:
        docstring = ast.get_docstring(ast.parse(path.read_text()))

        assert docstring, module_name(path)
        assert len(docstring.splitlines()[0]) <= 100, module_name(path)


def test_every_module_is_on_its_packages_map_and_the_map_names_no_other() -> None:
    found = {f"envs/{name}{end}" for name in games() for end in (".py", "/")}
    for folder in (*FOLDERS, *SUBFOLDERS, AGENTS, MAKING):
        tree = ast.parse((ROOT / folder / "__init__.py").read_text())
        names = MAP_LINE.findall(ast.get_docstring(tree, clean=False) or "")
        drawn = {f"{folder}/{name}" for name in names}
        there = {module_name(path) for path in PUBLIC if path.parent == ROOT / folder}
        there |= {f"{one}/" for one in SUBFOLDERS if Path(one).parent == Path(folder)}
        there.discard(f"{folder}/__init__.py")

        assert len(drawn) == len(names), folder
        assert drawn <= there <= drawn | found, folder
