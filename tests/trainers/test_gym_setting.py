"""``gym=``: a run, or an evaluation, on an environment of Gymnasium's.

1. It is named by its id, with arguments by key, on the command line and from Python alike.
2. A run has the agent as an import path, so that it resumes and is evaluated.
3. A run is warmed up until its replies are actions, trains, and is gone on with.
"""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import evert
from evert.envs.games import GameError
from evert.trainers.config.evaluate import read_evaluate_settings
from evert.trainers.config.fields import RecipeError
from evert.trainers.config.train import read_train_settings, recorded

LAKE = {"gym": "FrozenLake-v1", "gym.is_slippery": "False", "gym.max_episode_steps": "6"}
AGENT = (
    "evert:GymAgent('FrozenLake-v1', illegal=-1.0, "
    "is_slippery=False, max_episode_steps=6, prompt='')"
)


def test_an_id_and_arguments_by_key_are_a_recipe() -> None:
    typed = read_train_settings({**LAKE, "steps": "3", "limits.max_tool_calls": "1"}, {})
    python = {"id": "FrozenLake-v1", "is_slippery": False, "max_episode_steps": 6}
    given = read_train_settings({"gym": python, "steps": 3, "limits": {"max_tool_calls": 1}}, {})

    for settings in (typed, given):
        assert settings.agent == AGENT
        assert settings.demonstrations == f"{AGENT}.demonstrations"
        assert settings.name == "FrozenLake-v1"
        assert settings.steps == 3
        assert settings.limits.keys() == {"max_turns", "max_tool_calls"}
    assert recorded(typed) == recorded(given) | {"limits": recorded(typed)["limits"]}


def test_a_run_that_is_gone_on_with_has_what_it_had() -> None:
    written = recorded(read_train_settings(LAKE, {}))
    before = {k: tuple(v) if isinstance(v, list) else v for k, v in written.items()}
    again = read_train_settings({"steps": "200"}, before)

    assert recorded(again) == {**written, "steps": 200}
    assert recorded(read_train_settings(LAKE, before)) == written


def test_an_evaluation_names_it_alike() -> None:
    settings = read_evaluate_settings({**LAKE, "models": "evert-tiny"})
    run = settings.run_of("")

    assert settings.agent_of(run) == AGENT
    assert settings.name == "FrozenLake-v1"
    assert [len(tasks) for tasks in settings.tasks_by_split().values()] == [200, 200]
    assert "max_turns" in settings.limits
    assert settings.run_of("Qwen/Qwen3-8B").agent == AGENT.replace(", prompt=''", "")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"env": "identity"}, "Got both env=identity and gym=FrozenLake-v1; expected one"),
        ({"agent": "a:b"}, "Got both gym=FrozenLake-v1 and agent=a:b; expected one of them. Leave"),
    ],
)
def test_it_is_named_beside_no_other(other: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        read_train_settings({**LAKE, **other}, {})


def test_an_id_that_there_is_not_is_said_before_anything_starts() -> None:
    with pytest.raises(GameError, match=r"gym=Taxy-v4 could not be made .* Did you mean: `Taxi`"):
        evert.train(gym="Taxy-v4")


def test_a_run_learns_to_reply_and_trains(tmp_path: Path) -> None:
    run = evert.train(
        gym={"id": "FrozenLake-v1", "is_slippery": False, "max_episode_steps": 3},
        console=Console(quiet=True),
        log_path=tmp_path / "run",
        test_tasks="",
        eval_every=0,
        batch_size=4,
        steps=2,
        warm_up_steps=12,
        warm_up_batch=16,
    )
    first = run.steps()[0]

    assert first["env/all/illegal"] < 0.5  # it never replied so before the warm-up
    assert first["env/all/turns_per_episode"] > 1
    resumed = evert.train(log_path=tmp_path / "run", steps=3, console=Console(quiet=True))
    assert len(resumed.steps()) == 3
