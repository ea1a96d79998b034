"""Tic-tac-toe moves by players with different habits.

A large language model already knows that three in a row wins; ``evert-tiny-moves`` learns it from
this data. There are four players (``habits`` in ``envs/tic_tac_toe.py``): one wins when it can, one
blocks the opponent when it can, one avoids moves that win or block, and one takes any free cell. In
half of the examples, a system message says which player is moving; in the other half, the player
may be any of the four, with equal probability. The base therefore learns to read a board, but not
which habit wins; RL has to find that out. The training targets are the probabilities of all moves.
"""

import random
from collections.abc import Iterator, Sequence

from bases.dialogues import DialogueExample, Encoder
from evert.envs.tic_tac_toe import board_text, boards, habits

ORDERS = ("Take any cell.", "Win if you can.", "Do not let O win.", "Leave all that matters alone.")
"""The system message for each habit."""


def board_examples(encoder: Encoder, rng: random.Random, count: int) -> Iterator[DialogueExample]:
    """Yield examples, each a single move on a random board."""
    for board, _ in zip(boards(rng), range(count), strict=False):
        played = habits(board)
        order = rng.randrange(2 * len(played))
        said = [("system", ORDERS[order])] if order < len(played) else []
        chances = move_chances(played[order : order + 1] or played)
        example = encoder.dialogue([*said, ("user", board_text(board))])
        (cell,) = rng.choices(range(9), chances)
        example.add(encoder.header("assistant"))
        encoder.learn_digit(example, cell + 1, [0.0, *chances])
        yield example


def move_chances(played: Sequence[Sequence[int]]) -> list[float]:
    """Return each cell's probability of being played.

    ``played`` has one list of cells per player. The player is drawn uniformly, then one of the
    cells in the player's list.
    """
    return [
        sum((cell in cells) / len(cells) for cells in played) / len(played) for cell in range(9)
    ]
