"""A run's files, torn, odd, missing or not to be read: a command goes on, or says which file it is.

1. Whatever became of any file, taking a run up, reporting on it and naming its weights either does
   what can be done or raises an error of ours that names the file.
2. The whole command does the same, without a traceback.
3. Nothing but our own files is ever changed, and a broken line is kept in a copy.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from evert.bridge.errors import EvertError
from evert.trainers.commands import train
from evert.trainers.config.model_names import find_model
from evert.trainers.episodes.failures import read_batches
from evert.trainers.reporting.run import read_run
from evert.trainers.reporting.tokens import count_tokens
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.sweeping.results import objective_of
from evert.trainers.system.files import drop_broken_lines, file_errors, read_jsonl, write_whole
from evert.trainers.training.resuming import open_run, take_up

TINY = ["env=identity", "device=cpu", "batch_size=1", "group_size=2", "eval_every=0", "samples=1"]
FILES = (
    "run.json", "before.json", "metrics.jsonl", "checkpoints.jsonl", "batches.jsonl",
    "config.json", "result.json", "timing_spans.jsonl", "wandb.json", "checkpoints",
)  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run of one step, which another may follow."""
    path = tmp_path_factory.mktemp("done") / "run"
    key = os.environ.pop("TINKER_API_KEY", None)
    assert train.main([*TINY, "steps=1", "save_every=1", f"log_path={path}"]) == 0
    (path / "wandb.json").write_text('{"project": "p", "id": "i", "url": null}')
    yield path
    if key is not None:
        os.environ["TINKER_API_KEY"] = key


def odd(value: Any) -> Any:
    """A value of another type."""
    return 3 if isinstance(value, str | dict | list) else "x"


def retyped(text: str) -> str:
    """JSON, or JSON lines, with every value of another type."""
    return "\n".join(
        json.dumps({key: odd(value) for key, value in json.loads(part).items()})
        for part in ([text] if text.startswith("{\n") else text.splitlines())
    )


DAMAGES: dict[str, Callable[[str], bytes]] = {
    "empty": lambda text: b"",
    "half": lambda text: text[: len(text) // 2].encode(),
    "a list": lambda text: b"[]",
    "a number": lambda text: b"3\n",
    "null": lambda text: b"null\n",
    "an empty object": lambda text: b"{}\n",
    "zeros": lambda text: b"\0" * 4096,
    "no text": lambda text: b"\xff\xfe\x80" * 9,
    "deep": lambda text: b"[" * 100_000,
    "other types": lambda text: retyped(text).encode(),
}


@pytest.fixture
def damaged(done: Path) -> Iterator[Callable[[str, str], Path]]:
    """Copies the run and damages one of its files."""
    place, user = Path(tempfile.mkdtemp()), os.geteuid()  # pytest's own are for their owner alone
    path = place / "run"

    def damage(name: str, how: str) -> Path:
        file = shutil.copytree(done, path, copy_function=os.link) / name
        if how == "denied":
            deny(path, file)
            return path
        text = file.read_text() if file.is_file() else "{}"
        shutil.rmtree(file) if file.is_dir() else file.unlink()
        if how == "a folder":
            file.mkdir()
        elif how != "missing":
            file.write_bytes(DAMAGES[how](text))
        return path

    yield damage
    os.seteuid(user)
    shutil.rmtree(place)


def deny(path: Path, file: Path) -> None:
    """Have nobody read a file; root gives the folder away and becomes somebody else."""
    if file.is_file():
        content = file.read_bytes()
        file.unlink()  # it is linked
        file.write_bytes(content)
    file.chmod(0)
    if os.geteuid() == 0:
        for each in (path.parent, path, *path.rglob("*")):
            os.chown(each, 65534, 65534)
        os.seteuid(65534)


# -- 1. every file, every damage -----------------------------------------------------------------


def taken_up(path: Path) -> None:
    """What training does with a folder before its first step."""
    settings = train.parse([f"log_path={path}", "steps=2"])
    with open_run(settings, str) as folder:
        take_up(folder, settings, (), "embedded", Console(quiet=True))
        read_batches(folder.path)
        assert [row["step"] for row in folder.steps()] in ([], [0])
        assert folder.steps_done() in (0, 1)


def reported(path: Path) -> None:
    """What a report reads."""
    count_tokens(read_run(path))


def named(path: Path) -> None:
    """What naming its weights reads."""
    assert find_model(str(path)).digests  # type: ignore[union-attr]


def compared(path: Path) -> None:
    """What a sweep reads of it."""
    objective_of(RunFolder(path, resumed=True), "held_out")


@pytest.mark.parametrize("reader", [taken_up, reported, named, compared])
@pytest.mark.parametrize("how", [*DAMAGES, "a folder", "missing", "denied"])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_gone_behind_or_named(
    damaged: Callable[[str, str], Path], name: str, how: str, reader: Callable[[Path], None]
) -> None:
    path = damaged(name, how)
    said = str(path)
    try:
        with file_errors(path, "folder"):
            reader(path)
    except EvertError as error:
        said = str(error)
    assert str(path) in said or "held_out" in said
    assert "\n" not in said


def test_an_undamaged_run_is_taken_up_reported_named_and_compared(
    damaged: Callable[[str, str], Path],
) -> None:
    path = damaged("wandb.json", "missing")
    for reader in (taken_up, reported, named, compared):
        reader(path)


# -- 2. the whole command ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "how", "status"),
    [
        ("metrics.jsonl", "other types", 0),
        ("batches.jsonl", "zeros", 0),
        ("config.json", "a folder", 1),
        ("metrics.jsonl", "a folder", 1),
        ("run.json", "half", 1),
    ],
)
def test_the_command_goes_on_or_names_the_file(
    damaged: Callable[[str, str], Path],
    name: str,
    how: str,
    status: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = damaged(name, how)
    assert train.main([*TINY, "steps=2", "save_every=1", f"log_path={path}"]) == status
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    if status:
        assert f"error: {path / name} cannot be " in shown


# -- 3. what is kept -----------------------------------------------------------------------------


def test_a_broken_line_is_taken_out_and_a_copy_keeps_it(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 0}\n{"step": 1\n{"step": "two"}\n\n{"step": 3}')
    assert drop_broken_lines(file) == 2
    assert file.read_text() == '{"step": 0}\n{"step": 3}\n'
    assert '{"step": "two"}' in file.with_suffix(".jsonl.broken").read_text()
    assert drop_broken_lines(file) == 0


def test_a_last_line_gets_its_end(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 0}')
    assert drop_broken_lines(file) == 0
    assert file.read_text() == '{"step": 0}\n'
    assert read_jsonl(file) == [{"step": 0}]


def test_a_file_is_written_whole_or_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
