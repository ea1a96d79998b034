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
"""Seed of riddles that training has not seen."""

LONGEST = 10
"""Maximum number of questions in a riddle."""

MANY = 6
"""Riddles with this many fitting nouns, or more, are counted together."""


@dataclass(frozen=True)
class Recall:
    """How well the base guesses.

    Attributes:
        fitting: Probability that a guess begins like a noun that fits all answers, by the number of
            nouns that fit; the key ``MANY`` is for that many or more.
        one_left: How many riddles with one noun left it guesses right, greedily; of how many.
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
    """Pose new riddles of one to ten questions. The same weights give the same figures.

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
    """Return the position at which the noun of the last guess begins."""
    opening = corpus.opening
    return max(p for p in example.odds if example.tokens[p - len(opening) : p] == opening)


_CARD = """\
# evert-tiny-20q

The tiny chat base of Twenty Questions that ships with evert: a Qwen3 of {parameters:.2f} M
parameters with a byte-level tokenizer of {vocabulary} tokens, nearly every word of the game one.
It is the starting point of `evert train env=twenty_questions` and of no use for anything else.

## Training

On riddles and games made up on the spot by the script, nothing else. A riddle is a game with short
prompts whose questions are not learned; what is learned are the odds of all nouns that fit the
answers so far, and how a noun's name goes on. So the base knows {telling} telling facts of all
{nouns} nouns, the {held_out} held-out ones among them, as a language model does that comes to the
game; best where the questions asked were telling, since three riddles in five ask nothing else. A
game is one of 24 players of a habit, most of them poor and those that guess well rare, on a
training noun, and names no held-out one. So the base can play, and rarely wins: what to ask and
when to guess is what RL has to find. The category is hidden in about half. The renderer is the
Cookbook's `qwen3_instruct`.

{commands}

Loss over the last steps, in nats a token: {losses}.
In riddles it is the divergence from the odds of all nouns that fit, and from how their names go
on; in games that of the replies comes on top.

## Measured, on new riddles of one to ten questions

| nouns that fit the answers | {counts} |
|---|{rule}
| probability that a guess is one of them, where the questions tell most | {plain} |
| any questions | {any} |

Where a single noun fits, the most probable guess is that noun in {plain_right} of {plain_posed}
riddles whose questions tell most, and in {any_right} of {any_posed} others.
"""


def write_riddle_card(
    folder: Path,
    model: Qwen3ForCausalLM,
    commands: list[str],
    losses: Mapping[str, float],
    plain: Recall,
    others: Recall,
) -> None:
    """Write ``README.md``: what the base is, how it was made (``commands``), what it knows."""
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
