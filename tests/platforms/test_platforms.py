"""evert's commands on simulated macOS and Windows.

Each test starts processes with the simulation (``simulation.py``). ``make mac`` runs these tests,
and the bridge's tests on simulated macOS.
"""

import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from tests.nightly import each
from tests.trainers.kit import COMMANDS

HERE = Path(__file__).parent
TINY = ["env=identity", "batch_size=2", "group_size=2", "eval_every=0"]
SHORT = ["train", *TINY, "steps=1"]


def variables(platform: str) -> dict[str, str]:
    """Return the environment variables for a process on this platform."""
    ours = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE / platform), "TINKER_API_KEY": ""}
    return os.environ | ours


def python(platform: str, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run Python on this platform."""
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=variables(platform), cwd=folder, capture_output=True, text=True, check=False
    )


def evert(platform: str, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run an evert command on this platform."""
    return python(platform, folder, "-m", "evert", *arguments)


@pytest.mark.parametrize("platform", each(["darwin", "win32"], ["win32"]))
def test_a_run_can_be_trained_evaluated_and_viewed(platform: str, tmp_path: Path) -> None:
    lines = (
        " ".join([*SHORT, "log_path=run"]),
        "evaluate env=identity models=run max_tasks=1 seeds=1",
        "report run",
    )
    commands = python(platform, tmp_path, "-c", COMMANDS, *lines)
    assert (commands.returncode, commands.stderr) == (0, ""), commands.stdout
    assert re.findall(r"(\w+) ended with 0", commands.stdout) == ["train", "evaluate", "report"]
    view = [sys.executable, "-m", "evert", "view", "run"]
    with subprocess.Popen(
        view, env=variables(platform), cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as viewer:
        assert viewer.stdout is not None
        address = next(filter(None, (re.search(r"http://\S+", line) for line in viewer.stdout)))
        with urllib.request.urlopen(address.group()) as page:
            assert page.status == 200
        viewer.terminate()


@pytest.mark.nightly
def test_pools_and_sweeps_work_on_a_mac(tmp_path: Path) -> None:
    pooled = evert("darwin", tmp_path, *SHORT, "rollouts=pool", "rollout_workers=1")
    assert pooled.returncode == 0, pooled.stderr
    swept = evert("darwin", tmp_path, "sweep", *TINY, "steps=1", "seed=0,1", "out=sweep")
    assert swept.returncode == 0, swept.stdout + swept.stderr


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["sweep", "env=identity", "seed=0,1"], "evert sweep"),
        ([*SHORT, "rollouts=pool"], "rollouts=pool"),
    ],
)
def test_the_error_on_windows_names_the_feature_that_needs_unix(
    arguments: list[str], name: str, tmp_path: Path
) -> None:
    refused = evert("win32", tmp_path, *arguments)
    assert refused.returncode == 1
    assert f"error: {name} needs Linux or macOS" in refused.stdout + refused.stderr


SANDBOXED = """
from evert.agents.sandboxed import is_sandboxed
is_sandboxed(True, "127.0.0.1")
"""


@pytest.mark.parametrize(
    ("platform", "code", "sentence"),
    [
        ("win32", "from evert import ProcessAgent", "needs Linux or macOS"),
        ("win32", "from evert.agents import codex", "evert.agents.codex needs Linux or macOS"),
        ("win32", "from evert import CookbookAgent", ""),
        ("darwin", SANDBOXED, "sandbox=False to run the command as your user"),
    ],
)
def test_unsupported_commands_and_sandboxes_fail_with_a_one_sentence_error(
    platform: str, code: str, sentence: str, tmp_path: Path
) -> None:
    ended = python(platform, tmp_path, "-c", code)
    assert sentence in ended.stderr.rpartition("Error: ")[2]
    assert bool(ended.returncode) == bool(sentence), ended.stderr
