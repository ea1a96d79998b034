"""Measures what ``evert-tiny-20q`` knows, and writes its model card."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

from bases.cards import write_card
from bases.dialogues import DialogueExample
from bases.riddles import TELLING, RiddleCorpus
from evert.envs.twenty_questions.nouns import of_split, shipped_nouns

SEED = 12345
"""Seed for riddles that were not seen in training."""

LONGEST = 10
"""Maximum number of questions in a riddle."""

MANY = 6
"""Riddles with at least this many matching nouns are reported together."""


@dataclass(frozen=True)
class Recall:
    """How well the base guesses.

    Attributes:
        fitting: Number of nouns that match all answers -> probability that the first token of a
            guess belongs to one of them. The key ``MANY`` stands for ``MANY`` or more nouns.
        one_left: Of the riddles with a single matching noun, the number that the base solves with
            greedy decoding, and the total number.
    """

    fitting: dict[int, float]
    one_left: tuple[int, int]


@torch.no_grad()
def measure_recall(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    riddles: int = 400,
    *,
    plain: bool = False,
) -> Recall:
    """Measure the base on new riddles with one to ten questions. Deterministic for given weights.

    Plain riddles ask only the most informative questions.
    """
    corpus = RiddleCorpus(tokenizer, SEED)
    shares: dict[int, list[float]] = defaultdict(list)
    right: list[bool] = []
    for number in range(riddles):
        example = corpus.riddle(1 + number % LONGEST, plain=plain)
        place = _guess_place(example, corpus)
        logits = model(input_ids=torch.tensor([example.tokens[:place]])).logits[0, -1]
        logits = logits[corpus.odds_tokens]
        fits = torch.from_numpy(example.odds[place]) > 0
        count = int(fits.sum())
        shares[min(count, MANY)].append(logits.softmax(-1)[fits].sum().item())
        if count == 1:
            right.append(bool(fits[logits.argmax()]))
    return Recall({n: fmean(shares[n]) for n in sorted(shares)}, (sum(right), len(right)))


def _guess_place(example: DialogueExample, corpus: RiddleCorpus) -> int:
    """Return the position of the first noun token in the last guess."""
    opening = corpus.opening
    return max(p for p in example.odds if example.tokens[p - len(opening) : p] == opening)


_CARD = """\
# evert-tiny-20q

The tiny base for Twenty Questions that ships with evert: a Qwen3 with {parameters:.2f} M parameters
and a byte-level tokenizer with {vocabulary} tokens, so nearly every word in the game is one token.
It is the starting point for `evert train env=twenty_questions` and not useful for anything else.

## Training

The base was trained only on riddles and games that the script generates on the fly. A riddle is a
game with short prompts in which the questions themselves are not trained on. Instead, the base
learns the probabilities of all nouns that match the answers so far, and how a noun's name
continues. In this way it learns the {telling} most informative attributes of all {nouns} nouns,
including the {held_out} held-out ones, which a large language model would already know. It knows
them best when the questions are informative, because three riddles in five ask nothing else. A
game is played on a training noun by one of 24 players with fixed habits and never mentions a
held-out noun. Most of the players are weak, and players who guess well are rare, so the base can
play but rarely wins. What to ask and when to guess is left for RL to find out. The category is
hidden in about half of the riddles and games. The renderer is the Cookbook's `qwen3_instruct`.

{commands}

Loss over the last steps, in nats per token: {losses}.
For riddles, this is the KL divergence from the probabilities of all matching nouns and of how their
names continue. For games, it also includes the loss on the replies.

## Measured, on new riddles of one to ten questions

| nouns that match the answers | {counts} |
|---|{rule}
| probability that a guess is one of them, only the most informative questions | {plain} |
| the same, any questions | {any} |

If only one noun matches, the most probable guess is that noun in {plain_right} of {plain_posed}
riddles with only the most informative questions, and in {any_right} of {any_posed} other riddles.
"""


def write_riddle_card(
    folder: Path,
    model: Qwen3ForCausalLM,
    commands: list[str],
    losses: Mapping[str, float],
    plain: Recall,
    others: Recall,
) -> None:
    """Write the model card to ``README.md``."""
    found = sorted(plain.fitting.keys() | others.fitting.keys())
    counts = [f"{n} or more" if n == MANY else str(n) for n in found]

    def shares(known: Recall) -> str:
        return " | ".join(f"{known.fitting[n]:.2f}" if n in known.fitting else "" for n in found)

    nouns = shipped_nouns()
    write_card(
        folder,
        model,
        commands,
        losses,
        _CARD,
        nouns=len(nouns),
        telling=TELLING,
        held_out=len(of_split(nouns, "test")),
        counts=" | ".join(counts),
        rule="---|" * len(counts),
        plain=shares(plain),
        plain_right=plain.one_left[0],
        plain_posed=plain.one_left[1],
        any=shares(others),
        any_right=others.one_left[0],
        any_posed=others.one_left[1],
    )
