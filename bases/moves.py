"""What ``evert-tiny-moves`` is trained on: moves at tic-tac-toe and hands of Blackjack.

In order: the text its tokenizer is made for, :class:`MoveCorpus`. Nothing is stored: the seed
determines the corpus.
"""

import random

from transformers import PreTrainedTokenizerBase

from bases.boards import ORDERS, board_examples
from bases.dialogues import DialogueBatch, Encoder
from bases.hands import PLAYERS, hand_examples

VOCAB_SIZE = 384
"""Size of its tokenizer: each word of the games is a token, and each part of a board's line."""


def tokenizer_text() -> str:
    """Return the games' words; those of boards and hands are repeated most."""
    lines = " ".join(["X", "O", "XX", "OO", "OX"] * 40)
    hands = "Sum 12, usable ace, dealer 6.\n" * 40
    orders = "\n".join([*ORDERS, *(player.order for player in PLAYERS)])
    return "\n".join([lines, hands, orders, *["system\nuser\nassistant"] * 20])


class MoveCorpus:
    """Draws each training step's dialogues in order; equal seeds give equal dialogues."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        """Start at the first step of ``seed``."""
        self.encoder = Encoder(tokenizer)
        self.target_tokens = self.encoder.digits_and_stop
        self.odds_tokens: list[int] = []
        self._rng = random.Random(seed)

    def step(self, *, whole_games: bool) -> list[DialogueBatch]:
        """Draw a step's batches; ``whole_games`` has no effect."""
        boards = [*board_examples(self.encoder, self._rng, 128)]
        hands = [*hand_examples(self.encoder, self._rng, 64)]
        return [DialogueBatch("boards", 1.0, boards), DialogueBatch("hands", 1.0, hands)]
