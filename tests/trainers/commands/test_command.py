"""Behavior shared by all commands: parsing settings, Ctrl-C, help, and running coroutines."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import chz
import pytest
from tests.kit import Patch, Shown
from tests.trainers.kit import interrupt_in_finalizer

import evert
from evert.bridge.errors import AgentError, EvertError
from evert.trainers.config.arguments import UsageError, read_pairs, read_settings, settings_help
from evert.trainers.system.command import INTERRUPTED, run_async, run_command


@chz.chz
class Inner:
    """Nested settings."""

    depth: int
    width: int = 3


@chz.chz
class Settings:
    """The settings of a made-up command."""

    env: str = chz.field(default="", doc="game")
    steps: int = chz.field(default=3, doc="how many")
    rate: float = chz.field(default=1e-4, doc="how fast")
    loss: Literal["ppo", "cispo"] = chz.field(default="ppo", doc="which")
    words: tuple[str, ...] = chz.field(default=("a", "b"), doc="some")
    loud: bool = chz.field(default=False, doc="whether it is heard far beyond the end of " * 3)
    inner: Inner | None = chz.field(default=None, doc="a part")


def test_pairs_are_split_at_the_first_equals_sign_and_the_last_value_of_a_key_wins() -> None:
    pairs = read_pairs(["env=a=b", "steps=1", "steps=2", "inner.depth=1"], chz.chz_fields(Settings))
    assert pairs == {"env": "a=b", "steps": "2", "inner.depth": "1"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"steps": 2.5}, "steps takes an integer, got 2.5."),
        ({"loss": "mse"}, "loss takes ppo or cispo, got 'mse'."),
        ({"loud": "maybe"}, "loud takes True or False, got 'maybe'."),
        ({"words": 3}, "words takes a string, or several separated by commas, got 3."),
        ({"rate": float("inf")}, "rate must be a finite number, got inf."),
        ({"inner.depth": "deep"}, "inner.depth takes an integer, got 'deep'."),
        ({"inner.width": "1"}, "inner.depth must be set"),
        ({"inner.wide": "1"}, "no setting 'inner.wide' in inner. Did you mean 'inner.width'?"),
    ],
)
def test_a_wrong_value_shows_what_its_setting_accepts(given: Mapping[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_settings(Settings, given)
    assert said in str(refused.value)


def usage(arguments: list[str]) -> str:
    return "what there is to say about " + " ".join(arguments)


def fails(error: BaseException) -> Any:
    def body(arguments: list[str]) -> None:
        raise error

    return body


CAUSED = AgentError("my_agent raised KeyError.")
CAUSED.__cause__ = KeyError("the mistake")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UsageError("It is wrong."), "error: It is wrong."),
        (CAUSED, "KeyError: 'the mistake'\nerror: my_agent raised KeyError."),
        *(
            (OSError(number, os.strerror(number), "here/x"), f"error: here/x cannot be {said}")
            for number, said in (
                (errno.ENOSPC, "written to: No space left on device."),
                (errno.EACCES, "used: Permission denied. Restore it"),
                (errno.EISDIR, "used: Is a directory."),
                (errno.ENOTDIR, "used: Not a directory."),
            )
        ),
    ],
)
def test_an_error_is_one_line_with_its_notes_and_an_agents_error_has_its_location(
    error: BaseException, said: str, capsys: Shown
) -> None:
    error.add_note("To go on: do that")
    assert run_command(fails(error), [], usage) == 1
    shown, errors = capsys.readouterr()
    assert shown == ""
    assert said in errors
    assert errors.endswith("\nTo go on: do that\n")
    assert "Traceback" not in errors


def test_the_package_can_be_run_as_a_module() -> None:
    command = [sys.executable, "-m", "evert", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"evert {evert.__version__}\n"


def test_a_closed_output_pipe_is_not_an_error() -> None:
    code = "import sys; from evert.trainers.commands.train import main; sys.exit(main(['--help']))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_command_returns_its_exit_status_and_raises_unexpected_errors(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.chdir(tmp_path)
    assert run_command(lambda arguments: len(arguments), ["a", "b"], usage) == 2
    assert run_command(lambda arguments: None, [], usage) == 0
    assert str(tmp_path) in sys.path
    for unforeseen in (ZeroDivisionError(), FileNotFoundError(errno.ENOENT, "gone")):
        with pytest.raises(type(unforeseen)):  # shown with its traceback
            run_command(fails(unforeseen), [], usage)


STUBBORN = """
import asyncio, sys, time
from evert.trainers.system.command import run_async, run_command

