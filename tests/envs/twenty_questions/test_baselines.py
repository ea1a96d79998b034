"""The players without a model: the oracle finds every noun, the random one goes by its seed."""

import re
from typing import Any

import pytest
from tests.kit import reward
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import ChatAgentEnv, ScriptedPolicy
from evert.envs.twenty_questions.answerers import NOT_UNDERSTOOD
from evert.envs.twenty_questions.baselines import (
    OraclePlayer,
    oracle_agent,
    play,
    random_agent,
    shown_oracle_agent,
    shown_random_agent,
)
from evert.envs.twenty_questions.game import Answer, QuestionGame, Rules
from evert.envs.twenty_questions.knowledge import guess
from evert.envs.twenty_questions.nouns import shipped_nouns
from evert.envs.twenty_questions.player import TEST_TASKS
from evert.envs.twenty_questions.understanding.lexicon import load_lexicon

NOUNS = shipped_nouns()
BLIND = Rules(show_category=False)


def test_the_oracle_finds_every_noun() -> None:
    for rules, most in ((Rules(), 8), (BLIND, 13)):
        oracle = OraclePlayer()
        games = [play(oracle, noun, rules) for noun in NOUNS]

        assert [game.noun.answer for game in games if not game.won] == []
        assert max(len(game.turns) for game in games) <= most
        assert not any(turn.answer is NOT_UNDERSTOOD for game in games for turn in game.turns)


async def test_the_oracle_goes_by_what_is_left() -> None:
    game = QuestionGame(NOUNS[0])
    for other in NOUNS:
        if other.category == NOUNS[0].category and other != NOUNS[0]:
            game.record(guess(other.answer), Answer("no"))
    assert OraclePlayer().question(game) == guess(NOUNS[0].answer)
    game.record(guess(NOUNS[0].answer), Answer("no"))
    assert OraclePlayer().question(game) in load_lexicon().questions.values()  # nothing is left


async def played(agent: Any, task: Any = TEST_TASKS[0]) -> Trajectory:
    """An episode in which no model is called."""
    policy = ScriptedPolicy([])
    trajectory = await do_single_rollout(policy, ChatAgentEnv(agent, task))

    assert policy.actions == []
    return trajectory


@pytest.mark.parametrize(("agent", "most"), [(oracle_agent, 13), (shown_oracle_agent, 8)])
async def test_the_oracle_is_an_agent_that_calls_no_model(agent: Any, most: int) -> None:
    for task in TEST_TASKS[::20]:
        trajectory = await played(agent(0), task)
        (only,) = trajectory.transitions

        assert reward(trajectory) == 1.0
        assert only.metrics["questions"] <= most
        assert only.metrics["bits_of_best"] == pytest.approx(1.0)
        assert only.logs["target"] == task["answer"]
        assert str(only.logs["transcript"]).endswith("questions")


async def test_the_random_agent_asks_nothing_twice_and_goes_by_seed_and_category() -> None:
    async def asked(agent: Any) -> list[str]:
        transcript = str((await played(agent)).transitions[0].logs["transcript"])
        return re.findall(r"\d+\. (.*?)  ", transcript)

    def guessed(questions: list[str]) -> set[str]:
        return {noun.category for noun in NOUNS if guess(noun.answer) in questions}

    first, shown = await asked(random_agent(1)), await asked(shown_random_agent(1))
    assert guessed(shown) == {TEST_TASKS[0]["category"]}
    assert len(guessed(first)) > 3
    assert len(set(first)) == len(first) > 10
    assert len(set(shown)) == len(shown)
    assert await asked(random_agent(1)) == first != await asked(random_agent(2))
