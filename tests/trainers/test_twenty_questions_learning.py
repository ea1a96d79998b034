"""RL makes the base ask: the learning of Twenty Questions in its shortest form.

One question a game, rewarded by the bits that it tells. The base asks by many habits, most of them
poor; a few steps single out the good ones. The whole experiment is ``benchmarks/learning.py``.
"""

from pathlib import Path

import pytest
from rich.console import Console

from evert.bridge.clients.client import AgentClient
from evert.envs.twenty_questions.game import Game, Rules
from evert.envs.twenty_questions.measures import measures
from evert.envs.twenty_questions.player import (
    TEST_TASKS,
    TRAIN_TASKS,
    Task,
    TwentyQuestions,
    noun_of,
)
from evert.trainers.commands.train import train

ONE = Rules(max_questions=1, show_category=False)


async def first_question(client: AgentClient, task: Task) -> float:
    """Ask one question; what it tells, in bits."""
    game = await TwentyQuestions(rules=ONE, style="short").play(client, Game(noun_of(task), ONE))
    found = measures(game)
    client.metric("asks_first", found["asks_first"])
    return found["bits"]


@pytest.mark.nightly
def test_a_few_steps_of_rl_make_the_base_ask_what_tells_most(tmp_path: Path) -> None:
    run = train(
        first_question,
        TRAIN_TASKS,
        test_tasks=TEST_TASKS,
        model_name="evert-tiny-20q",
        steps=8,
        batch_size=16,
        group_size=16,
        learning_rate=2e-3,
        max_tokens=24,
        eval_every=0,
        save_every=0,
        samples=0,
        test_group_size=2,
        device="cpu",
        log_path=str(tmp_path / "run"),
        console=Console(quiet=True),
    )
    held_out = run.result["held_out"]
    before, after = (held_out[when]["temperature_1"]["reward"] for when in ("before", "after"))

    assert before < 0.75  # the best question tells 1.27 bits
    assert after > before + 0.2
    assert run.steps()[-1]["env/all/asks_first"] > 0.9
