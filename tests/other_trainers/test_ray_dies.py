"""The Ray node on the trainer's machine dies. Tested in a separate process."""

import subprocess
import sys
from pathlib import Path

import pytest

NODE_DIES = """
import asyncio, psutil, sys, types
tests = types.ModuleType("tests"); tests.__path__ = [sys.argv[1]]; sys.modules["tests"] = tests
from evert.ray import RayRollouts
from evert.trainers.workers import actors
from tests.trainers.workers.conftest import play, says_task

async def main():
    actors.PATIENCE = 5.0
    with RayRollouts(1, 2) as executor:
        await play(executor, says_task())
        for process in psutil.Process().children(recursive=True):
            if "raylet" in process.name():
                process.kill()
        while True:
            await play(executor, says_task())
            await asyncio.sleep(0.5)

asyncio.run(main())
"""


@pytest.mark.nightly  # takes a minute, mostly waiting
def test_a_run_ends_with_a_clear_error_when_rays_node_dies() -> None:
    tests = str(Path(__file__).parent.parent)
    run = subprocess.run(
        [sys.executable, "-c", NODE_DIES, tests],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )

    assert run.returncode == 1
    assert "WorkerError: The Ray node on this machine has died" in run.stderr.splitlines()[-1]
