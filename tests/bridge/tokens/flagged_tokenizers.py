"""Tokenizers with the token flags of published tokenizers, and renderers that use them.

Each tokenizer has the bundled vocabulary and one model family's added tokens. The ``special``
flag in published files is not a reliable guide: Qwen's ``<tool_call>``, DeepSeek's ``<｜User｜>``
and Kimi's ``<|tool_call_begin|>`` are ``special: false``, but the models treat them as control
tokens.

Two families are made up: ``unicode`` normalizes text (NFKC) before it searches for added tokens,
and the tokens of ``greedy`` swallow surrounding whitespace, as some published tokens do.
"""

import copy
import inspect
import json
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import tinker_cookbook.renderers as cookbook
import tokenizers  # type: ignore[import-untyped]
from tests.bridge.tokens.call_families import FAMILIES
from tokenizers import AddedToken, normalizers
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from evert.bridge.tokens.bases import base_path
from evert.bridge.tokens.template import TemplateRenderer


@dataclass(frozen=True)
class Tokens:
    """The added tokens of a model family.

    Attributes:
        special: Added tokens that are flagged as special in the published files.
        plain: Added tokens with ``special: false``.
        bos: Beginning-of-sequence token, if any.
        normalizer: Normalizer applied to text before tokenisation, if any.
        fold: Whether added tokens are searched for in the normalized text.
        greedy: Whether tokens swallow surrounding whitespace.
    """

    special: tuple[str, ...]
    plain: tuple[str, ...] = ()
    bos: str | None = None
    normalizer: Any = None
    fold: bool = False
    greedy: bool = False


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


THINKING = words("<think> </think>")
CALLS = words("<tool_call> </tool_call> <tool_response> </tool_response>")

