"""What a game says of its player beside whether it won: does it ask, tell, repeat?

``measures`` is what ends up in a run's metrics, in an evaluation's table and on a report's page.
Bits are measured against the shipped facts; of a noun that they do not have, there are none. What
asks for a number, or for two things at once, is counted as telling nothing.
"""

from functools import cache

from evert.envs.twenty_questions.answerers import shipped_answerer
from evert.envs.twenty_questions.facts import shipped_facts
from evert.envs.twenty_questions.game import Game
from evert.envs.twenty_questions.knowledge import Knowledge, guess
from evert.envs.twenty_questions.understanding.parsed import Asked, Guess, Measured, Parsed, Several


def measures(game: Game) -> dict[str, float]:
    """Of a finished game.

    Returns:
        ``asks_first``: 1.0 if the first question is about an attribute, 0.0 if it is a guess or
        could not be understood. ``repeats``: how often it asked what it had asked before.
        ``guesses_in_vain``: how often it named another noun.
        ``bits``: what its questions told, on average, in bits: the entropy of the answer over the
        nouns that fitted until then. ``bits_of_best``: their sum as a share of what the best
        question would have told each time. ``questions_when_won``: only if it won. Without bits
        where the facts do not have the noun, without a share where nothing was left to be told.
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
    """How many questions repeat one: its subject or, if that is not understood, its words."""
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
