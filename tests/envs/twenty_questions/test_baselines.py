"""The players without a model.

1. The oracle finds every noun, with and without the category.
2. The random player never asks the same twice, and a seed repeats it.
3. The casual player's guesses fit all answers; it guesses as often as it is told to.
4. Random player and oracle are agents, too, that call no model.
"""

import pytest
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import ChatAgentEnv, ScriptedPolicy
from evert.envs.twenty_questions.answerers import KnowledgeAnswerer
from evert.envs.twenty_questions.baselines import (
    CasualPlayer,
    OraclePlayer,
    RandomPlayer,
    guess,
    oracle_agent,
    play,
    random_agent,
)
from evert.envs.twenty_questions.facts import shipped_facts
from evert.envs.twenty_questions.game import Game, Rules
from evert.envs.twenty_questions.lexicon import load_lexicon
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


# -- the casual player ---------------------------------------------------------------------------


async def test_the_casual_player_guesses_only_what_fits_all_answers() -> None:
    attributes = {question: name for name, question in load_lexicon().questions.items()}
    nouns = {guess(noun.answer): noun.answer for noun in NOUNS}
    guesses = 0
    for number, noun in enumerate(NOUNS[::10]):
        game = await play(CasualPlayer(guess_rate=0.4, seed=number), noun, KnowledgeAnswerer())
        for index, turn in enumerate(game.turns):
            if turn.question not in nouns:
                continue
            guesses += 1
            for earlier in game.turns[:index]:
                assert earlier.question != turn.question
                if name := attributes.get(earlier.question):
                    fact = shipped_facts().of(nouns[turn.question], name)
                    assert fact == earlier.answer.yes_or_no
    assert guesses > 50


async def test_the_casual_player_guesses_as_often_as_it_is_told_to_and_repeats_nothing() -> None:
    never = [await play(CasualPlayer(guess_rate=0.0), n, KnowledgeAnswerer()) for n in NOUNS[:20]]
    rarely = CasualPlayer(guess_rate=0.02)
    games = [await play(rarely, noun, KnowledgeAnswerer()) for noun in NOUNS]
    asked = [turn.question for game in games for turn in game.turns]
    share = sum(question in {guess(noun.answer) for noun in NOUNS} for question in asked)

    assert not any(game.won for game in never)
    assert all(len({turn.question for turn in game.turns}) == 20 for game in never)
    assert 0.01 < share / len(asked) < 0.03
    assert 0.02 < sum(game.won for game in games) / len(games) < 0.2


async def test_telling_questions_leave_fewer_nouns_than_any_questions() -> None:
    async def left(telling_rate: float) -> float:
        counts = []
        for number, noun in enumerate(NOUNS[::5]):
            player = CasualPlayer(guess_rate=0.0, telling_rate=telling_rate, seed=number)
            game = await play(player, noun, KnowledgeAnswerer(), Rules(max_questions=4))
            alike = [
                other
                for other in NOUNS
                if other.category == noun.category
                and all(answers(other.answer, t.question) == t.answer.yes_or_no for t in game.turns)
            ]
            counts.append(len(alike))
        return sum(counts) / len(counts)

    attributes = {question: name for name, question in load_lexicon().questions.items()}

    def answers(noun: str, question: str) -> str:
        return shipped_facts().of(noun, attributes[question])

    assert await left(1.0) < await left(0.0) / 2


async def test_the_casual_player_asks_on_when_nothing_fits_any_more() -> None:
    stranger = CasualPlayer(NOUNS[20:30], guess_rate=1.0)
    game = await play(stranger, NOUNS[0], KnowledgeAnswerer())

    assert len(game.turns) == 20


# -- as agents -----------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TEST_TASKS[::8], ids=lambda task: task["answer"])
async def test_the_oracle_is_an_agent_that_calls_no_model(task: Task) -> None:
    policy = ScriptedPolicy([])
    trajectory = await do_single_rollout(policy, ChatAgentEnv(oracle_agent(0), task))
    (only,) = trajectory.transitions

    assert policy.actions == []
    assert only.reward == 1.0
    assert only.metrics["questions"] <= 8
    assert only.logs["target"] == task["answer"]
    assert str(only.logs["transcript"]).endswith("questions")


async def test_the_random_agent_plays_by_seed_and_task() -> None:
    async def transcript(seed: int, task: Task) -> str:
        env = ChatAgentEnv(random_agent(seed), task)
        trajectory = await do_single_rollout(ScriptedPolicy([]), env)
        return str(trajectory.transitions[0].logs["transcript"])

    first = await transcript(1, TEST_TASKS[0])

    assert await transcript(1, TEST_TASKS[0]) == first
    assert await transcript(2, TEST_TASKS[0]) != first
