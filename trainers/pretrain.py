"""Make a tiny chat base that ships with evert: ``python -m evert.trainers.pretrain out=FOLDER``.

A Qwen3 of 0.85 or 0.98 M parameters is trained from scratch, on one core, on dialogues made up on
the spot, and written in Hugging Face format with its tokenizer and a model card. ``base=`` says
which one; what each is made of is in ``pretraining/``. The seed decides everything; on another
machine or PyTorch the last bits of the weights may differ. The default 1200 steps take about half
an hour; ``steps=60`` tries the script out.

In order: the config, the bases, :func:`make_model`, :func:`part_loss` (what a step minimises),
:func:`train`, :func:`main`.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, Protocol, TypeAlias

import chz
import numpy as np
import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor
from torch.nn import functional
from torch.optim import Optimizer
from transformers import PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from evert.trainers.pretraining import riddles
from evert.trainers.pretraining.chat_card import commands_of, measure, write_card
from evert.trainers.pretraining.chat_corpus import ChatCorpus
from evert.trainers.pretraining.dialogues import Example, Part
from evert.trainers.pretraining.riddle_card import measure_knowledge, write_riddle_card
from evert.trainers.pretraining.riddles import RiddleCorpus
from evert.trainers.pretraining.tokenizer import MAX_LENGTH, make_tokenizer

_Places: TypeAlias = tuple[Tensor, ...]


class Corpus(Protocol):
    """Draws the dialogues of one training step after the other."""

    choices: list[int]
    """The tokens that an example's odds are the odds of."""
    given_choice: bool
    """Whether they are odds among the choices alone, whatever the odds of all other tokens."""

    def step(self, *, whole_games: bool) -> list[Part]:
        """Draw a step's parts; without ``whole_games`` only what is quick to learn and to run."""
        ...


@chz.chz
class PretrainConfig:
    """What to train and where to put it."""

    out: str = chz.field(doc="folder for the weights, the tokenizer and the model card")
    base: Literal["evert-tiny", "evert-tiny-20q"] = chz.field(
        default="evert-tiny", doc="which one to make"
    )
    start: str = chz.field(default="", doc="folder of weights to go on from; empty: from scratch")
    habits: bool = chz.field(
        default=False, doc="second stage: games of players with habits, good and poor ones"
    )
    steps: int = chz.field(default=1200, doc="optimiser steps")
    warm_up: float = chz.field(default=0.12, doc="share of steps on short dialogues alone")
    seed: int = 0
    threads: int = chz.field(default=1, doc="CPU threads")
    save_every: int = chz.field(default=100, doc="steps between two savings of the weights")
    measured_games: int = chz.field(default=200, doc="games, or riddles, for the model card")
    matrix_lr: float = chz.field(default=0.02, doc="Muon's, for the layers' matrices")
    other_lr: float = chz.field(default=3e-3, doc="AdamW's, for embeddings and norms")


# -- the bases -----------------------------------------------------------------------------------


def corpus_of(config: PretrainConfig, tokenizer: PreTrainedTokenizerBase) -> Corpus:
    """What a base is trained on."""
    if config.base == "evert-tiny":
        return ChatCorpus(tokenizer, config.seed, habits=config.habits)
    return RiddleCorpus(tokenizer, config.seed, players=config.habits)


def tokenizer_of(config: PretrainConfig) -> PreTrainedTokenizerBase:
    """A base's tokenizer, made anew."""
    if config.base == "evert-tiny":
        return make_tokenizer()
    return make_tokenizer(riddles.tokenizer_text(), riddles.VOCAB_SIZE)


def describe(
    config: PretrainConfig,
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    losses: Mapping[str, float],
) -> None:
    """Measure what a base can do, and write its model card."""
    before = commands_of(Path(config.start)) if config.start else []
    commands = [*before, _command(config)]
    if config.base == "evert-tiny":
        abilities = measure(model, tokenizer, games=config.measured_games)
        write_card(Path(config.out), model, commands, losses, abilities)
    else:
        knowledge = measure_knowledge(model, tokenizer, riddles=config.measured_games)
        write_riddle_card(Path(config.out), model, commands, losses, knowledge)


# -- training ------------------------------------------------------------------------------------


def make_model(tokenizer: PreTrainedTokenizerBase) -> Qwen3ForCausalLM:
    """Build the model with random weights from torch's global seed."""
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": MAX_LENGTH,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "dtype": "float32",
    }
    build: Any = Qwen3ForCausalLM  # transformers does not type its constructors
    model: Qwen3ForCausalLM = build(Qwen3Config.from_dict(shape))
    return model


def part_loss(
    model: Qwen3ForCausalLM,
    examples: list[Example],
    choices: list[int],
    *,
    given_choice: bool = False,
) -> Tensor:
    """Mean loss over the reply tokens of some dialogues.

    Cross-entropy with the token itself where one is right; where several are right, the divergence
    from their odds, with ``given_choice`` among the choices alone.
    """
    tokens, hard, soft, odds = _collate(examples)
    hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
    row, column = hard
    logits = model.lm_head(hidden[row, column - 1])
    total = functional.cross_entropy(logits, tokens[row, column], reduction="sum")
    if len(odds):
        row, column = soft
        logits = model.lm_head(hidden[row, column - 1])
        if given_choice:
            logprobs = logits[:, choices].log_softmax(-1)
        else:
            logprobs = logits.log_softmax(-1)[:, choices]
        total = total + functional.kl_div(logprobs, odds, reduction="sum")
    return total / (len(hard[0]) + len(odds))


