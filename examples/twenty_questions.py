"""Code shared by the two Twenty Questions examples, including a way to play them without a model.

The game, its tasks, the search tool and the knowledge base ship with evert
(``evert.envs.twenty_questions``). This module adds ``Said``, the format of a chat model's answer,
and ``play``, which runs and prints an episode (see ``game.py``). Instead of a model, ``play`` uses
a scripted player that knows every fact.
"""

import re
from collections.abc import Callable
from typing import Any, Literal

from game import play as play_game
from pydantic import BaseModel

from evert.envs.twenty_questions.baselines import OraclePlayer
from evert.envs.twenty_questions.game import Answer, QuestionGame, question_of
from evert.envs.twenty_questions.nouns import Noun
from evert.envs.twenty_questions.player import TRAIN_TASKS
from evert.envs.twenty_questions.understanding.questions import mentions

TASK = TRAIN_TASKS[11]


class Said(BaseModel):
    """An answerer's reply. The reason comes first, so that a chat model thinks before answering."""

    brief_reason: str
    yes_or_no: Literal["yes", "no", "n/a"]
    correct: bool

    def trusted(self) -> Answer:
        """Return the answer unchanged. Used for replies from the knowledge base."""
        return Answer(self.yes_or_no, self.correct, self.brief_reason)

    def checked(self, noun: Noun, question: str) -> Answer:
        """Return a chat model's answer. "correct" only counts if the question names the noun."""
        correct = self.correct and mentions(question, noun.answer)
        return Answer("yes" if correct else self.yes_or_no, correct, self.brief_reason)


# -- the scripted model --------------------------------------------------------------------------

REPLY = re.compile(r"<\|im_start\|>assistant\n(?!<tool_call>)(.*?)<\|im_end\|>", re.DOTALL)
"""Matches questions (but not searches) in prompts from the default renderer."""
ORACLE = OraclePlayer()


def ask(prompt: str) -> str:
    """Act as a model that knows every fact and asks the best next question."""
    [category, *_] = re.findall(r"Category: (.+?)\.", prompt)
    game = QuestionGame(Noun("unknown", category, "train"))
    answers = re.findall(r"(yes|no|n/a)\. Category", prompt)
    for reply, answer in zip(REPLY.findall(prompt), answers, strict=True):
        game.record(question_of(reply), Answer(answer))
    return ORACLE.question(game)


def play(agent: Callable[..., Any]) -> None:
    """Play an episode and print it along with the game's transcript."""
    trajectory = play_game(agent, ask, TASK)
    print(f"\n{trajectory.transitions[-1].logs['transcript']}")
