"""Guess-number games that teach the base the rules and players' different habits.

The base has to know the format of the game, and that a guess must be consistent with all the hints
so far. Learning which guesses are good is left to RL, so the training games do not favour any
strategy. There are two types of players:

- uniform players draw from all numbers that are still possible, which teaches only the rules;
- players with a habit always guess at the same place in the remaining range: the bottom, the first
  quarter, the middle, the third quarter or the top. All habits are equally frequent, so the data
  does not show which one is best. But the base learns that a player sticks to a habit, which gives
  RL a choice of strategies to reinforce.

:func:`play_random_games` plays many games in parallel, and :func:`digit_probabilities` converts
"uniform between low and high" into probabilities for each next digit.

We train on these probabilities rather than on the sampled digits, which removes the sampling noise,
so the base learns the same rules from far fewer games.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

UPPER_BOUND = 1024
MAX_TURNS = 10

HABITS = 5
"""Number of habits. Each is one of the evenly spaced places in the remaining range."""

STOP = 10
"""Index of the choice "the number ends here"; choices 0 to 9 are the digits."""

CHOICES = 11


@dataclass(frozen=True)
class RandomGames:
    """A batch of games. Arrays have shape (games, turns), with -1 after the end of a game."""

    lows: NDArray[np.int64]
    """The smallest number that the player could have guessed on each turn."""
    highs: NDArray[np.int64]
    """The largest number that the player could have guessed on each turn."""
    guesses: NDArray[np.int64]
    answers: NDArray[np.int64]
    """The number to guess, with shape (games,)."""


def play_random_games(
    rng: np.random.Generator,
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    turns: int = MAX_TURNS,
    *,
    habits: bool = False,
) -> RandomGames:
    """Play one game per pair of bounds.

    If ``habits`` is true, the players have habits; otherwise, they are uniform (see the module
    docstring).
    """
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
    """Return the number in ``low..high`` that each habit guesses (habit 0 guesses the lowest)."""
    return low + (high - low) * habit // (HABITS - 1)


def digit_probabilities(digits: str, low: int, high: int) -> NDArray[np.float32]:
    """Return next-token probabilities after ``digits``, for a random number in ``low..high``."""
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
    """Return an array whose entry [prefix, bound] counts the numbers < bound with this prefix."""
    starts = np.zeros((UPPER_BOUND + 1, UPPER_BOUND + 2), np.int64)
    for number in range(UPPER_BOUND + 1):
        text = str(number)
        for length in range(1, len(text) + 1):
            starts[int(text[:length]), number + 1] = 1
    return starts.cumsum(axis=1)
