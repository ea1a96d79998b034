"""Threads can share a tokenizer: each text is encoded with the options of its own call."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tinker_cookbook.tokenizer_utils import get_tokenizer
from transformers import AutoTokenizer

from evert.bridge.tokens.bases import base_path
from evert.trainers.engine.embedded import embedded_engine
from evert.trainers.engine.models.encoding import make_thread_safe

TEXT = "What is it?<|im_end|>" * 40


@pytest.fixture
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(base_path())


def encode_in_threads(tokenizer: Any) -> set[tuple[bool, int]]:
    """Encode a text in threads, some of which split special tokens; return the token counts."""

    def encode(split: bool) -> tuple[bool, int]:
        tokens = tokenizer.encode(TEXT, add_special_tokens=False, split_special_tokens=split)
        return split, len(tokens)

    with ThreadPoolExecutor(8) as pool:
        return set(pool.map(encode, [True, False] * 400))


def test_threads_with_different_options_share_a_tokenizer(tokenizer: Any, tmp_path: Path) -> None:
    assert len(encode_in_threads(make_thread_safe(tokenizer))) == 2
    with embedded_engine(tmp_path, device="cpu", stand_ins={"Qwen/*": str(base_path())}):
        assert len(encode_in_threads(get_tokenizer("Qwen/Qwen3-8B"))) == 2


@pytest.mark.parametrize("again", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_copies_of_a_tokenizer_encode_the_same_and_have_their_own_locks(
    tokenizer: Any, again: Any
) -> None:
    mine = make_thread_safe(make_thread_safe(tokenizer))
    theirs = again(mine)
    assert theirs.encode(TEXT) == mine.encode(TEXT)
    assert theirs._encode_plus._tokenizer is theirs
    assert theirs._encode_plus._lock is not mine._encode_plus._lock


def test_objects_other_than_transformers_tokenizers_are_unchanged() -> None:
    other = object()
    assert make_thread_safe(other) is other
