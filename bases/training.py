"""Trains a base: a small Qwen3, from scratch, with Muon and AdamW.

:func:`make_model` builds the model, :func:`batch_loss` is the training objective, and
:func:`train` runs the training loop on dialogues from a :class:`Corpus`.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import chz
import numpy as np
import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor
from torch.nn import functional
from torch.optim import Optimizer
from transformers import PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from bases.dialogues import DialogueBatch, DialogueExample
from bases.tokenizer import MAX_LENGTH

_Positions: TypeAlias = tuple[Tensor, ...]


@chz.chz
class MakingConfig:
    """Which base to train, how, and where to save it."""

    out: str = chz.field(doc="output folder for the weights, tokenizer and model card")
    base: Literal["evert-tiny", "evert-tiny-20q", "evert-tiny-moves"] = chz.field(
        default="evert-tiny", doc="the base to train"
    )
    start: str = chz.field(default="", doc="folder with initial weights (default: random weights)")
    habits: bool = chz.field(
        default=False, doc="in games, players have habits (for evert-tiny's later stages)"
    )
    steps: int = chz.field(default=1200, doc="optimiser steps")
    warm_up: float = chz.field(default=0.12, doc="fraction of steps that use only short dialogues")
    seed: int = 0
    threads: int = chz.field(default=1, doc="CPU threads")
    bfloat16: bool = chz.field(default=False, doc="use bfloat16 autocast (faster on newer CPUs)")
    save_every: int = chz.field(default=100, doc="save the weights every N steps")
    measured_games: int = chz.field(default=200, doc="games or riddles to play for the model card")
    matrix_lr: float = chz.field(default=0.02, doc="Muon's learning rate for the weight matrices")
    other_lr: float = chz.field(default=3e-3, doc="AdamW's learning rate for everything else")


class Corpus(Protocol):
    """Draws the dialogues for each training step."""

    target_tokens: list[int]
    """The tokens whose probabilities are in ``DialogueExample.soft_targets``."""
    odds_tokens: list[int]
    """The tokens whose probabilities are in ``DialogueExample.odds``."""

    def step(self, *, whole_games: bool) -> list[DialogueBatch]:
        """Draw the batches for one step. Without ``whole_games``, all dialogues are short."""
        ...


def make_model(
    tokenizer: PreTrainedTokenizerBase, given: Mapping[str, int] | None = None
) -> Qwen3ForCausalLM:
    """Build the model with random weights from torch's global seed.

    ``given`` overrides the default sizes.
    """
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
        **(given or {}),
    }
    build: Any = Qwen3ForCausalLM  # transformers does not type its constructors
    model: Qwen3ForCausalLM = build(Qwen3Config.from_dict(shape))
    return model


def batch_loss(model: Qwen3ForCausalLM, examples: list[DialogueExample], corpus: Corpus) -> Tensor:
    """Return the mean loss of the reply tokens, plus the mean loss of the positions with odds.

    If a reply token has a soft target, its loss is the KL divergence; otherwise, it is the
    cross-entropy. Odds are probabilities of ``corpus.odds_tokens``; their loss is the KL divergence
    over these tokens only.
    """
    tokens, hard, soft, odds = _collate(examples)
    hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state

    def logits(row: Tensor, column: Tensor) -> Tensor:
        found: Tensor = model.lm_head(hidden[row, column - 1])
        return found

    replies = functional.cross_entropy(logits(*hard), tokens[hard], reduction="sum")
    loss = torch.zeros(())
    if len(soft.targets):
        found = logits(*soft.places).log_softmax(-1)[:, corpus.target_tokens]
        replies = replies + functional.kl_div(found, soft.targets, reduction="sum")
    if count := len(hard[0]) + len(soft.targets):
        loss = loss + replies / count
    if len(odds.targets):
        found = logits(*odds.places)[:, corpus.odds_tokens].log_softmax(-1)
        loss = loss + functional.kl_div(found, odds.targets, reduction="batchmean")
    return loss


class _Soft(NamedTuple):
    """Soft targets and their (row, column) positions."""

    places: _Positions
    targets: Tensor


def _collate(examples: list[DialogueExample]) -> tuple[Tensor, _Positions, _Soft, _Soft]:
    """Return right-padded tokens, the positions of hard targets, the soft targets and the odds."""
    longest = max(len(example.tokens) for example in examples)
    tokens = torch.zeros(len(examples), longest, dtype=torch.long)
    hard = torch.zeros(len(examples), longest, dtype=torch.bool)
    for row, example in enumerate(examples):
        length = len(example.tokens)
        tokens[row, :length] = torch.tensor(example.tokens)
        hard[row, :length] = torch.tensor(example.loss_mask)
        hard[row, list(example.soft_targets)] = False
    soft = _soft([example.soft_targets for example in examples])
    odds = _soft([example.odds for example in examples])
    return tokens, hard.nonzero(as_tuple=True), soft, odds


def _soft(rows: Sequence[Mapping[int, np.ndarray[tuple[int], np.dtype[np.float32]]]]) -> _Soft:
    places = [(row, column) for row, found in enumerate(rows) for column in found]
    targets = [target for found in rows for target in found.values()]
    row, column = torch.tensor(places, dtype=torch.long).reshape(-1, 2).unbind(1)
    return _Soft((row, column), torch.from_numpy(np.array(targets)))


def train(model: Qwen3ForCausalLM, corpus: Corpus, config: MakingConfig) -> dict[str, float]:
    """Train the model in place; return the mean loss over the last steps, by batch name."""
    if config.bfloat16:  # fused attention is slow in bfloat16
        model.set_attn_implementation("eager")
    optimizers = _optimizers(model, config)
    recent: deque[dict[str, float]] = deque(maxlen=50)
    columns = (TextColumn("{task.completed}"), BarColumn(20), TextColumn("{task.description}"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn()) as progress:
        bar = progress.add_task("starting", total=config.steps)
        for step in range(config.steps):
            batches = corpus.step(whole_games=step >= config.warm_up * config.steps)
            _set_learning_rate(optimizers, step / config.steps)
            recent.append(_step(model, optimizers, batches, corpus, config.bfloat16))
            progress.update(bar, advance=1, description=_shown(_mean(recent)))
            if (step + 1) % config.save_every == 0:
                model.save_pretrained(config.out)
    return _mean(recent)


def _step(
    model: Qwen3ForCausalLM,
    optimizers: list[Optimizer],
    batches: list[DialogueBatch],
    corpus: Corpus,
    bfloat16: bool = False,
) -> dict[str, float]:
    """Run one optimiser step and return the loss of each batch."""
    losses: dict[str, float] = {}
    for batch in batches:
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            loss = batch_loss(model, batch.examples, corpus)
        (batch.weight * loss).backward()  # type: ignore[no-untyped-call]
        losses[batch.name] = loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return losses


def _optimizers(model: Qwen3ForCausalLM, config: MakingConfig) -> list[Optimizer]:
    """Use Muon for matrices (it needs half as many steps as AdamW), and AdamW for the rest."""
    embedding = model.get_input_embeddings().weight
    matrices = [p for p in model.parameters() if p.ndim == 2 and p is not embedding]
    others = [p for p in model.parameters() if p.ndim != 2 or p is embedding]
    muon = torch.optim.Muon(
        matrices, lr=config.matrix_lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(others, lr=config.other_lr, betas=(0.9, 0.98), weight_decay=0.01)
    return [muon, adamw]


def _set_learning_rate(optimizers: list[Optimizer], done: float) -> None:
    """Set the learning rates: a warm-up over the first 5% of steps, combined with cosine decay.

    ``done`` is the fraction of steps completed.
    """
    scale = min(1.0, done * 20 + 0.05) * (0.515 + 0.485 * math.cos(math.pi * done))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = scale * group.setdefault("full_lr", group["lr"])


def _shown(losses: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {loss:.3f}" for name, loss in losses.items())


def _mean(recent: Sequence[dict[str, float]]) -> dict[str, float]:
    names = {name: None for losses in recent for name in losses}
    return {name: fmean(losses[name] for losses in recent if name in losses) for name in names}
