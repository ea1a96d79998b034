"""The table in docs/gallery.md that lists the files of examples/gallery."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
GALLERY = ROOT / "examples" / "gallery"
PAGE = ROOT / "docs" / "gallery.md"
SECTION = re.compile(r"^# -- glue -+\n(.*)\Z", re.MULTILINE | re.DOTALL)


def rows() -> dict[str, dict[str, str]]:
    """Return every row whose first cell is a file name: ``file.py``."""
    titles: list[str] = []
    found = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| agent |"):
            titles = cells
        elif name := re.fullmatch(r"`(\w+)\.py`", cells[0]):
            found[name[1]] = dict(zip(titles, cells, strict=True))
    return found


def glue_lines(path: Path) -> int:
    """Count the lines of glue between agent and evert, without blank lines, docstrings or comments.

    Imports are not counted, because they belong to the agent: no agent imports evert.
    """
    text = path.read_text()
    section = SECTION.search(text)
    begin = text[: section.start(1)].count("\n") + 1 if section else text.count("\n") + 1
    lines = {number: line.strip() for number, line in enumerate(text.splitlines(), 1)}
    written = {number for number, line in lines.items() if line and not line.startswith("#")}
    inside = {number for number in written if number >= begin} - docstring_lines(text)
    marked = {number for number in written if "  # glue" in lines[number]}
    return len(inside | marked)


def docstring_lines(text: str) -> set[int]:
    """Return the numbers of the lines that are part of docstrings."""
    homes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, homes) and ast.get_docstring(node) is not None:
            first = node.body[0]
            found |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return found
