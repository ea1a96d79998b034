"""The gallery of public agents: what its page says is what there is.

1. Every agent's file has its row, and every row its file; the environment is the one that plays it.
2. Source, version and glue lines of a row are those of the file and of the requirement files.
3. Every file says where its agent is from, and by what command it is trained.

That the agents play and train is tested where their frameworks are (``tests/frameworks``).
"""

import ast
import json
import re
import shlex
from pathlib import Path

import pytest
from tests.frameworks.conftest import PUBLIC
from tests.frameworks.gallery_table import GALLERY, PAGE, glue_lines, rows

from evert.trainers.commands import train

ROOT = Path(__file__).parent.parent
TABLE = rows()
PARTS = {"scoring", "broken_calculator"}
"""Files of the gallery that are no agent."""
FILES = sorted(path for path in GALLERY.glob("*.py") if path.stem not in PARTS)


def name_of(path: Path) -> str:
    return path.stem


def pins(environment: str) -> set[str]:
    """The lines ``package==version`` of an environment, extras left out."""
    folder = ROOT / "frameworks"
    if environment == "programs":
        npm = json.loads((folder / "package.json").read_text())["dependencies"]
        return {f"{name}=={version}" for name, version in npm.items()} | pins("aider")
    files = [folder / f"{environment}.txt", folder / "agents" / f"{environment}.txt"]
    text = "\n".join(file.read_text() for file in files if file.exists())
    return {re.sub(r"\[.*\]", "", line) for line in text.splitlines() if "==" in line}


# -- 1. rows and files ---------------------------------------------------------------------------


def test_every_agent_has_a_row_and_every_row_an_agent() -> None:
    assert sorted(TABLE) == [path.stem for path in FILES]
    assert len(FILES) >= 10


def test_every_agent_is_played_in_the_environment_of_its_row() -> None:
    played = {name: environment for environment, names in PUBLIC.items() for name in names}

    assert played == {name: row["environment"] for name, row in TABLE.items()}


# -- 2. what a row says --------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_the_glue_lines_are_counted(path: Path) -> None:
    assert int(TABLE[path.stem]["glue lines"]) == glue_lines(path) > 0


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_the_version_is_the_one_that_is_installed(path: Path) -> None:
    row = TABLE[path.stem]
    package, version = row["source, version"].partition(",")[0].split(" ")

    assert f"{package}=={version}" in pins(row["environment"])


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_row_says_rebuilt_where_the_file_does(path: Path) -> None:
    head = ast.get_docstring(ast.parse(path.read_text())) or ""
    [word] = re.findall(r"unchanged|rebuil[dt]", head)

    assert ("rebuilt" in TABLE[path.stem]["source, version"]) == (word != "unchanged")


def test_glue_is_counted_without_blank_lines_comments_and_docstrings(tmp_path: Path) -> None:
    file = tmp_path / "some_agent.py"
    file.write_text(
        '"""An agent."""\n\nimport os\n\nKEY = 1  # glue: a key\nTASKS = []\n\n'
        '# -- glue ------\n\n\ndef agent(task):\n    """Play.\n\n    Longer.\n    """\n'
        "    # why\n    return 1.0\n"
    )

    assert glue_lines(file) == 3


# -- 3. what a file says -------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_says_where_its_agent_is_from(path: Path) -> None:
    head = ast.get_docstring(ast.parse(path.read_text())) or ""

    licence = r"\((MIT|Apache-2\.0|Anthropic's terms)\)"
    assert re.search(rf"^Source: [\w-]+/[\w-]+.*?{licence}", head, re.M | re.S)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_the_command_at_the_top_of_a_file_is_one_that_evert_reads(path: Path) -> None:
    head = ast.get_docstring(ast.parse(path.read_text())) or ""
    [line] = re.findall(r"^    evert train (.*)$", head.replace("\\\n", " "), re.MULTILINE)
    words = shlex.split(line)

    assert words[0] == f"agent={path.stem}:agent"
    assert re.fullmatch(rf"train_tasks=({path.stem}|{'|'.join(PARTS)}):TASKS", words[1])
    assert train.parse(words)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_only_the_programs_need_evert_itself(path: Path) -> None:
    imports_evert = (
        re.search(r"^\s*(from|import) evert", path.read_text(), re.MULTILINE) is not None
    )

    assert imports_evert == (path.stem in PUBLIC["programs"])


def test_the_page_is_about_the_environments_there_are() -> None:
    made = re.findall(r"make_environment\.py (\w+)", PAGE.read_text())

    assert set(made) <= {path.stem for path in (ROOT / "frameworks").glob("*.txt")}
