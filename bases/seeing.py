"""Make a tiny vision model for tests: ``python -m bases.seeing out=FOLDER``.

Saves a Qwen3-VL with random weights in Hugging Face format, together with an image processor and a
tokenizer like ``evert-tiny``'s that also has image tokens. The model is untrained, takes less than
a megabyte and can be created in a second, so it does not ship with evert: tests and benchmarks
create the model when they need it.
"""

from pathlib import Path
from typing import Any

import chz
import torch
from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from bases.tokenizer import make_tokenizer

VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
"""The Qwen tokens that surround an image and stand for its content."""

_WORDS = """
What colour is the square? What is it? What do you see in the image? How many are there? Where?
red green blue yellow black white grey square circle left right top bottom one two three four
red\ngreen\nblue\nyellow\nblack\nwhite\ngrey\nsquare\ncircle\nleft\nright\ntop\nbottom
system
user
assistant
"""

PATCH = 8
"""Patch size in pixels. Each token covers 2 x 2 patches."""


@chz.chz
class SeeingConfig:
    """The model's size and seed, and where to save it."""

    out: str = chz.field(doc="folder for the weights, the tokenizer and the image processor")
    seed: int = 0
    hidden: int = chz.field(default=64, doc="hidden size of the text model")
    layers: int = chz.field(default=2, doc="layers of the text model")


def make_model(config: SeeingConfig, tokenizer: Any) -> Qwen3VLForConditionalGeneration:
    """Build the model with random weights, determined by the seed."""
    named = dict(zip(_NAMES, tokenizer.convert_tokens_to_ids(list(VISION)), strict=True))
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": config.hidden,
        "intermediate_size": 3 * config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 2048,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [4, 2, 2],
        },
        "tie_word_embeddings": True,
        "initializer_range": _SPREAD,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "out_hidden_size": config.hidden,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0],
        "initializer_range": _SPREAD,
    }
    shape: Any = Qwen3VLConfig
    build: Any = Qwen3VLForConditionalGeneration  # transformers does not type its constructors
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        made: Qwen3VLForConditionalGeneration = build(
            shape(text_config=text, vision_config=vision, tie_word_embeddings=True, **named)
        )
    made.generation_config.eos_token_id = tokenizer.eos_token_id
    return made


_SPREAD = 0.06
"""Standard deviation of the initial weights. A small model learns faster with this value than with
0.02."""

_NAMES = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")


def make_seeing_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with image tokens, trained on words that describe images."""
    tokenizer = make_tokenizer(_WORDS)
    tokenizer.add_special_tokens({"additional_special_tokens": list(VISION)})
    return tokenizer


def make_processor() -> Any:
    """Return an image processor that resizes images to between 16 x 16 and 64 x 64 pixels."""
    build: Any = Qwen2VLImageProcessorPil
    return build(
        patch_size=PATCH,
        merge_size=2,
        temporal_patch_size=2,
        min_pixels=(2 * PATCH) ** 2,
        max_pixels=64**2,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )


def main(config: SeeingConfig) -> None:
    """Create and save the model, its tokenizer and its image processor."""
    folder = Path(config.out)
    tokenizer = make_seeing_tokenizer()
    model = make_model(config, tokenizer)
    for part in (model, tokenizer, make_processor()):
        part.save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)
    print(f"{folder}: {model.num_parameters():,} parameters")


if __name__ == "__main__":
    main(chz.entrypoint(SeeingConfig))
