"""``TokenLog`` is a plain list of tokens that is cheap to hand out.

It equals the list, whatever is appended, in O(log n) chunks; what was handed out never changes.
"""

import math
from itertools import pairwise

import tinker
from hypothesis import example, given
from hypothesis import strategies as st

from evert.bridge.tokens.token_log import (
    Chunk,
    FlatPrompt,
    TokenLog,
    chunks_of,
    flatten,
    is_text,
    length_of,
)

IMAGES = [
    tinker.types.ImageAssetPointerChunk(
        format="png", location=f"https://example.invalid/{number}.png", expected_tokens=tokens
    )
    for number, tokens in enumerate((1, 7, 300))
]

tokens = st.integers(min_value=0, max_value=200_000)
texts = st.lists(tokens, max_size=40)
flats = st.lists(st.one_of(tokens, st.sampled_from(IMAGES)), max_size=20)
pieces = st.lists(st.one_of(texts, flats), max_size=30)


def chunks_in(log: TokenLog) -> list[Chunk]:
    return log.followed_by([]).chunks


# -- flat prompts ----------------------------------------------------------------------------------


@given(flats)
def test_a_flat_prompt_is_chunks_of_text_between_images_and_the_same_again(
    flat: FlatPrompt,
) -> None:
    chunks = chunks_of(flat)
    kinds = [isinstance(chunk, tinker.EncodedTextChunk) for chunk in chunks]
    assert flatten(chunks) == flat
    assert all(chunk.length > 0 for chunk in chunks)
    assert (True, True) not in set(pairwise(kinds))
    assert length_of(flat) == tinker.ModelInput(chunks=chunks).length
    assert is_text(flat) == (not any(image in flat for image in IMAGES))
    assert chunks_of([]) == []


# -- the log ---------------------------------------------------------------------------------------


@given(pieces, flats)
@example([[1], [], [2]], [])
@example([[1], [IMAGES[1]], [2]], [])
@example([[1] * 3, [2] * 2, [3] * 5, [IMAGES[0], 4], [5]], [])
def test_a_prompt_is_the_plain_list_and_then_the_tail_and_never_changes_afterwards(
    parts: list[FlatPrompt], tail: FlatPrompt
) -> None:
    log, expected = TokenLog(), FlatPrompt()
    handed_out: list[tuple[tinker.ModelInput, FlatPrompt]] = []
    for part in parts:
        log, expected = log.extended(list(part)), [*expected, *part]
        assert flatten(chunks_in(log)) == expected
        assert log.length == log.followed_by([]).length == length_of(expected)
        assert all(chunk.length > 0 for chunk in chunks_in(log))
        handed_out.append((log.followed_by(tail), [*expected, *tail]))
    for prompt, whole in handed_out:
        assert flatten(prompt.chunks) == whole
        assert prompt.length == length_of(whole)
        assert tinker.ModelInput.model_validate(prompt.model_dump()) == prompt


@given(st.lists(st.integers(min_value=1, max_value=64), max_size=100))
@example(list(range(64, 0, -1)))  # falling sizes: the ones that are hardest to keep few
@example([64, 32, 16, 8, 4, 2, 1])
def test_a_text_of_n_tokens_has_at_most_log2_n_chunks_however_it_grew(sizes: list[int]) -> None:
    log = TokenLog()
    for size in sizes:
        log = log.extended([7] * size)
        lengths = [chunk.length for chunk in chunks_in(log)]
        assert all(longer >= 2 * shorter for longer, shorter in pairwise(lengths))
        assert len(lengths) <= math.log2(log.length) + 1


def test_images_separate_texts_that_stay_logarithmic_each() -> None:
    log = TokenLog()
    for number in range(1, 65):
        log = log.extended([number])
        if number % 32 == 0:
            log = log.extended([IMAGES[0]])

    assert [chunk.length for chunk in chunks_in(log)] == [32, 1, 32, 1]
