"""Training data for ``evert-tiny``: chats and guess-number games.

In the games, the training target for each digit of a guess is a probability distribution.
:class:`ChatCorpus` draws the dialogues for each training step. Nothing is stored on disk: the seed
determines the corpus.
"""

import random
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from tinker_cookbook.recipes.multiplayer_rl.guess_number.env import SYSTEM_PROMPT
from transformers import PreTrainedTokenizerBase

from bases.chats import Dialogue, identity_game, small_talk, tool_use
from bases.dialogues import DialogueBatch, DialogueExample, Encoder
from bases.guessing import (
    UPPER_BOUND,
    RandomGames,
    digit_probabilities,
    play_random_games,
)

BOUNDED_PROMPT = "Guess my number. It is between {low} and {high}."
"""Prompt for the short games. It is shorter, but the rules are the same."""


def game_examples(
    encoder: Encoder, rng: np.random.Generator, count: int, *, habits: bool = False
) -> Iterator[DialogueExample]:
    """Yield complete guess-number games that use the Cookbook's prompt."""
    low, high = np.zeros(count, np.int64), np.full(count, UPPER_BOUND, np.int64)
    games = play_random_games(rng, low, high, habits=habits)
    for index in range(count):
        example = encoder.dialogue([("system", SYSTEM_PROMPT)])
        yield _write_game(encoder, games, index, example)


def short_game_examples(
    encoder: Encoder,
    rng: np.random.Generator,
    count: int,
    turns: int = 4,
    *,
    habits: bool = False,
) -> Iterator[DialogueExample]:
    """Yield the first few guesses of games whose range is given in the prompt."""
    low, high = _bounds(rng, count)
    games = play_random_games(rng, low, high, turns, habits=habits)
    for index in range(count):
        prompt = BOUNDED_PROMPT.format(low=low[index], high=high[index])
        yield _write_game(encoder, games, index, encoder.dialogue([("user", prompt)]))


PLACED_PROMPT = "Pick a number between {low} and {high}, near the {place}."
_PLACES = ("bottom", "middle", "top")


def placed_examples(
    encoder: Encoder, rng: np.random.Generator, count: int
) -> Iterator[DialogueExample]:
    """Yield single guesses from the bottom, middle or top third of a range."""
    lows, highs = _bounds(rng, count)
    for low, high in zip(lows.tolist(), highs.tolist(), strict=True):
        place = int(rng.integers(3))
        third = (high - low) // 3
        start = (low, (low + high - third) // 2, high - third)[place]
        prompt = PLACED_PROMPT.format(low=low, high=high, place=_PLACES[place])
        example = encoder.dialogue([("user", prompt)])
        guess = int(rng.integers(start, start + third + 1))
        _write_guess(encoder, guess, start, start + third, example)
        yield example


def _bounds(rng: np.random.Generator, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the lower and upper bounds of random ranges with log-uniform widths."""
    width = np.exp(rng.uniform(0, np.log(UPPER_BOUND), count)).astype(np.int64)
    low = rng.integers(0, UPPER_BOUND + 1 - width)
    return low, low + width


def _write_game(
    encoder: Encoder, games: RandomGames, index: int, example: DialogueExample
) -> DialogueExample:
    answer = int(games.answers[index])
    bounds = zip(games.lows[index].tolist(), games.highs[index].tolist(), strict=True)
    for guess, (low, high) in zip(games.guesses[index].tolist(), bounds, strict=True):
        if guess < 0:
            break
        _write_guess(encoder, guess, low, high, example)
        if guess == answer:
            break
        hint = "Too low" if guess < answer else "Too high"
        example.add([*encoder.header("user"), *encoder.text(hint), encoder.stop])
    return example


def _write_guess(
    encoder: Encoder, guess: int, low: int, high: int, example: DialogueExample
) -> None:
    example.add(encoder.header("assistant"))
    example.add(encoder.text("Guess: "), reply=True)
    digits = str(guess)
    for length in range(len(digits) + 1):
        position = len(example.tokens) + length
        example.soft_targets[position] = digit_probabilities(digits[:length], low, high)
    example.add([*encoder.text(digits), encoder.stop], reply=True)


class ChatCorpus:
    """Draws the dialogues for each training step. The same seed gives the same dialogues."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, seed: int, *, habits: bool = False
    ) -> None:
        """Start at the first step. For ``habits``, see ``play_random_games``."""
        self._habits = habits
        self.encoder = Encoder(tokenizer)
        self.target_tokens = self.encoder.digits_and_stop
        self.odds_tokens: list[int] = []
        self._text_rng = random.Random(seed)
        self._game_rng = np.random.default_rng(seed)

    def step(self, *, whole_games: bool) -> list[DialogueBatch]:
        """Draw the batches for one step. ``whole_games`` adds complete games, which are slow."""
        chats = [*self._chats(small_talk, 36), *self._chats(identity_game, 12)]
        chats.sort(key=lambda example: len(example.tokens))
        batches = [DialogueBatch("chat", 0.7, chats[:33]), DialogueBatch("chat", 0.3, chats[33:])]
        batches.append(DialogueBatch("tools", 0.2, self._chats(tool_use, 3)))
        count = 24 if whole_games else 40
        short = short_game_examples(self.encoder, self._game_rng, count, habits=self._habits)
        batches.append(DialogueBatch("short games", 4.0 if whole_games else 6.0, list(short)))
        placed = placed_examples(self.encoder, self._game_rng, 24)
        batches.append(DialogueBatch("picks", 4.0, list(placed)))
        if whole_games:
            games = game_examples(self.encoder, self._game_rng, 28, habits=self._habits)
            batches.append(DialogueBatch("games", 15.0, list(games)))
        return batches

    def _chats(
        self, kind: Callable[[random.Random], Dialogue], count: int
    ) -> list[DialogueExample]:
        return [self.encoder.dialogue(kind(self._text_rng)) for _ in range(count)]
