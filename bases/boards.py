"""Moves at tic-tac-toe, by players with every habit.

A large language model knows that three in a line win; ``evert-tiny-moves`` learns it here. Four
players move (``habits`` in ``envs/tic_tac_toe.py``): one wins where it can, one keeps the other
from winning, one does neither, one takes any free cell. In half of the examples a system message
says which of them plays; in the others, all four are equally likely. So the base can read a board,
but does not know which habit wins: RL has to find that. The training targets are the probabilities
of all moves.
"""

import random
from collections.abc import Iterator, Sequence

from bases.dialogues import DialogueExample, Encoder
from evert.envs.tic_tac_toe import board_text, boards, habits

ORDERS = ("Take any cell.", "Win if you can.", "Do not let O win.", "Leave all that matters alone.")
"""The system message for each habit."""


def board_examples(encoder: Encoder, rng: random.Random, count: int) -> Iterator[DialogueExample]:
    """Yield examples of one move each, on random boards."""
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
    """Return the cells' probabilities when equally likely players draw from these cells."""
    return [
        sum((cell in cells) / len(cells) for cells in played) / len(played) for cell in range(9)
    ]
