"""Measures how well ``evert-tiny-moves`` reads boards and hands, and writes its model card."""

import random
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch
from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

from bases.boards import ORDERS, board_examples
from bases.cards import write_card
from bases.dialogues import DialogueExample, Encoder
from bases.hands import PLAYERS, hand_examples
from evert.envs.tic_tac_toe import board_text, boards, habits

SEED = 12345
"""Seed of boards and hands that training has not seen."""


class Sight(NamedTuple):
    """How close the base's actions are to their targets.

    Attributes:
        boards: Mean divergence of its moves from those of players of every habit, in nats.
        hands: Mean divergence of its actions at Blackjack from the players', in nats.
        obeyed: By system message: the probability of a move that it asks for, on boards where it
            does not ask for all moves.
    """

    boards: float
    hands: float
    obeyed: Mapping[str, float]


@torch.no_grad()
def measure_sight(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, boards: int = 400
) -> Sight:
    """Measure on new boards and as many hands. The same weights give the same figures."""
    encoder, rng = Encoder(tokenizer), random.Random(SEED)
    orders = range(1, len(ORDERS))
    return Sight(
        fmean(_off(model, encoder, each) for each in board_examples(encoder, rng, boards)),
        fmean(_off(model, encoder, each) for each in hand_examples(encoder, rng, boards)),
        {ORDERS[order]: _obeyed(model, encoder, order, boards) for order in orders},
    )


def _off(model: Qwen3ForCausalLM, encoder: Encoder, example: DialogueExample) -> float:
    """Return the mean divergence of an example's actions."""
    logits = model(input_ids=torch.tensor([example.tokens])).logits[0]
    found = logits.log_softmax(-1)[:, encoder.digits_and_stop]
    divergence = torch.nn.functional.kl_div
    return fmean(
        divergence(found[place - 1], torch.from_numpy(wanted), reduction="sum").item()
        for place, wanted in example.soft_targets.items()
    )


def _obeyed(model: Qwen3ForCausalLM, encoder: Encoder, order: int, count: int) -> float:
    shares = []
    for board in boards(random.Random(SEED)):
        wanted, free = habits(board)[order], habits(board)[0]
        if len(wanted) == len(free):
            continue
        example = encoder.dialogue([("system", ORDERS[order]), ("user", board_text(board))])
        example.add(encoder.header("assistant"))
        chances = model(input_ids=torch.tensor([example.tokens])).logits[0, -1].softmax(-1)
        shares.append(sum(chances[encoder.text(str(cell + 1))[0]].item() for cell in wanted))
        if len(shares) == count:
            break
    return fmean(shares)


_CARD = """\
# evert-tiny-moves

The tiny chat base of moves that ships with evert: a Qwen3 of {parameters:.2f} M parameters with a
byte-level tokenizer of {vocabulary} tokens. It is the starting point of `evert train
env=tic_tac_toe` and `evert train tasks=gymnasium:Blackjack-v1`, and of no use for anything else.

## Training

On single moves at tic-tac-toe and hands of Blackjack made up on the spot by the script, nothing
else. On random boards four players move: one wins where it can, one keeps the other from winning,
one does neither, one takes any free cell. Hands are played by {players} players who stick from some
sum on, whichever it is, from another one with an ace or against some of the dealer's cards. In half
of the examples a system's message says who plays; in the others each is as probable as the rest. So
the base sees what is on a board and in a hand, as a language model does that comes to the game, and
plays as poorly as they do on average: which of them gains is what RL has to find. The renderer is
the Cookbook's `qwen3_instruct`.

{commands}

Loss over the last steps, the divergence from the probabilities of all moves in nats a token, the
end of the reply one of two: {losses}.

## Measured, on new boards and hands

| what | figure |
|---|---|
| divergence of a move at tic-tac-toe from what the players do, nats | {boards:.4f} |
| the same of an action at Blackjack | {hands:.4f} |
{obeyed}
"""


def write_move_card(
    folder: Path,
    model: Qwen3ForCausalLM,
    commands: list[str],
    losses: Mapping[str, float],
    sight: Sight,
) -> None:
    """Write ``README.md``: what the base is, how it was made (``commands``), what it sees."""
    write_card(
        folder,
        model,
        commands,
        losses,
        _CARD,
        digits=4,
        players=len(PLAYERS),
        boards=sight.boards,
        hands=sight.hands,
        obeyed="\n".join(
            f'| told "{order}", probability of such a move | {share:.2f} |'
            for order, share in sight.obeyed.items()
        ),
    )
