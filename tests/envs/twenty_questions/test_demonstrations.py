"""Demonstrations of the game's format: conversations in which most players are weak."""

import itertools
from typing import Any

import pytest
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import ChatAgentEnv, ScriptedPolicy
from evert.bridge.import_paths import resolve
from evert.bridge.tokens.bases import default_renderer
from evert.envs.games import GameError, find_game
from evert.envs.twenty_questions.answerers import NOT_UNDERSTOOD, KnowledgeAnswerer
from evert.envs.twenty_questions.baselines import OraclePlayer, play
from evert.envs.twenty_questions.demonstrations import demonstrations, shown_demonstrations
from evert.envs.twenty_questions.information import guess
from evert.envs.twenty_questions.nouns import of_split, shipped_nouns
from evert.envs.twenty_questions.player import (
    TEST_TASKS,
    TRAIN_TASKS,
    TwentyQuestions,
    conversation,
)

BOTH = pytest.mark.parametrize("shown", [False, True], ids=["hidden", "shown"])


def draw(seed: int, count: int = 100, *, shown: bool = False) -> list[list[dict[str, Any]]]:
    return list(itertools.islice((shown_demonstrations if shown else demonstrations)(seed), count))


async def test_the_conversation_of_a_game_equals_that_of_an_episode() -> None:
    noun = shipped_nouns()[0]
    game = play(OraclePlayer(), noun)
    for style in ("short", "full"):
        policy = ScriptedPolicy([turn.question for turn in game.turns])
        env = ChatAgentEnv(TwentyQuestions(style=style), TRAIN_TASKS[0])
        last = (await do_single_rollout(policy, env)).transitions[-1]
        messages: Any = conversation(game, style)

        supervised, weights = default_renderer().build_supervised_example(messages)

        assert TRAIN_TASKS[0]["answer"] == noun.answer
        assert supervised.to_ints() == last.ob.to_ints() + list(last.ac.tokens)
        assert weights.sum() >= len(last.ac.tokens)


@BOTH
def test_a_recipe_demonstrates_its_own_variant_of_the_game(shown: bool) -> None:
    game = find_game("twenty_questions_shown" if shown else "twenty_questions")
    assert game is not None
    function = resolve(game.settings()["demonstrations"], "demonstrations", GameError)

    assert function is (shown_demonstrations if shown else demonstrations)


@BOTH
def test_demonstrations_alternate_roles_are_legal_and_follow_the_seed(shown: bool) -> None:
    answerer, noun = KnowledgeAnswerer(), shipped_nouns()[0]
    opening = {f"{noun.category} 1" for noun in shipped_nouns()} if shown else {"20 questions 1"}
    for messages in draw(2, 20, shown=shown):
        roles = [message["role"] for message in messages]
        questions = [message["content"] for message in messages[1::2]]
        for question in questions:
            assert answerer.answer_now(noun, question) is not NOT_UNDERSTOOD

        assert roles == ["user", "assistant"] * (len(messages) // 2)
        assert messages[0]["content"] in opening
        assert all(question.endswith("?") for question in questions)
        assert len(questions) <= 20

    same, repeated, different = (draw(seed, 5, shown=shown) for seed in (3, 3, 4))
    assert same == repeated != different


@BOTH
def test_demonstrations_name_only_training_nouns(shown: bool) -> None:
    games = draw(1, 400, shown=shown)
    questions = {message["content"] for messages in games for message in messages[1::2]}
    won = [len(messages) < 40 for messages in games]

    assert not questions & {guess(task["answer"]) for task in TEST_TASKS}
    assert {guess(noun.answer) for noun in of_split(shipped_nouns(), "train")} <= questions
    low, high = (0.4, 0.6) if shown else (0.02, 0.12)
    assert low < sum(won) / len(won) < high
