"""A test that leaves something behind is the only one to fail, and its leftovers are cleaned up."""

import os
import subprocess
import sys
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]

TESTS = """
import asyncio, signal, subprocess, sys, threading
from pathlib import Path

import psutil
import pytest

DONE = threading.Event()


async def test_that_leaves_a_child_a_thread_and_a_task():
    child = subprocess.Popen(["sh", "-c", "while :; do sleep 0.05; done"])
    Path("children").write_text(f"{child.pid} ")
    threading.Thread(target=DONE.wait, name="stray").start()
    asyncio.get_running_loop().create_task(asyncio.sleep(600))


@pytest.mark.timeout(2)
def test_that_times_out_with_a_child():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with Path("children").open("a") as pids:
        pids.write(f"{child.pid} ")
    DONE.wait()


async def test_that_counts_children_and_tasks():
    assert not psutil.Process().children()
    assert len(asyncio.all_tasks()) == 1


def test_that_sends_a_child_the_signals_that_our_starter_ignores():
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        with subprocess.Popen(["sleep", "60"]) as child:
            child.send_signal(number)
            assert child.wait(30) == -number
    DONE.set()
"""

SETTINGS = """
[pytest]
asyncio_mode = auto
timeout = 60
"""


def test_leftovers_only_fail_the_test_that_left_them_and_are_cleaned_up(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    (tmp_path / "conftest.py").write_text("from tests import leftovers\n\nleftovers.PATIENCE = 1.0")
    # Ignore signals, as nohup or a shell's background job would.
    ignoring = "trap '' HUP INT QUIT TERM; exec \"$@\""
    run = [sys.executable, "-m", "pytest", "-p", "tests.leftovers", "-p", "no:cacheprovider", "-q"]
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}

    done = subprocess.run(
        ["sh", "-c", ignoring, "sh", *run, "-rA"],
        cwd=tmp_path,
        env={**outside, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=800,
    )

    report = done.stdout
    assert "ERROR test_some.py::test_that_leaves_a_child_a_thread_and_a_task" in report
    assert "The test left behind: process sh -c while" in report
    assert "thread stray" in report
    assert "FAILED test_some.py::test_that_times_out_with_a_child" in report
    assert "PASSED test_some.py::test_that_counts_children_and_tasks" in report
    assert "PASSED test_some.py::test_that_sends_a_child_the_signals" in report
    pids = [int(pid) for pid in (tmp_path / "children").read_text().split()]
    assert len(pids) == 2
    assert not any(map(psutil.pid_exists, pids)), report