def say(text):
    print(text, flush=True)

async def waits():
    try:
        say("begun")
        await asyncio.sleep(60)
    finally:
        say("saving")
        await asyncio.sleep(float(sys.argv[1]))
        say("saved")

def body(arguments):
    try:
        run_async(waits())
    except KeyboardInterrupt as stopped:
        stopped.add_note("To go on: again")
        raise

sys.exit(run_command(body, [], lambda arguments: ""))
"""


def stubborn(seconds: float) -> "subprocess.Popen[str]":
    """Start a command in a subprocess that takes this many seconds to clean up."""
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN, str(seconds)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_lets_a_command_clean_up_and_the_second_stops_it_immediately(
    number: signal.Signals,
) -> None:
    with stubborn(0.01) as process:
        process.send_signal(number)
        shown, errors = process.communicate(timeout=800)
    assert process.returncode == INTERRUPTED
    assert (shown, errors) == ("saving\nsaved\n\nTo go on: again\n", "")
    with stubborn(600) as process:
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == "saving\n"
        process.send_signal(number)
        shown, errors = process.communicate(timeout=800)
    assert process.returncode == INTERRUPTED
    assert (shown, errors) == ("", "")


def test_ctrl_c_during_exec_returns_the_status_of_an_interrupt(tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_text("""
import sys
from evert.trainers.system.command import run_command

def body(arguments):
    exec("raise KeyboardInterrupt")  # as it is raised inside of an import

sys.exit(run_command(body, [], str))
""")
    command = [sys.executable, "-m", "ours"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (INTERRUPTED, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_a_command_that_runs_no_event_loop(
    number: signal.Signals, capsys: Shown
) -> None:
    def body(arguments: list[str]) -> None:
        signal.raise_signal(number)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    before = signal.getsignal(signal.SIGTERM)
    assert run_command(body, [], usage) == INTERRUPTED
    assert signal.getsignal(signal.SIGTERM) == before
    assert capsys.readouterr() == ("\nInterrupted.\n", "")


def test_ctrl_c_in_a_finalizer_stops_the_command(capsys: Shown) -> None:
    def body(arguments: list[str]) -> None:
        interrupt_in_finalizer()
        for _ in range(6000):
            time.sleep(0.01)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert run_command(body, [], usage) == INTERRUPTED
    assert capsys.readouterr().out == "\nInterrupted.\n"


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_help_is_shown_wherever_it_appears_on_the_command_line(word: str, capsys: Shown) -> None:
    assert run_command(fails(AssertionError()), ["a=1", word], usage) == 0
    assert capsys.readouterr().out == "what there is to say about a=1\n"


def test_help_shows_each_setting_with_its_value_and_source(monkeypatch: Patch) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    presets = {"recipe identity": {"steps": 30, "env": "a-name-that-is-far-too-long-to-fit"}}
    lines = settings_help(Settings, {"rate": "0.5"}, presets).splitlines()
    pad = " " * 37
    assert lines[0] == "  env=a-name-that-is-far-too-long-to-fit"
    assert lines[1] == f"  {pad}game (from recipe identity)"
    assert lines[2] == "  steps=30" + " " * 29 + "how many (from recipe identity)"
    assert lines[3].endswith("how fast (from given)")
    assert "  words=a,b " in lines[5]
    assert all(len(line) <= 90 for line in lines)


async def refuses() -> None:
    await asyncio.sleep(0)
    raise EvertError(threading.current_thread().name)


def test_a_coroutine_runs_in_this_thread_except_in_a_notebook() -> None:
    with pytest.raises(EvertError, match=threading.current_thread().name):
        run_async(refuses())

    async def notebook() -> None:
        with pytest.raises(EvertError, match="^evert"):
            run_async(refuses())

    asyncio.run(notebook())


async def test_an_interrupted_notebook_waits_for_the_clean_up() -> None:
    cleaned: list[bool] = []

    async def waits() -> None:
        try:
            # Delayed, because the main thread is still busy starting this thread.
            threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(True)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_async(waits())
    finally:
        signal.signal(signal.SIGINT, before)
    assert cleaned == [True]


def test_a_file_in_the_current_folder_shadows_no_module_but_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "http.py").write_text("raise SystemExit('ran')")
    (tmp_path / "who.py").write_text("")
    code = """
import sys
from evert.trainers.system.command import run_command
for name in [name for name in sys.modules if name.partition(".")[0] == "http"]:
    del sys.modules[name]
def body(arguments):
    import http, who
run_command(body, [], lambda arguments: "")
print("fine")
"""
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("fine\n", 0), done.stderr
