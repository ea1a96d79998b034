"""The tiny chat base that ships with evert: its name, its folder, its tokenizer.

The folder (Hugging Face format, made by ``python -m evert.trainers.pretrain``) holds the weights
and the tokenizer. The bridge uses only the tokenizer, as the default of ``ChatAgentEnv``, so that
one argument is enough and no network is needed; the embedded engine uses the weights.
"""

import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinker_cookbook.renderers import Renderer

BASE_MODEL = "evert-tiny"
"""Model name of the shipped base, wherever the Cookbook or a user names a model."""

BASE_RENDERER = "qwen3_instruct"
"""Cookbook renderer the base was trained with."""


def base_path() -> Path:
    """Folder of the shipped base: ``config.json``, ``model.safetensors``, ``tokenizer.json``."""
    import evert

    return Path(evert.__file__).parent / "base"


@cache
def base_tokenizer() -> Any:
    """The base's tokenizer, loaded once a process."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base_path())
    # The Cookbook pickles a renderer by its tokenizer's name: the name, not this machine's path.
    tokenizer.name_or_path = BASE_MODEL
    # How long a prompt may be is the Env's limit and the engine's business, no reason to warn here.
    tokenizer.model_max_length = sys.maxsize
    return tokenizer


def register_base_tokenizer() -> None:
    """Let the Cookbook's ``get_tokenizer(BASE_MODEL)`` find the shipped tokenizer."""
    from tinker_cookbook.tokenizer_utils import register_tokenizer

    register_tokenizer(BASE_MODEL, base_tokenizer)


@cache
def default_renderer() -> "Renderer":
    """The renderer of an Env that was given none: the base's tokenizer in its chat format."""
    from tinker_cookbook.renderers import get_renderer

    return get_renderer(BASE_RENDERER, base_tokenizer(), model_name=BASE_MODEL)