def _collate(examples: list[Example]) -> tuple[Tensor, _Places, _Places, Tensor]:
    """Right-padded tokens; (row, column) of hard and of soft targets; the soft targets' odds."""
    longest = max(len(example.tokens) for example in examples)
    tokens = torch.zeros(len(examples), longest, dtype=torch.long)
    hard = torch.zeros(len(examples), longest, dtype=torch.bool)
    soft = torch.zeros(len(examples), longest, dtype=torch.bool)
    odds: list[np.ndarray[tuple[int], np.dtype[np.float32]]] = []
    for row, example in enumerate(examples):
        length = len(example.tokens)
        tokens[row, :length] = torch.tensor(example.tokens)
        hard[row, :length] = torch.tensor(example.reply)
        soft[row, list(example.odds)] = True
        odds.extend(example.odds.values())
    both = (hard & ~soft).nonzero(as_tuple=True), soft.nonzero(as_tuple=True)
    return tokens, both[0], both[1], torch.from_numpy(np.array(odds))


def train(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, config: PretrainConfig
) -> dict[str, float]:
    """Train the model in place; return each part's mean loss over the last steps."""
    corpus = corpus_of(config, tokenizer)
    optimizers = _optimizers(model, config)
    recent: deque[dict[str, float]] = deque(maxlen=50)
    columns = (TextColumn("{task.completed}"), BarColumn(20), TextColumn("{task.description}"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn()) as progress:
        bar = progress.add_task("starting", total=config.steps)
        for step in range(config.steps):
            parts = corpus.step(whole_games=step >= config.warm_up * config.steps)
            _set_learning_rate(optimizers, step / config.steps)
            recent.append(_step(model, optimizers, parts, corpus))
            progress.update(bar, advance=1, description=_shown(_mean(recent)))
            if (step + 1) % config.save_every == 0:
                model.save_pretrained(config.out)
    return _mean(recent)


def _step(
    model: Qwen3ForCausalLM, optimizers: list[Optimizer], parts: list[Part], corpus: Corpus
) -> dict[str, float]:
    """One update; returns the loss of each part."""
    losses: dict[str, float] = {}
    for part in parts:
        loss = part_loss(model, part.examples, corpus.choices, given_choice=corpus.given_choice)
        (part.weight * loss).backward()  # type: ignore[no-untyped-call]
        losses[part.name] = loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return losses


def _optimizers(model: Qwen3ForCausalLM, config: PretrainConfig) -> list[Optimizer]:
    """Muon for the layers' matrices (half the steps of AdamW alone), AdamW for the rest."""
    embedding = model.get_input_embeddings().weight
    matrices = [p for p in model.parameters() if p.ndim == 2 and p is not embedding]
    others = [p for p in model.parameters() if p.ndim != 2 or p is embedding]
    muon = torch.optim.Muon(
        matrices, lr=config.matrix_lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(others, lr=config.other_lr, betas=(0.9, 0.98), weight_decay=0.01)
    return [muon, adamw]


def _set_learning_rate(optimizers: list[Optimizer], done: float) -> None:
    """Warm up over the first twentieth, then fall as a cosine; ``done`` is the share of steps."""
    scale = min(1.0, done * 20 + 0.05) * (0.515 + 0.485 * math.cos(math.pi * done))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = scale * group.setdefault("full_lr", group["lr"])


def _shown(losses: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {loss:.3f}" for name, loss in losses.items())


def _mean(recent: Sequence[dict[str, float]]) -> dict[str, float]:
    names = {name: None for losses in recent for name in losses}
    return {name: fmean(losses[name] for losses in recent if name in losses) for name in names}


def _command(config: PretrainConfig) -> str:
    """The command line that made this base; folders are named by what they are."""
    places = {"out": "FOLDER", "start": "THE_FOLDER_ABOVE"}
    plain = PretrainConfig(out="")
    words = [
        f"{name}={places.get(name, value)}"
        for name, value in chz.asdict(config).items()
        if value != getattr(plain, name) or name in ("out", "steps", "seed")
    ]
    return " ".join(["python -m evert.trainers.pretrain", *words])


def main(config: PretrainConfig) -> None:
    """Train, save, measure, and write the model card."""
    torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    tokenizer = tokenizer_of(config)
    model = make_model(tokenizer)
    if config.start:
        model = Qwen3ForCausalLM.from_pretrained(config.start, dtype=torch.float32)
    losses = train(model, tokenizer, config)
    model.save_pretrained(config.out)
    tokenizer.save_pretrained(config.out)
    for file in Path(config.out).iterdir():
        file.chmod(0o644)  # safetensors writes for the owner alone; package data is for all
    describe(config, model, tokenizer, losses)
    print(Path(config.out, "README.md").read_text())


if __name__ == "__main__":
    main(chz.entrypoint(PretrainConfig))
