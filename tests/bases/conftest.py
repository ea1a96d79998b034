"""Helpers that decode a base model's training examples back into messages."""

from typing import Any

from bases.dialogues import DialogueExample
from tinker_cookbook.renderers import get_renderer

from evert.bridge.tokens.bases import BASE_RENDERER


def messages_of(tokenizer: Any, example: DialogueExample) -> list[tuple[str, str]]:
    """Decode an example into (role, text) pairs."""
    text = tokenizer.decode(example.tokens)
    parts = [part.removesuffix("\n") for part in text.split("<|im_start|>")[1:]]
    messages = [part.partition("\n") for part in parts]
    return [(role, content.removesuffix("<|im_end|>")) for role, _, content in messages]


def rendered(tokenizer: Any, example: DialogueExample) -> list[int]:
    """Render an example's messages again with the Cookbook renderer."""
    told = messages_of(tokenizer, example)
    messages: Any = [{"role": role, "content": text} for role, text in told]
    return get_renderer(BASE_RENDERER, tokenizer).build_supervised_example(messages)[0].to_ints()
