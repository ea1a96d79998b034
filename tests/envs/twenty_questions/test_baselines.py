"""Players without a model: an oracle that finds every noun, and a seeded random player."""

import re
from typing import Any

import pytest
from tests.kit import play, reward
from tinker_cookbook.rl.types import Trajectory

from evert import ScriptedPolicy
from evert.envs.twenty_questions.answerers import NOT_UNDERSTOOD
from evert.envs.twenty_questions.baselines import (
    OraclePlayer,
    oracle_agent,
    random_agent,
    shown_oracle_agent,
    shown_random_agent,
)
from evert.envs.twenty_questions.baselines import play as play_game
from evert.envs.twenty_questions.game import Answer, QuestionGame, Rules
from evert.envs.twenty_questions.information import guess
from evert.envs.twenty_questions.nouns import shipped_nouns
from evert.envs.twenty_questions.player import TEST_TASKS
from evert.envs.twenty_questions.understanding.lexicon import load_lexicon

NOUNS = shipped_nouns()
BLIND = Rules(show_category=False)


@pytest.mark.parametrize(("rules", "most"), [(Rules(), 8), (BLIND, 13)])
def test_the_oracle_finds_every_noun(rules: Any, most: int) -> None:
    oracle = OraclePlayer()
    games = [play_game(oracle, noun, rules) for noun in NOUNS]

    assert [game.noun.answer for game in games if not game.won] == []
    assert max(len(game.turns) for game in games) <= most
    assert not any(turn.answer is NOT_UNDERSTOOD for game in games for turn in game.turns)


async def test_the_oracle_asks_about_the_remaining_nouns() -> None:
    game = QuestionGame(NOUNS[0])
    for other in NOUNS:
        if other.category == NOUNS[0].category and other != NOUNS[0]:
            game.record(guess(other.answer), Answer("no"))
    assert OraclePlayer().question(game) == guess(NOUNS[0].answer)
    game.record(guess(NOUNS[0].answer), Answer("no"))
    assert OraclePlayer().question(game) in load_lexicon().questions.values()  # no noun is left


async def play_alone(agent: Any, task: Any = TEST_TASKS[0]) -> Trajectory:
    policy = ScriptedPolicy([])
    trajectory = await play(agent, policy, task=task)

    assert policy.actions == []
    return trajectory


@pytest.mark.parametrize(("agent", "most"), [(oracle_agent, 13), (shown_oracle_agent, 8)])
@pytest.mark.parametrize("task", TEST_TASKS[::20])
async def test_the_oracle_is_an_agent_that_calls_no_model(task: Any, agent: Any, most: int) -> None:
    trajectory = await play_alone(agent(0), task)
    (only,) = trajectory.transitions

    assert reward(trajectory) == 1.0
    assert only.metrics["questions"] <= most
    assert only.metrics["bits_of_best"] == pytest.approx(1.0)
    assert only.logs["target"] == task["answer"]
    assert str(only.logs["transcript"]).endswith("questions")


async def test_the_random_agent_follows_its_seed_and_the_category_and_never_repeats_itself() -> (
    None
):
    async def questions_of(agent: Any) -> list[str]:
        transcript = str((await play_alone(agent)).transitions[0].logs["transcript"])
        return re.findall(r"\d+\. (.*?)  ", transcript)

    def guessed(questions: list[str]) -> set[str]:
        return {noun.category for noun in NOUNS if guess(noun.answer) in questions}

    first, second = await questions_of(random_agent(1)), await questions_of(shown_random_agent(1))
    assert guessed(second) == {TEST_TASKS[0]["category"]}
    assert len(guessed(first)) > 3
    assert len(set(first)) == len(first) > 10
    assert len(set(second)) == len(second)
    assert await questions_of(random_agent(1)) == first != await questions_of(random_agent(2))
