"""Training data for ``evert-tiny-moves``: tic-tac-toe moves and Blackjack hands.

Nothing is stored on disk: the seed determines the corpus.
"""

import random

from transformers import PreTrainedTokenizerBase

from bases.boards import ORDERS, board_examples
from bases.dialogues import DialogueBatch, Encoder
from bases.hands import PLAYERS, hand_examples

VOCAB_SIZE = 384
"""Vocabulary size, large enough that each word and each part of a board row is one token."""


def tokenizer_text() -> str:
    """Return the text to train the tokenizer on; boards and hands are repeated most often."""
    lines = " ".join(["X", "O", "XX", "OO", "OX"] * 40)
    hands = "Sum 12, usable ace, dealer 6.\n" * 40
    orders = "\n".join([*ORDERS, *(player.order for player in PLAYERS)])
    return "\n".join([lines, hands, orders, *["system\nuser\nassistant"] * 20])


class MoveCorpus:
    """Draws the dialogues for each training step. The same seed gives the same dialogues."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        """Start at the first step."""
        self.encoder = Encoder(tokenizer)
        self.target_tokens = self.encoder.digits_and_stop
        self.odds_tokens: list[int] = []
        self._rng = random.Random(seed)

    def step(self, *, whole_games: bool) -> list[DialogueBatch]:
        """Draw the batches for one step. ``whole_games`` has no effect."""
        boards = [*board_examples(self.encoder, self._rng, 128)]
        hands = [*hand_examples(self.encoder, self._rng, 64)]
        return [DialogueBatch("boards", 1.0, boards), DialogueBatch("hands", 1.0, hands)]
