"""Reads and writes the tokenizer in a GGUF file's metadata.

evert builds the tokenizer itself, because transformers would build one that splits text into words
by the rules of a different model. llama.cpp has several methods of splitting text (pre-tokenizers),
each with a name. When writing a tokenizer, we choose a method that produces the same tokens as the
tokenizer on thousands of random texts.
"""

import json
import random
from pathlib import Path
from typing import Any
from unicodedata import normalize

from evert.bridge.errors import InvalidModelError

REMEDY = "Export with format=merged, and convert the result with llama.cpp's convert_hf_to_gguf.py."

CONTROL, USER_DEFINED = 3, 4  # GGUF types of tokens that are matched as whole strings
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = {
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "qwen2": (_QWEN2,),
    "llama-bpe": (_QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|"),),
}
"""Names of GGUF pre-tokenizers, mapped to their regex patterns, which are applied in order.

The patterns are copied from llama.cpp's ``llama-vocab.cpp``.
"""

_NORMAL, _UNUSED = 1, 5  # GGUF token types
_TEXTS = 4096
_PARTS = (
    *"etaoinshrdlETAOIN  \t\n\r\u00a0\u3000.,;:!?'\u2019\"-_/\\()[]{}<>=+*&|^%$#@~`0123456789",
    *"٣४½²漢字かなคำé\u0301ñßµЖяעب🐕🇫🇷\u200d🚀€→",
    *("'s", "'LL", "don't", "12345", "3.14", "\n\n", "\r\n", " the", "The", "naïve", "ing"),
)  # fmt: skip


def read_tokenizer(reader: Any, file: Path) -> Any:
    """Build the tokenizer described in a GGUF file's metadata."""
    from transformers import AutoTokenizer

    def metadata(key: str, default: Any = None) -> Any:
        field = reader.fields.get(f"tokenizer.{key}")
        return default if field is None else field.contents()

    names, types = metadata("ggml.tokens"), metadata("ggml.token_type", [])
    if metadata("ggml.model") == "gpt2":
        words = metadata("ggml.pre", "gpt-2")
        if words not in WORDS:
            raise InvalidModelError(
                f"{file.name} uses the pre-tokenizer {words!r}, which evert does not support; "
                f"expected {', '.join(WORDS)}. Use the model's folder in Hugging Face format."
            )
        tokenizer = byte_level(names, types, metadata("ggml.merges"), words)
    else:  # transformers reads other tokenizers correctly, from the tokens' scores
        tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
        _add_tokens(tokenizer, names, types)
    tokenizer.chat_template = metadata("chat_template")
    keys = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    ids = {short: metadata(f"ggml.{key}_token_id") for short, key in keys.items()}
    tokenizer.add_special_tokens(
        {f"{short}_token": names[at] for short, at in ids.items() if at is not None}
    )
    return tokenizer


def byte_level(names: list[str], types: list[int], merges: list[str], words: str) -> Any:
    """Build a byte-level tokenizer from GGUF metadata, splitting text with ``WORDS[words]``."""
    from tokenizers import (  # type: ignore[import-untyped]
        Regex,
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
    )
    from transformers import PreTrainedTokenizerFast

    ids = {name: at for at, name in enumerate(names)}
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    backend = Tokenizer(models.BPE(ids, pairs, ignore_merges=words == "llama-bpe"))
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in WORDS[words]]
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_of])
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, clean_up_tokenization_spaces=False
    )
    _add_tokens(tokenizer, names, types)
    return tokenizer


def _add_tokens(tokenizer: Any, names: list[str], types: list[int]) -> None:
    from tokenizers import AddedToken

    for special, kind in ((True, CONTROL), (False, USER_DEFINED)):
        tokenizer.add_tokens(
            [
                AddedToken(name, special=special, normalized=False)
                for name, type_ in zip(names, types, strict=True)
                if type_ == kind
            ],
            special_tokens=special,
        )


def add_tokenizer(writer: Any, tokenizer: Any, rows: int, stops: list[int]) -> None:
    """Add a tokenizer to a ``gguf.GGUFWriter``. The model has embeddings for ``rows`` ids.

    Raises:
        InvalidModelError: None of the methods in ``WORDS`` splits text the way the tokenizer does.
    """
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    merges = [m if isinstance(m, str) else " ".join(m) for m in state["model"].get("merges", [])]
    tokens = {at: token for token, at in tokenizer.get_vocab().items()}
    names = [tokens.get(at, f"[PAD{at}]") for at in range(rows)]
    types = [_NORMAL if at in tokens else _UNUSED for at in range(rows)]
    for token in state["added_tokens"]:
        types[token["id"]] = CONTROL if token["special"] else USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_words_of(tokenizer, names, types, merges))
    writer.add_token_list(names)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(stops[0])
    writer.add_eot_token_id(stops[-1])
    if tokenizer.bos_token_id is not None:
        writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_add_bos_token(tokenizer("a").input_ids[0] == tokenizer.bos_token_id)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def _words_of(tokenizer: Any, names: list[str], types: list[int], merges: list[str]) -> str:
    draw = random.Random(0)
    samples = ("".join(draw.choices(_PARTS, k=draw.randint(1, 24))) for _ in range(_TEXTS))
    texts = [normalize("NFC", text) for text in samples]  # llama.cpp doesn't normalise text
    for words in WORDS if merges else ():
        candidate = byte_level(names, types, merges, words)
        if all(
            candidate.encode(text, add_special_tokens=False)
            == tokenizer.encode(text, add_special_tokens=False)
            for text in texts
        ):
            return words
    raise InvalidModelError(
        f"The tokenizer splits text in a way that evert can't export: it doesn't match any of "
        f"{', '.join(WORDS)}, so llama.cpp would encode text to different tokens. {REMEDY}"
    )
