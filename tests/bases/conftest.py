"""How a base's examples are read back from their tokens."""

from collections.abc import Iterable
from typing import Any

from tinker_cookbook.renderers import get_renderer

from evert.bases.making.dialogues import Batch, Example
from evert.bridge.tokens.bases import BASE_RENDERER


def messages_of(tokenizer: Any, example: Example) -> list[tuple[str, str]]:
    """An example as (role, text) messages."""
    text = tokenizer.decode(example.tokens)
    parts = [part.removesuffix("\n") for part in text.split("<|im_start|>")[1:]]
    messages = [part.partition("\n") for part in parts]
    return [(role, content.removesuffix("<|im_end|>")) for role, _, content in messages]


def rendered(tokenizer: Any, example: Example) -> list[int]:
    """What the Cookbook's renderer makes of an example's messages."""
    told = messages_of(tokenizer, example)
    messages: Any = [{"role": role, "content": text} for role, text in told]
    return get_renderer(BASE_RENDERER, tokenizer).build_supervised_example(messages)[0].to_ints()


def tokens_of(batches: Iterable[Batch]) -> list[list[int]]:
    """The tokens of all examples."""
    return [example.tokens for batch in batches for example in batch.examples]


def learned(tokenizer: Any, example: Example) -> str:
    """What is learned of an example, one after the other."""
    marked = [p for p, on in enumerate(example.loss_mask) if on or p in example.soft_targets]
    return str(tokenizer.decode([example.tokens[place] for place in marked]))
