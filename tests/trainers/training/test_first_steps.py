"""Warnings about settings that cannot learn or are almost certainly a mistake."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.kit import ask

import evert
from evert.trainers.config.train import TrainSettings
from evert.trainers.training.first_steps import FirstSteps, slips

CUT, MIXED = "env/all/stop/length", "env/all/by_group/frac_mixed"


def settings(**values: Any) -> TrainSettings:
    return TrainSettings(agent="my:agent", train_tasks="my:TASKS", **values)


@pytest.mark.parametrize(
    ("values", "tasks", "pattern"),
    [
        ({}, {}, None),
        ({"group_size": 1}, {}, "nothing can be learned with group_size=1"),
        ({"group_size": 1, "cookbook": {"dataset_builder.gamma": 0.9}}, {}, None),
        ({"batch_size": 100}, {}, None),
        ({"batch_size": 101}, {}, "batch_size=101 is larger than the number of tasks.* all 100"),
        ({"batch_size": 101, "sampler": "evert:Curriculum"}, {}, None),
        ({"max_tokens": 1}, {}, "max_tokens=1 truncates all rep"),
        ({"batch_size": 2}, {"train_tasks": "hello"}, "train_tasks is a string .'hello'., so ever"),
        ({}, {"test_tasks": "hello"}, "test_tasks is a string .'hello'."),
    ],
)
def test_a_likely_mistake_in_the_settings_is_found_before_the_first_step(
    values: dict[str, Any], tasks: dict[str, Any], pattern: str | None
) -> None:
    texts = slips(settings(**values), {"train_tasks": range(100), **tasks})
    assert len(texts) == (pattern is not None)
    assert all(re.match(str(pattern), text) for text in texts)


def row(step: int, **metrics: float) -> dict[str, Any]:
    return {"step": step, "progress/done_frac": 0.1, **metrics}


@pytest.mark.parametrize(
    ("values", "rows", "patterns"),
    [
        ({}, [{CUT: 1.0, MIXED: 0.5}, {CUT: 1.0, MIXED: 0.0}], ["All replies in step 1 were tru"]),
        ({}, [{CUT: 0.9, MIXED: 0.0}, {CUT: 1.0, MIXED: 0.5}], ["All replies in step 2 were tru"]),
        ({}, [{CUT: 0.9, MIXED: 0.0}, {CUT: 0.9, MIXED: 0.0}, {}], ["In the first two steps"]),
        ({}, [{MIXED: 0.1}, {MIXED: 0.1}, {CUT: 1.0, MIXED: 0.0}], []),
        ({"group_size": 1, "max_tokens": 1}, 2 * [{CUT: 1.0, MIXED: 0.0}], []),  # warned earlier
    ],
)
def test_truncated_replies_and_equal_rewards_in_the_first_two_steps_give_a_warning(
    values: dict[str, Any], rows: list[dict[str, float]], patterns: list[str]
) -> None:
    texts = list[str]()
    first = FirstSteps(settings(**values), texts.append)
    for step, metrics in enumerate(rows):
        first.check_row(row(step, **metrics))
    assert len(texts) == len(patterns)
    assert all(map(re.match, patterns, texts))


def test_a_warning_is_shown_and_logged_once_even_if_the_run_is_resumed(tmp_path: Path) -> None:
    async def agent(client: Any, task: str) -> float:
        await ask(client, f"Let's play a game. Say you are {task}.")
        return 1.0

    shown = io.StringIO()
    options: dict[str, Any] = {
        "test_tasks": ["c"], "batch_size": 3, "group_size": 2, "max_tokens": 2, "eval_every": 0,
        "log_path": str(tmp_path / "run"), "console": Console(file=shown), "device": "cpu",
    }  # fmt: skip
    for steps in (2, 3):
        evert.train(agent, ["a", "b"], steps=steps, **options)
    log = (tmp_path / "run" / "logs.log").read_text()
    for text in (
        "batch_size=3 is larger than the number of tasks",
        "All replies on the held-out tasks were truncated at max_tokens=2",
        "In the first two steps, all rewards within each group were equal",
    ):
        where = shown.getvalue().count(f"warning: {text}"), log.count(f"[WARNING] {text}")
        assert where == (1, 1), text
    assert shown.getvalue().count("warning: ") == 3
