"""Metrics of how a game was played: its first question, repeats, wrong guesses, bits.

They are in a run's metrics, in an evaluation's table and in a report. Bits are computed from the
shipped facts; other nouns have none. Questions about a number or several things count as 0 bits.
"""

from functools import cache

from evert.envs.twenty_questions.answerers import shipped_answerer
from evert.envs.twenty_questions.facts import shipped_facts
from evert.envs.twenty_questions.game import Game
from evert.envs.twenty_questions.knowledge import Knowledge, guess
from evert.envs.twenty_questions.understanding.parsed import Asked, Guess, Measured, Parsed, Several


def measures(game: Game) -> dict[str, float]:
    """Metrics of a finished game.

    Returns:
        ``asks_first``: 1.0 if the first question is about attributes or a number, 0.0 if it is a
        guess or was not understood. ``repeats``: number of questions that were asked before.
        ``guesses_in_vain``: number of wrong guesses.
        ``bits``: mean bits of the questions: the entropy of the answer over the nouns that fitted
        until then. ``bits_of_best``: their sum as a share of the best questions' bits.
        ``questions_when_won``: only if the game was won. Both metrics of bits are absent if the
        facts do not have the noun, and the share also if nothing was left to ask.
    """
    parse = shipped_answerer().parser.parse
    asked = [parse(turn.question) for turn in game.turns]
    found = {
        "asks_first": float(isinstance(next(iter(asked), None), Asked | Measured | Several)),
        "repeats": float(_repeats(game, asked)),
        "guesses_in_vain": float(
            sum(
                isinstance(each, Guess) and not turn.answer.correct
                for each, turn in zip(asked, game.turns, strict=True)
            )
        ),
    }
    if game.won:
        found["questions_when_won"] = float(len(asked))
    if asked and game.noun.answer in shipped_facts():
        found |= _bits(game, asked)
    return found


def _repeats(game: Game, asked: list[Parsed]) -> int:
    """How many questions repeat a subject or, if it is not understood, the words."""
    about = [
        each.attribute if isinstance(each, Asked) else each or turn.question.casefold()
        for each, turn in zip(asked, game.turns, strict=True)
    ]
    return len(about) - len(set(about))


def _bits(game: Game, asked: list[Parsed]) -> dict[str, float]:
    known, noun, told, best = _known(), game.noun.answer, 0.0, 0.0
    left = known.possible(game)
    for each in asked:
        question, said = "", "n/a"
        if isinstance(each, Asked) and each.attribute in known.questions:
            question = known.questions[each.attribute]
            said = shipped_facts().of(noun, each.attribute)
        elif isinstance(each, Guess):
            question, said = guess(each.answer), "yes" if each.answer == noun else "no"
        told, best = told + known.told(left, question), best + known.most(left)
        left = known.after(left, question, said)
    found = {"bits": told / len(asked)}
    return {**found, "bits_of_best": told / best} if best else found


@cache
def _known() -> Knowledge:
    return Knowledge()
