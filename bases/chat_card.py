"""Measures what the tiny chat base can do, and writes its model card.

In order: :func:`replies` (sample one reply to each of many conversations), one function for each
ability, :func:`measure` for all of them, :func:`write_chat_card`. Everything is sampled at
temperature 1, as in RL.
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
    """The measured abilities; shares are from 0 to 1."""

    identity_reward: float
    """Mean reward of the hello-world game on 1000..1023: 1 for "I am N", -1 for "not N"."""
    identity_right: float
    """Share of right answers in it."""
    copied: float
    """Share of sentences repeated without a mistake."""
    wins: float
    """Share of games of guess-number won in ten guesses; 0.33 is random play within bounds."""
    in_bounds: list[float]
    """For the first to tenth guess: share that is well-formed and fits every hint so far."""


@torch.no_grad()
def replies(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    conversations: list[Dialogue],
    max_tokens: int = 32,
) -> list[str]:
    """Sample one reply to each conversation, from torch's global random state."""
    messages = [[{"role": role, "content": text} for role, text in c] for c in conversations]
    prompts: Any = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    longest = max(map(len, prompts))
    tokens = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for row, prompt in enumerate(prompts):  # generate() wants the padding on the left
        tokens[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    generated = model.generate(
        tokens, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=max_tokens
    )
    texts: list[str] = tokenizer.batch_decode(generated[:, longest:])
    return [text.split("<|im_end|>")[0] for text in texts]


def identity_rewards(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Play the hello-world game four times on each of 1000..1023."""
    tasks = list(range(1000, 1024)) * 4
    prompts = [[("user", IDENTITY_PROMPT.format(task=task))] for task in tasks]
    return [
        1 if f"I am {task}" in reply or f"I'm {task}" in reply else -(f"not {task}" in reply)
        for task, reply in zip(tasks, replies(model, tokenizer, prompts), strict=True)
    ]


def copied(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase) -> float:
    """Return the share of sentences with a four-digit number repeated without a mistake."""
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
        """Judge a guess and write down the hint."""
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
    """Play a game for each answer; return the share won, and each guess's share in bounds."""
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
    """Measure every ability. The same weights give the same figures."""
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

The tiny chat base that ships with evert: a Qwen3 of {parameters:.2f} M parameters with a byte-level
tokenizer of {vocabulary} tokens, small enough to learn by reinforcement on a laptop within minutes.
It is a starting point for the library's examples and tests and of no use as an assistant.

## Training

From scratch, on dialogues made up on the spot by the script, nothing else: copying text and
numbers, comparing numbers, midpoints, picking a number near the bottom, the middle or the top of a
range, a few facts, tool calls in Qwen's format; the hello-world game
("{prompt}"), played badly; and games of guess-number. First their
guesses are drawn uniformly from what the hints leave possible: the rules. Then come players of
habit, who keep to one place in what is left: its bottom, a quarter up, the middle, three quarters
up or its top, each as frequent as the others. So the base knows the rules, keeps to a habit once it
has one, and has no idea which habit wins: that is what RL has to find. The renderer is the
Cookbook's `qwen3_instruct`.

{commands}

Loss over the last steps, in nats a token: {losses}.
In games and picks the target of a digit is the odds of every digit, the loss the divergence.

## Measured, at temperature 1

| ability | figure |
|---|---|
| hello-world game on 1000..1023, mean reward (1 right, -1 "not", 0 else) | {identity_reward:.2f} |
| the same, share of right answers | {identity_right:.2f} |
| "Repeat: I am N.", N of four digits, repeated without a mistake | {copied:.2f} |
| guess-number, share of games won (random within bounds: 0.33; bisection: 1.00) | {wins:.2f} |
| guess-number, share of guesses within bounds, first to tenth | {in_bounds} |
"""


def write_chat_card(
    folder: Path,
    model: Qwen3ForCausalLM,
    commands: list[str],
    losses: Mapping[str, float],
    abilities: Abilities,
) -> None:
    """Write ``README.md``: what the base is, how it was made (``commands``), what it can do."""
    facts = asdict(abilities)
    facts["in_bounds"] = ", ".join(f"{share:.2f}" for share in abilities.in_bounds)
    facts["prompt"] = IDENTITY_PROMPT.format(task=7)
    write_card(folder, model, commands, losses, _CARD, **facts)
