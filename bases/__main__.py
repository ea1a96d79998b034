"""Train one of the tiny base models that ship with evert: ``python -m bases out=FOLDER``.

This trains a Qwen3 with 0.8 to 1.9 million parameters from scratch on generated dialogues, using a
single core, and saves it in Hugging Face format with its tokenizer and a model card. ``base=``
selects the base to train. The result depends only on the seed, although the last bits of the
weights may differ on another machine or with another PyTorch version. The default of 1200 steps
takes 20 to 30 minutes; use ``steps=60`` to try the script out.
"""

from collections.abc import Mapping
from pathlib import Path

import chz
import torch
from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

from bases import moves, riddles
from bases.cards import commands_of
from bases.chat_card import measure, write_chat_card
from bases.chat_corpus import ChatCorpus
from bases.move_card import measure_sight, write_move_card
from bases.moves import MoveCorpus
from bases.riddle_card import measure_recall, write_riddle_card
from bases.riddles import RiddleCorpus
from bases.tokenizer import make_tokenizer
from bases.training import Corpus, MakingConfig, make_model, train

MOVES = "evert-tiny-moves"


def corpus_of(config: MakingConfig, tokenizer: PreTrainedTokenizerBase) -> Corpus:
    """Return the training corpus for the configured base."""
    if config.base == "evert-tiny":
        return ChatCorpus(tokenizer, config.seed, habits=config.habits)
    if config.base == MOVES:
        return MoveCorpus(tokenizer, config.seed)
    return RiddleCorpus(tokenizer, config.seed)


def tokenizer_of(config: MakingConfig) -> PreTrainedTokenizerBase:
    """Build the tokenizer for the configured base."""
    if config.base == "evert-tiny":
        return make_tokenizer()
    made_of = moves if config.base == MOVES else riddles
    return make_tokenizer(made_of.tokenizer_text(), made_of.VOCAB_SIZE)


def shape_of(config: MakingConfig) -> Mapping[str, int]:
    """Return this base's overrides of the default model sizes."""
    return riddles.SHAPE if config.base == "evert-tiny-20q" else {}


def describe(
    config: MakingConfig,
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    losses: Mapping[str, float],
) -> None:
    """Measure what the base can do and write its model card."""
    before = commands_of(Path(config.start)) if config.start else []
    commands = [*before, _command(config)]
    if config.base == "evert-tiny":
        abilities = measure(model, tokenizer, games=config.measured_games)
        write_chat_card(Path(config.out), model, commands, losses, abilities)
    elif config.base == MOVES:
        sight = measure_sight(model, tokenizer, boards=config.measured_games)
        write_move_card(Path(config.out), model, commands, losses, sight)
    else:
        plain, others = (
            measure_recall(model, tokenizer, riddles=config.measured_games, plain=plain)
            for plain in (True, False)
        )
        write_riddle_card(Path(config.out), model, commands, losses, plain, others)


def _command(config: MakingConfig) -> str:
    """Return the command line that produces this base, with placeholders for the folders."""
    places = {"out": "FOLDER", "start": "THE_FOLDER_ABOVE"}
    plain = MakingConfig(out="")
    words = [
        f"{name}={places.get(name, value)}"
        for name, value in chz.asdict(config).items()
        if value != getattr(plain, name) or name in ("out", "steps", "seed")
    ]
    return " ".join(["python -m bases", *words])


def _cast(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Cast a model in place. Avoids the type hints of transformers' own ``to``, which are wrong."""
    model.to(dtype)


def main(config: MakingConfig) -> None:
    """Train, save and evaluate the base, and write its model card."""
    torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    tokenizer = tokenizer_of(config)
    model = make_model(tokenizer, shape_of(config))
    if config.start:
        model = Qwen3ForCausalLM.from_pretrained(config.start, dtype=torch.float32)
    losses = train(model, corpus_of(config, tokenizer), config)
    if config.base != "evert-tiny":  # save as bfloat16, and evaluate these rounded weights
        _cast(model, torch.bfloat16)
    model.save_pretrained(config.out)
    _cast(model, torch.float32)
    tokenizer.save_pretrained(config.out)
    for file in Path(config.out).iterdir():
        file.chmod(0o644)  # safetensors files are owner-only, but all users must have access
    describe(config, model, tokenizer, losses)
    print(Path(config.out, "README.md").read_text())


if __name__ == "__main__":
    main(chz.entrypoint(MakingConfig))
