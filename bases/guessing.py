"""Games of guess-number for the base to learn from: the rules, and players with every habit.

The base has to know the format of the game, and that a guess must fit every hint so far;
finding good guesses is left to RL. So these games are played in two ways that favour no guess:

- uniformly from all the numbers that are still possible: the rules alone;
- by habit: always at the same place in the remaining range, its bottom, a quarter up, the middle,
  three quarters up or the top. Every habit is as frequent as any other, so none is shown to be
  better; but the base learns that a player keeps to a habit, and RL has something to choose among.

In order: :func:`play_random_games` plays many games at once, :func:`digit_probabilities` turns
"uniform between low and high" into the probabilities of each next digit.

These probabilities are the training target instead of the one digit that was drawn. So the same
rule is learned from a fraction of the games, without the noise of the draw.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

UPPER_BOUND = 1024
MAX_TURNS = 10

HABITS = 5
"""Number of places in the remaining range that a player may keep to, evenly spaced."""

STOP = 10
"""Index of "the number ends here" among the eleven choices; 0..9 are the digits."""

CHOICES = 11


@dataclass(frozen=True)
class RandomGames:
    """Games played side by side; arrays are (games, turns), -1 where a game was over."""

    lows: NDArray[np.int64]
    """Smallest number that each guess was drawn from."""
    highs: NDArray[np.int64]
    """Largest number that each guess was drawn from."""
    guesses: NDArray[np.int64]
    answers: NDArray[np.int64]
    """(games,): the number to find."""


def play_random_games(
    rng: np.random.Generator,
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    turns: int = MAX_TURNS,
    *,
    habits: bool = False,
) -> RandomGames:
    """Play one game for each pair of bounds; see the module's docstring for ``habits``."""
    answers = rng.integers(low, high + 1)
    habit = rng.integers(HABITS, size=len(low)) if habits else None
    lows, highs, guesses = (np.full((len(low), turns), -1, np.int64) for _ in range(3))
    playing = np.ones(len(low), bool)
    for turn in range(turns):
        first, last = (low, high) if habit is None else (_place(low, high, habit),) * 2
        guess = rng.integers(first, last + 1)
        for column, values in ((lows, first), (highs, last), (guesses, guess)):
            column[playing, turn] = values[playing]
        low = np.where(guess < answers, guess + 1, low)
        high = np.where(guess > answers, guess - 1, high)
        playing &= guess != answers
    return RandomGames(lows, highs, guesses, answers)


def _place(
    low: NDArray[np.int64], high: NDArray[np.int64], habit: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the number in ``low..high`` that a player of ``habit`` guesses (0: the lowest)."""
    return low + (high - low) * habit // (HABITS - 1)


def digit_probabilities(digits: str, low: int, high: int) -> NDArray[np.float32]:
    """Return the choices' probabilities after ``digits`` of a number uniform in ``low..high``."""
    weights = np.zeros(CHOICES, np.float32)
    if digits and low <= int(digits) <= high:
        weights[STOP] = 1
    if digits != "0":
        for digit in range(10):
            longer = int(digits + str(digit))
            if longer <= UPPER_BOUND:
                up_to = _numbers_that_start_with()[longer]
                weights[digit] = up_to[high + 1] - up_to[low]
    total: np.float32 = weights.sum()
    return weights / total


@cache
def _numbers_that_start_with() -> NDArray[np.int64]:
    """Return by (prefix, bound) how many numbers below the bound start with the prefix."""
    starts = np.zeros((UPPER_BOUND + 1, UPPER_BOUND + 2), np.int64)
    for number in range(UPPER_BOUND + 1):
        text = str(number)
        for length in range(1, len(text) + 1):
            starts[int(text[:length]), number + 1] = 1
    return starts.cumsum(axis=1)
