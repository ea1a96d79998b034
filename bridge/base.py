"""The tiny chat bases that ship with evert: their names, folders and tokenizers.

    evert-tiny        plays identity and guess-number; the default wherever a model is needed
    evert-tiny-20q    knows the nouns of Twenty Questions

A folder (Hugging Face format, made by ``python -m evert.bases.making``) holds the weights and
the tokenizer. The bridge uses only the first one's tokenizer, as the default of ``ChatAgentEnv``,
so that one argument is enough and no network is needed; the embedded engine uses the weights.
"""

import sys
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinker_cookbook.renderers import Renderer

BASE_MODEL = "evert-tiny"
"""Model name of the default base, wherever the Cookbook or a user names a model."""

BASES = (BASE_MODEL, "evert-tiny-20q")
"""Model names of all shipped bases."""

BASE_RENDERER = "qwen3_instruct"
"""Cookbook renderer the bases were trained with."""


def base_path(name: str = BASE_MODEL) -> Path:
    """Folder of a shipped base: ``config.json``, ``model.safetensors``, ``tokenizer.json``."""
    import evert

    return Path(evert.__file__).parent / "bases" / name


@cache
def base_tokenizer(name: str = BASE_MODEL) -> Any:
    """A base's tokenizer, loaded once a process."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base_path(name))
    # The Cookbook pickles a renderer by its tokenizer's name: the name, not this machine's path.
    tokenizer.name_or_path = name
    # How long a prompt may be is the Env's limit and the engine's business, no reason to warn here.
    tokenizer.model_max_length = sys.maxsize
    return tokenizer


def register_base_tokenizers() -> None:
    """Let the Cookbook's ``get_tokenizer`` find the shipped tokenizers by their bases' names."""
    from tinker_cookbook.tokenizer_utils import register_tokenizer

    for name in BASES:
        register_tokenizer(name, partial(base_tokenizer, name))


@cache
def default_renderer() -> "Renderer":
    """The renderer of an Env that was given none: the default base's tokenizer in its format."""
    from tinker_cookbook.renderers import get_renderer

    return get_renderer(BASE_RENDERER, base_tokenizer(), model_name=BASE_MODEL)
