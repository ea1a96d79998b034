"""Hints: two seats that earn together.

1. The guesser sees the hint alone; both earn 1 for the word, and 0 for another.
2. A hint that contains the word, however it is spelled, earns nothing and ends the game.
3. Demonstrations show the form, and tell nothing of what a hint means.
"""

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Any

import gymnasium
import pytest
from tinker_cookbook.rl.rollouts import do_group_rollout

import evert  # noqa: F401 (registers the games)
from evert import ChatAgentGroupBuilder, ScriptedPolicy
from evert.envs import hints


def play(word: str, reply: Callable[[str], str]) -> Any:
    builder = ChatAgentGroupBuilder(
        hints.seated_hints_agent, word, seats=("hinter", "guesser"), on_agent_error=-1.0
    )
    return asyncio.run(do_group_rollout(builder, ScriptedPolicy(reply)))


@pytest.mark.parametrize(("guess", "reward"), [("sun", 1.0), ("sea", 0.0), ("the sun", 0.0)])
def test_both_earn_what_the_guess_is_worth(guess: str, reward: float) -> None:
    prompts = list[str]()

    def reply(prompt: str) -> str:
        prompts.append(prompt)
        return "A" if "Hint?" in prompt else guess

    group = play("sun", reply)

    assert [m[f"seat/{s}/reward"] for m, s in zip(group.metrics_G, ("hinter", "guesser"))] == (  # noqa: B905
        [reward] * 2
    )
    assert "Hint: A. Word?" in prompts[1]
    assert "sun" not in prompts[1]


@pytest.mark.parametrize("hint", ["sun", "Sunny", "s-u-n"])
def test_a_hint_that_contains_the_word_earns_nothing(hint: str) -> None:
    group = play("sun", lambda prompt: hint if "Hint?" in prompt else "sun")

    assert group.trajectories_G[0].transitions[0].metrics["told"] == 1.0
    assert group.metrics_G[0]["seat/hinter/reward"] == 0.0


def test_demonstrations_show_the_form_alone() -> None:
    shown = [*islice(hints.demonstrations(0), 400)]
    letters = {answer["content"] for question, answer in shown if "Hint?" in question["content"]}
    words = {answer["content"] for question, answer in shown if "Word?" in question["content"]}
    assert (letters, words) == (set(hints.LETTERS), set(hints.WORDS))
    to_one = {a["content"] for q, a in shown if q["content"] == hints.hint_question("sun")}
    assert len(to_one) > 4


def test_under_gymnasium_one_player_has_both_turns() -> None:
    env = gymnasium.make("evert/Hints-v0")
    _, info = env.reset(seed=1)
    conversation, _, over, _, _ = env.step("A")
    assert not over
    assert conversation[-1]["content"] == "Hint: A. Word?"
    _, reward, over, _, _ = env.step(info["task"])
    assert (reward, over) == (1.0, True)
    env.close()
