"""The players without a model.

1. The oracle finds every noun, with and without the category.
2. The random player never asks the same twice, and a seed repeats it.
3. Random player and oracle are agents, too, that call no model, told the category or not.
"""

from typing import Any

import pytest
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import ChatAgentEnv, ScriptedPolicy
from evert.envs.twenty_questions.answerers import KnowledgeAnswerer
from evert.envs.twenty_questions.baselines import (
    OraclePlayer,
    RandomPlayer,
    oracle_agent,
    play,
    random_agent,
    shown_oracle_agent,
    shown_random_agent,
)
from evert.envs.twenty_questions.game import Game, Rules
from evert.envs.twenty_questions.knowledge import guess
from evert.envs.twenty_questions.nouns import shipped_nouns
from evert.envs.twenty_questions.player import TEST_TASKS, Task

NOUNS = shipped_nouns()
BLIND = Rules(show_category=False)


@pytest.mark.parametrize(("rules", "most"), [(Rules(), 8), (BLIND, 13)], ids=["told", "blind"])
async def test_the_oracle_finds_every_noun(rules: Rules, most: int) -> None:
    oracle, answerer = OraclePlayer(), KnowledgeAnswerer()
    games = [await play(oracle, noun, answerer, rules) for noun in NOUNS]

    assert [game.noun.answer for game in games if not game.won] == []
    assert max(len(game.turns) for game in games) <= most
    assert answerer.counts["not_understood"] == 0


async def test_the_oracle_may_disregard_the_category() -> None:
    told = await play(OraclePlayer(all_categories=True), NOUNS[0], KnowledgeAnswerer())
    blind = await play(OraclePlayer(), NOUNS[0], KnowledgeAnswerer(), BLIND)

    assert told.turns == blind.turns


def test_the_oracle_guesses_what_is_left() -> None:
    assert OraclePlayer(NOUNS[:1]).question(Game(NOUNS[0])) == guess(NOUNS[0].answer)


async def test_the_oracle_asks_on_when_nothing_is_possible_any_more() -> None:
    stranger = await play(OraclePlayer(NOUNS[20:30]), NOUNS[0], KnowledgeAnswerer())

    assert not stranger.won
    assert len(stranger.turns) == 20


async def test_the_random_player_asks_nothing_twice_and_guesses_within_the_category() -> None:
    game = await play(RandomPlayer(seed=1), NOUNS[0], KnowledgeAnswerer())
    questions = [turn.question for turn in game.turns]
    foreign = {guess(noun.answer) for noun in NOUNS if noun.category != NOUNS[0].category}

    assert len(set(questions)) == len(questions)
    assert not foreign & set(questions)


async def test_a_seed_repeats_the_random_player() -> None:
    first = await play(RandomPlayer(seed=1), NOUNS[0], KnowledgeAnswerer(), BLIND)
    again = await play(RandomPlayer(seed=1), NOUNS[0], KnowledgeAnswerer(), BLIND)
    other = await play(RandomPlayer(seed=2), NOUNS[0], KnowledgeAnswerer(), BLIND)

    assert first.turns == again.turns != other.turns


# -- as agents -----------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TEST_TASKS[::8], ids=lambda task: task["answer"])
@pytest.mark.parametrize(
    ("agent", "most"), [(oracle_agent, 13), (shown_oracle_agent, 8)], ids=["hidden", "shown"]
)
async def test_the_oracle_is_an_agent_that_calls_no_model(
    agent: Any, most: int, task: Task
) -> None:
    policy = ScriptedPolicy([])
    trajectory = await do_single_rollout(policy, ChatAgentEnv(agent(0), task))
    (only,) = trajectory.transitions

    assert policy.actions == []
    assert only.reward == 1.0
    assert only.metrics["questions"] <= most
    assert only.metrics["bits_of_best"] == pytest.approx(1.0)
    assert only.logs["target"] == task["answer"]
    assert str(only.logs["transcript"]).endswith("questions")


async def test_the_random_agent_guesses_within_the_category_where_it_is_shown() -> None:
    async def guessed(agent: Any) -> set[str]:
        env = ChatAgentEnv(agent, TEST_TASKS[0])
        trajectory = await do_single_rollout(ScriptedPolicy([]), env)
        said = str(trajectory.transitions[0].logs["transcript"])
        return {noun.category for noun in NOUNS if f" {guess(noun.answer)}" in said}

    assert await guessed(shown_random_agent(1)) == {TEST_TASKS[0]["category"]}
    assert len(await guessed(random_agent(1))) > 3


async def test_the_random_agent_plays_by_seed_and_task() -> None:
    async def transcript(seed: int, task: Task) -> str:
        env = ChatAgentEnv(random_agent(seed), task)
        trajectory = await do_single_rollout(ScriptedPolicy([]), env)
        return str(trajectory.transitions[0].logs["transcript"])

    first = await transcript(1, TEST_TASKS[0])

    assert await transcript(1, TEST_TASKS[0]) == first
    assert await transcript(2, TEST_TASKS[0]) != first
