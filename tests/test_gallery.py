"""The gallery of public agents: its page matches the files."""

import ast
import json
import re
import shlex
from pathlib import Path

from tests.frameworks.conftest import PUBLIC
from tests.frameworks.gallery_table import GALLERY, PAGE, glue_lines, rows

from evert.trainers.commands import train

ROOT = Path(__file__).parent.parent
TABLE = rows()
PARTS = {"scoring", "broken_calculator"}
"""Files in the gallery that are not agents."""
FILES = sorted(path for path in GALLERY.glob("*.py") if path.stem not in PARTS)


def pins(environment: str) -> set[str]:
    """Return an environment's ``package==version`` lines, without extras."""
    folder = ROOT / "frameworks"
    if environment == "programs":
        npm = json.loads((folder / "package.json").read_text())["dependencies"]
        return {f"{name}=={version}" for name, version in npm.items()} | pins("aider")
    files = [folder / f"{environment}.txt", folder / "agents" / f"{environment}.txt"]
    text = "\n".join(file.read_text() for file in files if file.exists())
    return {re.sub(r"\[.*\]", "", line) for line in text.splitlines() if "==" in line}


def test_every_agent_has_a_row_and_is_played_in_the_environment_stated_there() -> None:
    played = {name: environment for environment, names in PUBLIC.items() for name in names}
    made = re.findall(r"make_environment\.py (\w+)", PAGE.read_text())

    assert sorted(TABLE) == [path.stem for path in FILES]
    assert len(FILES) >= 10
    assert played == {name: row["environment"] for name, row in TABLE.items()}
    assert set(made) <= {path.stem for path in (ROOT / "frameworks").glob("*.txt")}


def test_rows_match_their_files_glue_version_source_and_command() -> None:
    licence = r"\((MIT|Apache-2\.0|Anthropic's terms)\)"
    for path in FILES:
        row, text = TABLE[path.stem], path.read_text()
        head = ast.get_docstring(ast.parse(text)) or ""
        package, version = row["source, version"].partition(",")[0].split(" ")
        [word] = re.findall(r"unchanged|rebuil[dt]", head)
        [line] = re.findall(r"^    evert train (.*)$", head.replace("\\\n", " "), re.MULTILINE)
        words = shlex.split(line)
        imports_evert = re.search(r"^\s*(from|import) evert", text, re.MULTILINE)

        assert int(row["glue lines"]) == glue_lines(path) > 0, path.stem
        assert f"{package}=={version}" in pins(row["environment"]), path.stem
        assert ("rebuilt" in row["source, version"]) == (word != "unchanged"), path.stem
        assert re.search(rf"^Source: [\w-]+/[\w-]+.*?{licence}", head, re.M | re.S), path.stem
        assert words[0] == f"agent={path.stem}:agent"
        assert re.fullmatch(rf"train_tasks=({path.stem}|{'|'.join(PARTS)}):TASKS", words[1])
        assert train.parse(words), path.stem
        assert bool(imports_evert) == (path.stem in PUBLIC["programs"]), path.stem