QWEN = Tokens(
    words(
        "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|box_start|> "
        "<|vision_start|> <|vision_end|> <|image_pad|> <|video_pad|>"
    ),
    plain=(*CALLS, *THINKING, "<|fim_prefix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"),
    normalizer=normalizers.NFC(),
)
LLAMA = Tokens(
    words(
        "<|begin_of_text|> <|end_of_text|> <|start_header_id|> <|end_header_id|> <|eom_id|> "
        "<|eot_id|> <|python_tag|> <|finetune_right_pad_id|> <|reserved_special_token_0|>"
    ),
    bos="<|begin_of_text|>",
)
DEEPSEEK = Tokens(
    words("<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜▁pad▁｜> <|EOT|>"),
    plain=THINKING
    + words(
        "<｜User｜> <｜Assistant｜> <｜System｜> <｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> "
        "<｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁outputs▁begin｜> "
        "<｜tool▁output▁begin｜> <｜tool▁output▁end｜> <｜tool▁sep｜> <｜fim▁hole｜> ｜DSML｜"
    ),
    bos="<｜begin▁of▁sentence｜>",
)
GLM = Tokens(
    words(
        "<|endoftext|> [MASK] [gMASK] <sop> <eop> <|system|> <|user|> <|assistant|> "
        "<|observation|> <|begin_of_image|> /nothink"
    ),
    plain=(*CALLS, *THINKING, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
KIMI = Tokens(
    words(
        "[BOS] [EOS] [EOT] <|im_end|> <|im_user|> <|im_assistant|> <|im_system|> <|im_middle|> "
        "<|media_begin|> <|media_content|> <|media_end|> <|media_pad|>"
    ),
    plain=THINKING
    + words(
        "<|tool_calls_section_begin|> <|tool_calls_section_end|> <|tool_call_begin|> "
        "<|tool_call_argument_begin|> <|tool_call_end|>"
    ),
    bos="[BOS]",
)
NEMOTRON = Tokens(
    words(
        "<unk> <s> </s> [INST] [/INST] [TOOL_CALLS] <|im_start|> <|im_end|> <img> </img> "
        "<SPECIAL_20>"
    ),
    plain=(*CALLS, *THINKING),
    bos="<s>",
)
HARMONY = Tokens(
    words(
        "<|startoftext|> <|endoftext|> <|return|> <|constrain|> <|channel|> <|start|> <|end|> "
        "<|message|> <|call|> <|endofprompt|>"
    ),
    bos="<|startoftext|>",
)
BASE = Tokens(("<|endoftext|>", "<s>"), plain=("<think>",), bos="<s>")
UNICODE = Tokens(QWEN.special, plain=QWEN.plain, normalizer=normalizers.NFKC(), fold=True)
LEARNED = Tokens(
    (*QWEN.special, "<|call|>", "<|/call|>", "<|args|>"),
    plain=(*QWEN.plain, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    normalizer=normalizers.NFC(),
)
GREEDY = Tokens(QWEN.special, plain=QWEN.plain, greedy=True)

PREFIXES = {
    **{"qwen3": QWEN, "llama3": LLAMA, "deepseek": DEEPSEEK, "glm": GLM, "kimi": KIMI},
    **{"nemotron": NEMOTRON, "gpt_oss": HARMONY, "role_colon": BASE, "template": LEARNED},
}
"""Maps a prefix of renderer names to their family."""

NAMES = sorted(set(re.findall(r'name == "([a-z0-9_]+)"', inspect.getsource(cookbook.get_renderer))))

OWN_TOKENIZER = ("tml_v0", "kimi_k31_pro")
"""Renderers that only work with their own model's tokenizer."""

ODD = {"unicode qwen3_5": UNICODE, "greedy qwen3_instruct": GREEDY}
"""Renderers with the made-up tokenizers."""

TEMPLATES = {
    "template objects, marked": FAMILIES["objects, marked"],
    "template keyed, pairs": FAMILIES["keyed, pairs"],
    "template text after calls": FAMILIES["text after calls"],
    "template_hermes": FAMILIES["objects, marked"].partition("{% endif %}")[2],
}
"""Chat templates for template renderers, which use Qwen's tokens and a few more."""

RENDERERS = [*(name for name in NAMES if not name.startswith(OWN_TOKENIZER)), *ODD, *TEMPLATES]
"""Template renderers and every renderer of the installed Cookbook that can be built offline."""

CLASSES = [
    *("qwen3", "qwen3_instruct", "qwen3_5", "qwen3_8_low_reasoning", "llama3", "role_colon"),
    *("deepseekv3", "deepseekv4_1", "glm5_3_low_reasoning", "kimi_k2", "kimi_k25", "nemotron3"),
    *("gpt_oss_no_sysprompt", *ODD, *TEMPLATES),
]
"""One renderer of each type, for tests that would take too long with all of them."""


def tokens_of(name: str) -> Tokens:
    """Return the added tokens for a renderer's family."""
    if name in ODD:
        return ODD[name]
    return next(tokens for prefix, tokens in PREFIXES.items() if name.startswith(prefix))


def make_tokenizer(tokens: Tokens) -> Any:
    """Return a tokenizer with the bundled vocabulary and only these added tokens."""
    shipped = json.loads((base_path() / "tokenizer.json").read_text())
    backend = tokenizers.Tokenizer.from_str(json.dumps({**shipped, "added_tokens": []}))
    if tokens.normalizer is not None:
        backend.normalizer = tokens.normalizer
    options = {"normalized": tokens.fold, "lstrip": tokens.greedy, "rstrip": tokens.greedy}
    backend.add_special_tokens(
        [AddedToken(text, special=True, **options) for text in tokens.special]
    )
    backend.add_tokens([AddedToken(text, special=False, **options) for text in tokens.plain])
    names = {} if tokens.bos is None else {"bos_token": tokens.bos}
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=backend, name_or_path="test", **names)


_tokenizer = cache(make_tokenizer)


@cache
def make_renderer(name: str) -> cookbook.Renderer:
    """Return a Cookbook or template renderer by name, with a tokenizer of its family."""
    tokenizer = _tokenizer(tokens_of(name))
    if name in TEMPLATES:
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.chat_template = TEMPLATES[name]
        return TemplateRenderer(tokenizer, hermes=name == "template_hermes")
    kind = name.split()[-1]
    images = Qwen2VLImageProcessorPil() if "_vl" in kind else None
    return cookbook.get_renderer(kind, tokenizer, image_processor=images, model_name="test")


def literals(name: str) -> dict[str, int]:
    """Map the text of each added token to its id. No text in a request may produce these ids."""
    tokenizer: Any = make_renderer(name).tokenizer
    added = tokenizer.added_tokens_decoder
    return {str(token): number for number, token in added.items()}
