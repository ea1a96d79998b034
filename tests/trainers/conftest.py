"""Fixtures: a finished run and a tiny random chat model (once per session), in-process commands."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.kit import Shown
from tests.trainers.kit import (
    FINISHED,
    Cli,
    copy_of,
    environment,
    make_model,
    make_tokenizer,
)

from evert.trainers.cli import main
from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.embedded import embedded_engine
from evert.trainers.rundir.folder import RunFolder

NO_SOCKETS = """
import runpy, socket, sys

def refuse(self, address, *rest):
    raise SystemExit(f"a socket was opened to {address}")

socket.socket.connect = socket.socket.connect_ex = refuse
sys.argv = ["evert", "train", *sys.argv[1:]]
runpy.run_module("evert.trainers.cli", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Restore the signal handlers, because an interrupted command does not reset them."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Run the training command in a subprocess that opens no socket; tests must not change the run.

    All workers of a session share the run. Its output is saved next to its ``runs`` folder.
    """
    base = tmp_path_factory.getbasetemp()
    home = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "finished"
    home.mkdir(exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "runs").exists():
            with (home / "stdout").open("w") as shown, (home / "stderr").open("w") as errors:
                command = [sys.executable, "-c", NO_SOCKETS, *FINISHED]
                subprocess.run(command, cwd=home, env=environment(), stdout=shown, stderr=errors)
    assert (home / "runs").exists(), (home / "stderr").read_text()
    (path,) = (home / "runs").iterdir()
    return RunFolder(path)


@pytest.fixture
def copied(finished: RunFolder, tmp_path: Path) -> RunFolder:
    """Return a copy of the finished run that a test may change."""
    return copy_of(finished, tmp_path / "copy")


@pytest.fixture
def cli(capsys: Shown) -> Cli:
    """Return a function that runs ``evert`` in this process and returns its output.

    If ``status`` is not 0, the function returns the error output instead. Only the function's first
    argument is split at spaces.
    """

    def run(line: str, *words: str, status: int = 0) -> str:
        assert main([*line.split(), *words]) == status
        shown = capsys.readouterr()
        return shown.err if status else shown.out

    return run


@pytest.fixture(scope="session", autouse=True)
def _alone() -> Iterator[None]:
    """Remove API keys, and use one thread: tiny operations gain nothing from more threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TINKER_API_KEY", raising=False)
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Create a random Qwen3 model with a byte-level chat tokenizer of 262 tokens."""
    folder = tmp_path_factory.mktemp("tiny-model")
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    make_model(len(tokenizer), tokenizer.eos_token_id).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """Use the embedded engine with a fresh store."""
    with embedded_engine(tmp_path / "store", device="cpu") as running:
        yield running
