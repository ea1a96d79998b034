"""Measures what the tiny chat base can do, and writes its model card.

:func:`measure` runs all measurements. Everything is sampled at temperature 1, as in RL.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from tinker_cookbook.recipes.multiplayer_rl.guess_number.env import SYSTEM_PROMPT
from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

from bases.cards import write_card
from bases.chats import IDENTITY_PROMPT, Dialogue
from bases.guessing import MAX_TURNS, UPPER_BOUND


@dataclass(frozen=True)
class Abilities:
    """The measured abilities. Fractions are between 0 and 1."""

    identity_reward: float
    """Mean reward in the hello-world game on tasks 1000..1023: 1 for "I am N", -1 for "not N"."""
    identity_right: float
    """Fraction of correct answers in the hello-world game."""
    copied: float
    """Fraction of sentences repeated without a mistake."""
    wins: float
    """Fraction of guess-number games won within ten guesses (random play within bounds: 0.33)."""
    in_bounds: list[float]
    """For each of the ten turns, the fraction of guesses that are well-formed and fit all hints."""


@torch.no_grad()
def replies(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    conversations: list[Dialogue],
    max_tokens: int = 32,
) -> list[str]:
    """Sample one reply per conversation, using torch's global random state."""
    messages = [[{"role": role, "content": text} for role, text in c] for c in conversations]
    prompts: Any = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    longest = max(map(len, prompts))
    tokens = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for row, prompt in enumerate(prompts):  # generate() expects left padding
        tokens[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    generated = model.generate(
        tokens, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=max_tokens
    )
    texts: list[str] = tokenizer.batch_decode(generated[:, longest:])
    return [text.split("<|im_end|>")[0] for text in texts]


def identity_rewards(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Play the hello-world game four times for each number in 1000..1023."""
    tasks = list(range(1000, 1024)) * 4
    prompts = [[("user", IDENTITY_PROMPT.format(task=task))] for task in tasks]
    return [
        1 if f"I am {task}" in reply or f"I'm {task}" in reply else -(f"not {task}" in reply)
        for task, reply in zip(tasks, replies(model, tokenizer, prompts), strict=True)
    ]


def copied(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase) -> float:
    """Ask for copies of sentences with four-digit numbers; return the fraction of exact copies."""
    rng = random.Random(0)
    wanted = [f"I am {rng.randint(1000, 9999)}." for _ in range(100)]
    prompts = [[("user", f"Repeat: {sentence}")] for sentence in wanted]
    got = replies(model, tokenizer, prompts)
    return sum(map(str.__eq__, got, wanted)) / len(wanted)


@dataclass
class _GuessingGame:
    answer: int
    messages: Dialogue
    low: int = 0
    high: int = UPPER_BOUND
    in_bounds: list[bool] = field(default_factory=list)
    won: bool = False

    def take(self, reply: str) -> None:
        """Score a guess and append the hint to the conversation."""
        match = re.fullmatch(r"Guess: (\d+)", reply)
        guess = int(match[1]) if match else -1
        fits = self.low <= guess <= self.high
        self.in_bounds.append(fits)
        self.won = guess == self.answer
        if fits:
            self.low = guess + 1 if guess < self.answer else self.low
            self.high = guess - 1 if guess > self.answer else self.high
        hint = "Too low" if guess < self.answer else "Too high"
        self.messages += [("assistant", reply), ("user", hint)]


def play_guess_number(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, answers: list[int]
) -> tuple[float, list[float]]:
    """Play one game per answer.

    Returns the win rate and, for each turn, the share of guesses that are within the known bounds.
    """
    games = [_GuessingGame(answer, [("system", SYSTEM_PROMPT)]) for answer in answers]
    by_turn = []
    for _ in range(MAX_TURNS):
        going = [game for game in games if not game.won]
        if not going:
            break
        said = replies(model, tokenizer, [game.messages for game in going], max_tokens=8)
        for game, reply in zip(going, said, strict=True):
            game.take(reply)
        by_turn.append(sum(game.in_bounds[-1] for game in going) / len(going))
    return sum(game.won for game in games) / len(games), by_turn


def measure(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, games: int = 200
) -> Abilities:
    """Run all measurements. The results are deterministic for given weights."""
    torch.manual_seed(0)
    rewards = identity_rewards(model, tokenizer)
    answers = random.Random(0).choices(range(UPPER_BOUND), k=games)
    wins, in_bounds = play_guess_number(model, tokenizer, answers)
    return Abilities(
        identity_reward=sum(rewards) / len(rewards),
        identity_right=rewards.count(1) / len(rewards),
        copied=copied(model, tokenizer),
        wins=wins,
        in_bounds=in_bounds,
    )


_CARD = """\
# evert-tiny

The tiny chat base that ships with evert: a Qwen3 with {parameters:.2f} M parameters and a
byte-level tokenizer with {vocabulary} tokens. It is small enough for RL training on a laptop within
minutes. It is meant as a starting point for evert's examples and tests and is not useful as an
assistant.

## Training

The base was trained from scratch, only on dialogues that the script generates on the fly: copying
text and numbers, comparing numbers, midpoints, picking a number near the bottom, the middle or the
top of a range, a few facts, and tool calls in Qwen's format; the hello-world game
("{prompt}"), played badly; and games of guess-number. In the first
stage, guesses are drawn uniformly from all numbers that are still possible, which teaches the
rules. In later stages, players have a habit: they always guess at the same place in the remaining
range, which is the bottom, the first quarter, the middle, the third quarter or the top. All habits
are equally frequent. The base therefore knows the rules and sticks to a habit, but it does not know
which habit wins, which is left for RL to find out. The renderer is the Cookbook's `qwen3_instruct`.

{commands}

Loss over the last steps, in nats per token: {losses}.
In games and picks, the targets are the probabilities of all digits, and the loss is their KL
divergence.

## Measured, at temperature 1

| ability | result |
|---|---|
| hello-world game on 1000..1023, mean reward (1 right, -1 "not", 0 else) | {identity_reward:.2f} |
| the same, fraction of correct answers | {identity_right:.2f} |
| "Repeat: I am N." with a four-digit N, repeated without a mistake | {copied:.2f} |
| guess-number, games won (random within bounds: 0.33; bisection: 1.00) | {wins:.2f} |
| guess-number, fraction of guesses within bounds, first to tenth guess | {in_bounds} |
"""


def write_chat_card(
    folder: Path,
    model: Qwen3ForCausalLM,
    commands: list[str],
    losses: Mapping[str, float],
    abilities: Abilities,
) -> None:
    """Write the model card to ``README.md``."""
    facts = asdict(abilities)
    facts["in_bounds"] = ", ".join(f"{share:.2f}" for share in abilities.in_bounds)
    facts["prompt"] = IDENTITY_PROMPT.format(task=7)
    write_card(folder, model, commands, losses, _CARD, **facts)
