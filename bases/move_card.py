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
"""Seed for boards and hands that were not seen in training."""


class Sight(NamedTuple):
    """How close the base's action probabilities are to the targets.

    Attributes:
        boards: Mean KL divergence from the players' tic-tac-toe moves, in nats.
        hands: Mean KL divergence from the players' Blackjack actions, in nats.
        obeyed: For each system message, the mean total probability of the moves that follow it, on
            boards where some moves do not.
    """

    boards: float
    hands: float
    obeyed: Mapping[str, float]


@torch.no_grad()
def measure_sight(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, boards: int = 400
) -> Sight:
    """Measure on ``boards`` new boards and the same number of hands.

    The results are deterministic for given weights.
    """
    encoder, rng = Encoder(tokenizer), random.Random(SEED)
    orders = range(1, len(ORDERS))
    return Sight(
        fmean(_off(model, encoder, each) for each in board_examples(encoder, rng, boards)),
        fmean(_off(model, encoder, each) for each in hand_examples(encoder, rng, boards)),
        {ORDERS[order]: _obeyed(model, encoder, order, boards) for order in orders},
    )


def _off(model: Qwen3ForCausalLM, encoder: Encoder, example: DialogueExample) -> float:
    """Return the mean KL divergence over an example's actions."""
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

The tiny base for moves in games that ships with evert: a Qwen3 with {parameters:.2f} M parameters
and a byte-level tokenizer with {vocabulary} tokens. It is the starting point for `evert train
env=tic_tac_toe` and `evert train tasks=gymnasium:Blackjack-v1`, and not useful for anything else.

## Training

The base was trained only on single tic-tac-toe moves and Blackjack hands that the script generates
on the fly. Four players move on random boards: one wins when it can, one blocks the opponent, one
avoids doing either, and one takes any free cell. Hands are played by {players} players who stick
once the sum reaches a threshold, some with a different threshold for an ace or for some of the
dealer's cards. In half of the examples, a system message says who is playing; in the rest, all
players are equally likely. The base therefore understands boards and hands, as a large language
model would, but plays only as well as these players do on average. Which of them wins is left for
RL to find out. The renderer is the Cookbook's `qwen3_instruct`.

{commands}

Loss over the last steps: {losses}.
This is the KL divergence from the probabilities of all moves, in nats per token; one of the two
tokens is the end of the reply.

## Measured, on new boards and hands

| measurement | result |
|---|---|
| KL divergence from the players' tic-tac-toe moves, nats | {boards:.4f} |
| KL divergence from the players' Blackjack actions, nats | {hands:.4f} |
{obeyed}
"""


def write_move_card(
    folder: Path,
    model: Qwen3ForCausalLM,
    commands: list[str],
    losses: Mapping[str, float],
    sight: Sight,
) -> None:
    """Write the model card to ``README.md``."""
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
            f'| probability of a matching move when told "{order}" | {share:.2f} |'
            for order, share in sight.obeyed.items()
        ),
    )
