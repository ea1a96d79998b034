"""A mistyped name is answered before torch is imported: the import takes longer than the answer.

1. Each command line of a table ends with its message, and with nothing heavy imported.
2. What the Cookbook's source says of its fields is what its classes have.
3. Tasks that are none are said by the setting's name, before there is a folder.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import chz
import pytest
from rich.console import Console
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits
from tinker_cookbook.rl.train import Config

import evert
from evert.bridge.errors import InvalidDatasetError
from evert.trainers.config import names

LINES = {
    "train agent=missing:x": "train_tasks= is missing: got agent=missing:x alone.",
    "train train_tasks=mine:TASKS": "agent= is missing: got train_tasks=mine:TASKS alone.",
    "train agent=missing:x train_tasks=mine:TASKS": "No agent at 'missing:x'",
    "train agent=mine:agent train_tasks=mine:nothing": "No tasks at 'mine:nothing'",
    "train agent=mine:agent train_tasks=mine:EMPTY": "train_tasks=mine:EMPTY has no task;",
    "train agent=mine:agent train_tasks=mine:yields": "train_tasks=mine:yields is a function;",
    "train env=identity test_tasks=mine:EMPTY": "test_tasks=mine:EMPTY has no task;",
    "train env=identitty": "There is no game 'identitty'. Did you mean env=identity?",
    "train env=identity limits.maxturns=3": "Did you mean 'limits.max_turns'?",
    "train env=identity parse_error_policy.max=1": "There is no setting 'parse_error_policy.max'",
    "train env=identity cookbook.temprature=1": "There is no setting 'cookbook.temprature'. Did",
    "train env=twenty_questions sampler=evert:Curriculam": "No sampler at 'evert:Curriculam'",
    "train env=identity model_name=evert-tinny": "Did you mean evert-tiny?",
    "train env=identity models.user=runs/nothing": "There is no run and no model at 'runs/nothing'",
    "evaluate env=identity models=runs/nothing": "There is no run and no model at 'runs/nothing'",
    "evaluate env=identity models=evert-tiny limits.maxturns=3": "no setting 'limits.maxturns'",
    "evaluate env=identity models=evert-tiny models.user=runs/no": "no model at 'runs/no'",
    "evaluate agent=missing:x test_tasks=mine:TASKS models=evert-tiny": "No agent at 'missing:x'",
    "sweep env=identity limits.maxturns=3 seed=0,1": "There is no setting 'limits.maxturns'",
    "sweep env=identity model_name=evert-tinny seed=0,1": "Did you mean evert-tiny?",
    "serve model=runs/nothing": "There is no run and no model at 'runs/nothing'",
    "report runs/nothing": "There is no folder runs/nothing.",
    "rescore run=runs/nothing reward=mine:agent": "runs/nothing holds no rollouts.",
    "rescore run=. reward=missing:x": "No reward at 'missing:x'",
    "export run=runs/nothing": "runs/nothing holds no rollouts.",
    "engine plan modl=evert-tiny": "There is no setting 'modl'",
}
"""Command line -> what it prints, in part."""

MINE = """
TASKS = ["a", "b"]
EMPTY = []
def agent(client, task): ...
def yields():
    yield 1
"""

PROGRAM = """
import sys
from evert.trainers.cli import main
for line in sys.stdin.read().splitlines():
    assert main(line.split()) == 1, line
    heavy = {"torch", "transformers", "tinker"} & sys.modules.keys()
    assert not heavy, (line, heavy)
    print("---", file=sys.stderr)
"""


def test_a_mistyped_name_is_answered_before_torch_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    (tmp_path / "mine.py").write_text(MINE)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input="\n".join(LINES), capture_output=True, text=True, cwd=tmp_path, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers = done.stderr.split("---\n")[:-1]
    missing = [
        (line, answer)
        for (line, said), answer in zip(LINES.items(), answers, strict=True)
        if said not in answer or "Traceback" in answer
    ]
    assert not missing
    assert [each.name for each in tmp_path.iterdir() if each.is_dir()] in ([], ["__pycache__"])


@pytest.mark.parametrize(
    ("name", "kind"),
    [("limits", RolloutLimits), ("parse_error_policy", ParseErrorPolicy), ("cookbook", Config)],
)
def test_the_cookbooks_source_says_which_fields_there_are(name: str, kind: Any) -> None:
    assert names._fields(*names.FIELDS[name]) == [*chz.chz_fields(kind)]


@pytest.mark.parametrize(
    ("setting", "tasks", "said"),
    [
        ("train_tasks", [], "train_tasks has no task; expected at least one"),
        ("test_tasks", (), "test_tasks has no task; expected at least one"),
        ("train_tasks", iter("ab"), "train_tasks is a str.*iterator; expected a sequence"),
    ],
)
def test_tasks_from_python_are_named_by_their_setting(
    tmp_path: Path, setting: str, tasks: Any, said: str
) -> None:
    def agent(client: Any, task: str) -> float:
        return 0.0

    given = {"train_tasks": ["a"], setting: tasks}
    path = tmp_path / "run"
    with pytest.raises(InvalidDatasetError, match=said):
        evert.train(
            agent, given["train_tasks"], test_tasks=given.get("test_tasks"), log_path=path,
            console=Console(quiet=True),
        )  # fmt: skip
    assert not path.exists()
