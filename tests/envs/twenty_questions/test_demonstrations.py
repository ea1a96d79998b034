"""Games to learn the form of the game from.

1. They are what a model would have seen and said, to the token, in a game like it.
2. They are on training nouns alone and name no other; legal, mostly poor, the same for a seed.
"""

import itertools
from typing import Any

from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import ChatAgentEnv, ScriptedPolicy
from evert.bridge.tokens.bases import default_renderer
from evert.envs.twenty_questions.answerers import KnowledgeAnswerer
from evert.envs.twenty_questions.baselines import OraclePlayer, play
from evert.envs.twenty_questions.demonstrations import demonstrations
from evert.envs.twenty_questions.knowledge import guess
from evert.envs.twenty_questions.nouns import of_split, shipped_nouns
from evert.envs.twenty_questions.player import (
    TEST_TASKS,
    TRAIN_TASKS,
    TwentyQuestions,
    conversation,
)


def drawn(seed: int, count: int = 100) -> list[list[dict[str, Any]]]:
    return list(itertools.islice(demonstrations(seed), count))


# -- 1. form -------------------------------------------------------------------------------------


async def test_a_game_as_a_conversation_is_what_a_model_would_have_seen_and_said() -> None:
    noun = shipped_nouns()[0]
    game = await play(OraclePlayer(), noun, KnowledgeAnswerer())
    for style in ("short", "full"):
        policy = ScriptedPolicy([turn.question for turn in game.turns])
        env = ChatAgentEnv(TwentyQuestions(style=style), TRAIN_TASKS[0])
        trajectory = await do_single_rollout(policy, env)
        last = trajectory.transitions[-1]
        messages: Any = conversation(game, style)

        supervised, weights = default_renderer().build_supervised_example(messages)

        assert TRAIN_TASKS[0]["answer"] == noun.answer
        assert supervised.to_ints() == last.ob.to_ints() + list(last.ac.tokens)
        assert weights.sum() >= sum(len(turn.ac.tokens) for turn in trajectory.transitions[-1:])


def test_a_conversation_takes_turns_and_ends_with_a_question() -> None:
    for messages in drawn(0, 20):
        roles = [message["role"] for message in messages]

        assert roles == ["user", "assistant"] * (len(messages) // 2)
        assert all(message["content"].endswith("?") for message in messages[1::2])
        assert len(messages) <= 40


# -- 2. content ----------------------------------------------------------------------------------


def test_they_name_no_noun_but_those_that_are_trained_on() -> None:
    asked = {message["content"] for messages in drawn(1, 400) for message in messages[1::2]}
    held_out = {guess(task["answer"]) for task in TEST_TASKS}

    assert not asked & held_out
    assert {guess(noun.answer) for noun in of_split(shipped_nouns(), "train")} <= asked


def test_they_hide_the_category_and_are_legal() -> None:
    answerer, noun = KnowledgeAnswerer(), shipped_nouns()[0]
    for messages in drawn(2, 20):
        assert messages[0]["content"] == "20 questions 1"
        for message in messages[1::2]:
            answerer.answer_now(noun, message["content"])

    assert answerer.counts["not_understood"] == 0


def test_few_of_them_are_won() -> None:
    won = [len(messages) < 40 for messages in drawn(2, 300)]

    assert 0.02 < sum(won) / len(won) < 0.12


def test_a_seed_repeats_them() -> None:
    assert drawn(3, 5) == drawn(3, 5) != drawn(4, 5)
