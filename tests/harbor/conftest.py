"""``evert.harbor``, tested with Harbor itself and a scripted model.

    .frameworks/harbor/bin/python -m pytest tests/harbor --environment harbor

``frameworks/make_environment.py harbor`` creates the environment. Harbor is not installed in .venv,
so without ``--environment`` none of these tests is collected.
"""

import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

TASKS = Path(__file__).parent.parent.parent / "examples" / "harbor"
HERE = "harbor"

WARNINGS = (
    "Task.checksum will be deprecated:DeprecationWarning",
    "Items? .* using the `ReadOnly` qualifier:UserWarning",
)
"""Warnings from Harbor's own calls, and from a package that it imports."""


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("environment") == HERE:
        os.environ |= {"HARBOR_TELEMETRY": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        for theirs in WARNINGS:
            config.addinivalue_line("filterwarnings", f"ignore:{theirs}")


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return None if config.getoption("environment") == HERE else True


TYPED = "I have typed it."

HALF = {
    "count-lines": "grep -c sea poem.txt > count.txt",
    "fix-settings": "sed -i 's/^prot/port/' settings.conf",
    "merge-lists": "cat lists/* | sort -u > merged.txt",
    "rank-scores": "printf 'Fay\\nCleo\\nDan\\n' > top.txt",
    "rename-files": "mv photos/Lake.JPG photos/lake.jpg",
    "replace-address": "sed -i s,http://old.example,https://new.example, site/*",
    "search-log": "echo dog 7 > answer.txt",
    "sum-csv": "grep lamp sales.csv > total.txt",
    "tidy-folder": "find work -empty -delete",
    "unpack-notes": "zcat -f notes/* > found.txt",
}
"""Task -> a command line that partially solves it."""


def turn(*keys: str, done: bool = False) -> str:
    """Return a reply for terminus-2 that types lines or says that the task is done."""
    commands = [{"keystrokes": f"{line}\n", "duration": 0.3} for line in keys]
    said = {"analysis": TYPED if keys else "", "plan": "", "commands": commands}
    return json.dumps({**said, "task_complete": done})


def solution(task: Path) -> str:
    """Return the lines of a task's reference solution, without the shebang."""
    return (task / "solution" / "solve.sh").read_text().partition("\n")[2]


def wrong(task: Path) -> str:
    """Return a command line that writes a wrong result."""
    [artifact] = tomllib.loads((task / "task.toml").read_text())["artifacts"]
    return f"rm -rf {artifact}; echo wrong > {artifact}"


def instruction(task: Path) -> str:
    """Return the instruction of a task."""
    return (task / "instruction.md").read_text()


def typing(lines: Callable[[Path], str]) -> Callable[[str], str]:
    """Return a policy that types lines for the task, and then says and confirms that it is done."""

    def say(prompt: str) -> str:
        if TYPED in prompt:
            return turn(done=True)
        [task] = [task for task in TASKS.iterdir() if instruction(task) in prompt]
        return turn(*lines(task).splitlines())

    return say


def idler(prompt: str) -> str:
    """Say immediately that the task is done."""
    return turn(done=True)


solver = typing(solution)

SCRIPTS = {
    "right": solver,
    "half right": typing(lambda task: HALF[task.name]),
    "wrong": typing(wrong),
    "giving up": idler,
}
"""What the model replies in trials of terminus-2."""
