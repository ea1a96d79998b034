"""Metrics of how a game was played: first question, repeats, wrong guesses, bits.

They appear in a run's metrics, in evaluation tables and in reports. Bits are computed from the
shipped facts, so they are not available for other nouns. Questions about a number, or about several
things, count as 0 bits.
"""

from functools import cache

from evert.envs.twenty_questions.answerers import shipped_answerer
from evert.envs.twenty_questions.facts import shipped_facts
from evert.envs.twenty_questions.game import QuestionGame
from evert.envs.twenty_questions.information import Knowledge, guess
from evert.envs.twenty_questions.understanding.parsed import (
    Attribute,
    Comparison,
    Compound,
    Guess,
    Parsed,
)


def measures(game: QuestionGame) -> dict[str, float]:
    """Return a finished game's metrics.

    Returns:
        ``asks_first``: 1.0 if the first question is about attributes or a number, 0.0 if it is a
        guess or was not understood. ``repeats``: number of repeated questions.
        ``guesses_in_vain``: number of wrong guesses.
        ``bits``: mean bits per question, where bits are the entropy of the answer over the nouns
        that are still possible. ``bits_of_best``: total bits as a fraction of what the best
        questions would have given. ``questions_when_won``: number of questions, only if the
        game was won. If the facts don't cover the noun, ``bits`` and ``bits_of_best`` are missing.
        ``bits_of_best`` is also missing if no question could have given any bits.
    """
    parse = shipped_answerer().parser.parse
    questions = [parse(turn.question) for turn in game.turns]
    first = questions[0] if questions else None
    metrics = {
        "asks_first": float(isinstance(first, Attribute | Comparison | Compound)),
        "repeats": float(_repeats(game, questions)),
        "guesses_in_vain": float(
            sum(
                isinstance(question, Guess) and not turn.answer.correct
                for question, turn in zip(questions, game.turns, strict=True)
            )
        ),
    }
    if game.won:
        metrics["questions_when_won"] = float(len(questions))
    if questions and game.noun.answer in shipped_facts():
        metrics |= _bits(game, questions)
    return metrics


def _repeats(game: QuestionGame, questions: list[Parsed]) -> int:
    """Count repeated questions.

    Two questions are equal if they have the same subject or, if they are not understood, the same
    wording.
    """
    subjects = [
        parsed.attribute if isinstance(parsed, Attribute) else parsed or turn.question.casefold()
        for parsed, turn in zip(questions, game.turns, strict=True)
    ]
    return len(subjects) - len(set(subjects))


def _bits(game: QuestionGame, questions: list[Parsed]) -> dict[str, float]:
    knowledge, noun, bits, max_bits = _shipped_knowledge(), game.noun.answer, 0.0, 0.0
    candidates = knowledge.possible(game)
    for parsed in questions:
        question, answer = "", "n/a"
        if isinstance(parsed, Attribute) and parsed.attribute in knowledge.questions:
            question = knowledge.questions[parsed.attribute]
            answer = shipped_facts().of(noun, parsed.attribute)
        elif isinstance(parsed, Guess):
            question, answer = guess(parsed.answer), "yes" if parsed.answer == noun else "no"
        bits += knowledge.answer_entropy(candidates, question)
        max_bits += knowledge.max_bits(candidates)
        candidates = knowledge.after(candidates, question, answer)
    metrics = {"bits": bits / len(questions)}
    return {**metrics, "bits_of_best": bits / max_bits} if max_bits else metrics


@cache
def _shipped_knowledge() -> Knowledge:
    return Knowledge()
