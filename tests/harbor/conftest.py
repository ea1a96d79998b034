"""``evert.harbor``, with Harbor itself and a script for the model.

    .frameworks/harbor/bin/python -m pytest tests/harbor --environment harbor

``frameworks/make_environment.py harbor`` makes the environment. Without ``--environment`` nothing
here is collected: Harbor is not in .venv.
"""

import json
import os
from pathlib import Path

import pytest

TASKS = Path(__file__).parent.parent.parent / "examples" / "harbor"
HERE = "harbor"

WARNINGS = (
    "Task.checksum will be deprecated:DeprecationWarning",
    "Items? .* using the `ReadOnly` qualifier:UserWarning",
)
"""Of Harbor's own calls, and of a package that it loads."""


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("environment") == HERE:
        os.environ |= {"HARBOR_TELEMETRY": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        for theirs in WARNINGS:
            config.addinivalue_line("filterwarnings", f"ignore:{theirs}")


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return None if config.getoption("environment") == HERE else True


def turn(*keys: str, done: bool = False) -> str:
    """What terminus-2 is told: lines to type, or that the task is done."""
    commands = [{"keystrokes": f"{line}\n", "duration": 0.3} for line in keys]
    return json.dumps({"analysis": "", "plan": "", "commands": commands, "task_complete": done})


def solution(task: Path) -> str:
    """The lines of a task's own solution, without the shebang."""
    return (task / "solution" / "solve.sh").read_text().partition("\n")[2]


def instruction(task: Path) -> str:
    """What a task's agent is told."""
    return (task / "instruction.md").read_text()


def solver(prompt: str) -> str:
    """Types the task's solution, says that it is done, and says so again when asked."""
    [task] = [task for task in TASKS.iterdir() if instruction(task) in prompt]
    lines = solution(task).splitlines()
    return turn(done=True) if lines[0] in prompt else turn(*lines)


def idler(prompt: str) -> str:
    """Is done at once."""
    return turn(done=True)
