"""Torn, invalid, missing or unreadable files in a run: commands continue, or name the file."""

import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.kit import Patch, Shown
from tests.nightly import IS_NIGHT
from tests.trainers.kit import copy_of

from evert.bridge.errors import EvertError
from evert.trainers.commands import train
from evert.trainers.config.model_names import find_model
from evert.trainers.episodes.failures import read_batches
from evert.trainers.reporting.run import read_run
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.sweeping.results import objective_of
from evert.trainers.system.files import drop_broken_lines, file_errors, read_jsonl, write_whole
from evert.trainers.training.resuming import open_run, prepare_folder
from evert.trainers.viewing.answers import Answers
from evert.trainers.viewing.incremental_index import indexed
from evert.trainers.viewing.report_page import saved_page

FILES = (
    "run.json", "before.json", "metrics.jsonl", "checkpoints.jsonl", "batches.jsonl",
    "config.json", "result.json", "timing_spans.jsonl", "wandb.json", "checkpoints",
)  # fmt: skip


def odd(value: Any) -> Any:
    return 3 if isinstance(value, str | dict | list) else "x"


def retyped(text: str) -> str:
    """Return JSON or JSON lines with every value replaced by one of a different type."""
    return "\n".join(
        json.dumps({key: odd(value) for key, value in json.loads(part).items()})
        for part in ([text] if text.startswith("{\n") else text.splitlines())
    )


DAMAGES: dict[str, Callable[[str], bytes]] = {
    "empty": lambda text: b"", "half": lambda text: text[: len(text) // 2].encode(),
    "a list": lambda text: b"[]", "a number": lambda text: b"3\n", "null": lambda text: b"null\n",
    "an empty object": lambda text: b"{}\n", "zeros": lambda text: b"\0" * 4096,
    "no text": lambda text: b"\xff\xfe\x80" * 9, "deep": lambda text: b"[" * 100_000,
    "other types": lambda text: retyped(text).encode(),
}  # fmt: skip


@contextmanager
def damaged(run: RunFolder, name: str, how: str) -> Iterator[Path]:
    """Yield a copy of the run in which one file is damaged."""
    place, user = Path(tempfile.mkdtemp()), os.geteuid()  # other users can't read pytest's folders
    try:
        path = copy_of(run, place / "run").path
        (path / "wandb.json").write_text('{"project": "p", "id": "i", "url": null}')
        file = path / name
        if how == "denied":
            deny(path, file)
        else:
            text = file.read_text() if file.is_file() else "{}"
            shutil.rmtree(file) if file.is_dir() else file.unlink()
            if how == "a folder":
                file.mkdir()
            elif how != "missing":
                file.write_bytes(DAMAGES[how](text))
        yield path
    finally:
        os.seteuid(user)
        shutil.rmtree(place)


def deny(path: Path, file: Path) -> None:
    """Make a file unreadable. As root, give the folder to another user and become that user."""
    file.chmod(0)
    if os.geteuid() == 0:
        for place in (path.parent, path, *path.rglob("*")):
            if place.suffix != ".safetensors":  # these are hard links
                os.chown(place, 65534, 65534)
        os.seteuid(65534)


def taken_up(path: Path) -> None:
    """Do everything that training does with a folder before its first step."""
    settings = train.parse([f"log_path={path}", "steps=4"])
    with open_run(settings, str) as folder:
        prepare_folder(folder, settings, (), "embedded", Console(quiet=True))
        read_batches(folder.path)
        done = folder.steps_done()
        assert done in (0, 2, 3)
        assert [row["step"] for row in folder.steps()] in ([], [*range(done)])


def reported(path: Path) -> None:
    """Read everything that a report reads."""
    read_run(path)
    with indexed([path]) as index:
        assert saved_page(Answers(index, {}), "", 0.5)


def named(path: Path) -> None:
    """Read everything that is needed to look up the run's weights."""
    assert find_model(str(path)).digests


def compared(path: Path) -> None:
    """Read everything that a sweep reads from a run."""
    objective_of(RunFolder(path), "held_out")


READERS = (taken_up, reported, named, compared)
ROWS = [*itertools.product(FILES, (*DAMAGES, "a folder", "missing", "denied"), READERS)]


@pytest.mark.parametrize("part", range(4))
def test_a_damaged_file_is_skipped_or_named_in_the_error(finished: RunFolder, part: int) -> None:
    with damaged(finished, "wandb.json", "missing") as path:
        READERS[part](path)  # this is not damage
    failed = []
    for name, how, reader in ROWS[part :: 4 if IS_NIGHT else 20]:
        with damaged(finished, name, how) as path:
            message = str(path)
            try:
                with file_errors(path, "folder"):
                    reader(path)
            except EvertError as error:
                message = str(error)
            except Exception as error:
                message = f"{error!r}\n"
            if "\n" in message or not (str(path) in message or "held_out" in message):
                failed.append((name, how, reader.__name__, message))
    assert not failed


@pytest.mark.parametrize(
    ("name", "how", "status"),
    [
        ("metrics.jsonl", "other types", 0),
        ("config.json", "a folder", 1),
        ("metrics.jsonl", "a folder", 1),
        *(("run.json", how, 1) for how in ("half", "a list", "an empty object", "other types")),
    ],
)
def test_training_continues_or_the_error_names_the_damaged_file(
    name: str, how: str, status: int, finished: RunFolder, capsys: Shown
) -> None:
    with damaged(finished, name, how) as path:
        assert train.main(["steps=4", f"log_path={path}"]) == status
        shown = capsys.readouterr().err
        assert "Traceback" not in shown
        assert not status or f"error: {path / name} cannot be " in shown


def test_a_broken_line_is_removed_but_kept_in_a_copy(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 0}\n{"step": 1\n{"step": "two"}\n\n{"step": 3}')
    assert drop_broken_lines(file) == 2
    assert file.read_text() == '{"step": 0}\n{"step": 3}\n'
    assert '{"step": "two"}' in file.with_suffix(".jsonl.broken").read_text()
    assert read_jsonl(file) == [{"step": 0}, {"step": 3}]
    assert drop_broken_lines(file) == drop_broken_lines(tmp_path / "missing.jsonl") == 0


def test_a_file_is_either_written_completely_or_not_at_all(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    file = tmp_path / "before.json"
    write_whole(file, b"old")

    def killed(handle: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
        patched.setattr(os, "fsync", killed)
        write_whole(file, b"new")
    assert file.read_bytes() == b"old"
    write_whole(file, b"new")
    assert file.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [file]
