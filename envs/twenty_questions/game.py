"""The game's state, rules, scoring and transcript, independent of any model and free of I/O.

All players use this class. It returns what the player may see, and records the turns:

    game = QuestionGame(noun)
    while not game.over:
        question = ...                          from game.situation() and game.turns
        game.record(question, answer)           with the answerer's Answer
    game.score                                  1.0 if the noun was found, else 0.0

Guesses count as questions. So do empty questions, which are answered with "n/a".
"""

from dataclasses import dataclass, field
from typing import Any

from evert.envs.twenty_questions.errors import GameStateError
from evert.envs.twenty_questions.facts import YesNo
from evert.envs.twenty_questions.nouns import Noun

LONGEST_QUESTION = 300
"""Maximum length of a question in characters. Longer questions are cut off."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question.

    Attributes:
        yes_or_no: "n/a" if the answerer cannot tell, or the question makes no sense for the noun.
        correct: Whether the question guessed the noun, which wins the game.
        brief_reason: The reason, for human readers. The player never sees it.
    """

    yes_or_no: YesNo
    correct: bool = False
    brief_reason: str = ""


NOTHING_ASKED = Answer("n/a", brief_reason="Nothing was asked.")


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a game.

    Attributes:
        max_questions: Maximum number of questions, including guesses.
        show_category: Whether the player sees the noun's category.
        max_searches: Maximum number of searches per question, if there is a search tool.
        guess_cost: Cost of a wrong guess, which reduces the reward but not the score.
    """

    max_questions: int = 20
    show_category: bool = True
    max_searches: int = 1
    guess_cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Search:
    """A search: the query and the result."""

    query: str
    result: str


@dataclass(frozen=True, slots=True)
class QuestionTurn:
    """A question with its answer and the searches that preceded it."""

    question: str
    answer: Answer
    searches: tuple[Search, ...] = ()


@dataclass
class QuestionGame:
    """One game.

    Attributes:
        noun: The noun to guess. Hide it from the player.
        rules: The rules.
        turns: The turns so far.
    """

    noun: Noun
    rules: Rules = field(default_factory=Rules)
    turns: list[QuestionTurn] = field(default_factory=list)

    @property
    def number(self) -> int:
        """Number of the next question, starting with 1."""
        return len(self.turns) + 1

    @property
    def won(self) -> bool:
        """Whether the noun was found."""
        return bool(self.turns) and self.turns[-1].answer.correct

    @property
    def over(self) -> bool:
        """Whether the game is won or no questions are left."""
        return self.won or len(self.turns) >= self.rules.max_questions

    @property
    def score(self) -> float:
        """1.0 if the noun was found, else 0.0."""
        return float(self.won)

    def record(self, question: str, answer: Answer, searches: tuple[Search, ...] = ()) -> None:
        """Add a turn.

        Raises:
            GameStateError: The game is over, or there are more searches than the rules allow.
        """
        if self.over:
            raise GameStateError(
                f"The game is over after {len(self.turns)} of {self.rules.max_questions} "
                f"questions ({'won' if self.won else 'lost'}); start a new one."
            )
        if len(searches) > self.rules.max_searches:
            raise GameStateError(
                f"Got {len(searches)} searches for one question, but the rules allow only "
                f"{self.rules.max_searches}. Reject additional searches before running them."
            )
        self.turns.append(QuestionTurn(question, answer, searches))

    def situation(self) -> str:
        """Return the text for the player: the category (if shown) and the question's number."""
        category = f"Category: {self.noun.category}. " if self.rules.show_category else ""
        return f"{category}Question {self.number} of {self.rules.max_questions}."

    def summary(self) -> dict[str, Any]:
        """Return statistics on the game so far: found, questions, n/a answers, searches."""
        return {
            "found": self.score,
            "questions": len(self.turns),
            "not_told": sum(turn.answer.yes_or_no == "n/a" for turn in self.turns),
            "searches": sum(len(turn.searches) for turn in self.turns),
        }

    def transcript(self) -> str:
        """Return the whole game for human readers, including the noun, reasons and searches."""
        lines = [f"{self.noun.answer} ({self.noun.category}, {self.noun.split})"]
        for index, turn in enumerate(self.turns, 1):
            lines += [f"    search: {s.query} -> {s.result}" for s in turn.searches]
            reason = f"  ({turn.answer.brief_reason})" if turn.answer.brief_reason else ""
            lines.append(f"{index:3}. {turn.question}  {turn.answer.yes_or_no}{reason}")
        state = "found" if self.won else "not found" if self.over else "in play"
        return "\n".join([*lines, f"{state}, {len(self.turns)} questions"])


def question_of(reply: str) -> str:
    """Extract the question from a player's reply, without any label. "" if the reply is empty.

    Models tend to think out loud before they ask, so we take the last line that ends with a
    question mark, or else the last line. It is truncated to ``LONGEST_QUESTION`` characters.
    """
    lines = [line.strip().strip("*").strip() for line in reply.splitlines() if line.strip()]
    if not lines:
        return ""
    questions = [line for line in lines if line.endswith("?")] or lines
    question = questions[-1]
    label, colon, text = question.partition(":")
    if colon and text.strip() and label.lower().split()[:1] in (["question"], ["q"]):
        question = text.strip()
    return question[:LONGEST_QUESTION]
