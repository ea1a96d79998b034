"""Plays each command in the table and checks that the trainer sees the expected result."""

import asyncio
import os
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.processes import marked
from tests import kit
from tests.faults import stalls
from tests.faults.commands import TABLE, Leaving
from tests.faults.scene import NOTHING, Inventory, is_as, settled
from tests.kit import Patch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux finds every descendant")

PATIENCE = 120
"""Timeout in seconds for playing a row."""


@pytest.fixture(autouse=True)
def _folders_are_our_own(tmp_path: Path, monkeypatch: Patch) -> None:
    """Use a separate temporary folder, so that concurrent tests' folders don't count."""
    (tmp_path / "episodes").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "episodes"))


@pytest.fixture(autouse=True, scope="module")
def _what_is_imported_lazily_is_there(tmp_path_factory: pytest.TempPathFactory) -> None:
    asyncio.run(TABLE[0].play(tmp_path_factory.mktemp("mine"), "no mark"))


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Path]:
    """Yield a user's folder, and check afterwards that the row did not change it."""
    folder = tmp_path / "user" / "mine"
    (folder / "inner").mkdir(parents=True)
    for name in ("mine", "number", "reward", "inner/deep"):
        (folder / name).write_text("0.25")
        (folder / name).chmod(0o640)
    folder.chmod(0o750)
    before = state(folder)
    yield folder
    assert state(folder) == before


def state(folder: Path) -> dict[str, tuple[int, str]]:
    everything = [folder, *folder.rglob("*")]
    return {
        str(path): (path.lstat().st_mode, path.read_text() if path.is_file() else "")
        for path in everything
    }


async def play(row: Leaving, mine: Path, mark: str) -> tuple[str, float, str]:
    """Play a row and return what the trainer saw, the longest stall, and the leftovers."""
    before = Inventory.now()
    async with stalls.watched() as stall:
        seen = await row.play(mine, mark)
    return seen, stall.longest, await settled(before, NOTHING)


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_a_command_cannot_harm_its_trainer(row: Leaving, mine: Path) -> None:
    if row.options.get("sandbox"):
        kit.needs_sandbox()
    mark = f"evert-test-{uuid.uuid4()}"
    with stalls.no_longer_than(PATIENCE):
        seen, stood_still, remains = asyncio.run(play(row, mine, mark))
    survivors = marked(mark)
    for process in survivors:
        process.kill()

    assert is_as(seen, row.sees), f"\n  saw      {seen:.2000}\n  expected {row.sees}"
    assert stood_still < stalls.LONGEST
    assert remains == NOTHING
    assert not survivors
    assert not os.listdir(tempfile.gettempdir())
