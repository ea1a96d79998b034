"""``TokenLog``: a conversation's tokens, growing at the end, handed out whole every turn.

Handing out a prompt of n tokens must not cost n. The log keeps its text in chunks whose sizes fall
like the digits of a binary counter: a new piece is merged with the ones before it until what stands
before is at least twice as long. A log of n tokens then has at most log2(n) + 1 chunks, each token
is copied about log2(n) times in its whole life, and a snapshot copies pointers to chunks.

A *flat prompt* is the other form: one list of token ids, in which an image (or another non-text
chunk) stands for itself.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import tinker

Chunk = tinker.ModelInputChunk
FlatPrompt = list[int | Chunk]


def flatten(chunks: Iterable[Chunk]) -> FlatPrompt:
    """The flat prompt of some chunks."""
    flat: FlatPrompt = []
    for chunk in chunks:
        if isinstance(chunk, tinker.EncodedTextChunk):
            flat.extend(chunk.tokens)
        else:
            flat.append(chunk)
    return flat


def is_text(flat: Iterable[int | Chunk]) -> bool:
    """Whether a flat prompt holds token ids only."""
    return set(map(type, flat)) <= {int}  # asked every turn: one pass, without a Python loop


def length_of(flat: Sequence[int | Chunk]) -> int:
    """Number of tokens, non-text chunks counted by their own length."""
    if is_text(flat):
        return len(flat)
    return sum(1 if isinstance(element, int) else element.length for element in flat)


def chunks_of(flat: FlatPrompt) -> list[Chunk]:
    """Chunks of a flat prompt; none of them is empty. The list must not change afterwards."""
    if is_text(flat):
        return [_text_chunk(flat)] if flat else []
    chunks: list[Any] = []
    for is_token, run in groupby(flat, lambda element: isinstance(element, int)):
        elements: list[Any] = [*run]
        chunks += [_text_chunk(elements)] if is_token else elements
    return chunks


class TokenLog:
    """Tokens that only grow; ``length`` is their number, non-text chunks counted by their length.

    A log itself never changes: ``extended`` gives another one, which shares most of its chunks.
    """

    __slots__ = ("_chunks", "length")

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []
        self.length = 0

    def extended(self, flat: FlatPrompt) -> "TokenLog":
        """The log with a flat prompt at its end; the list must not change afterwards."""
        log = TokenLog()
        log._chunks, log.length = self._chunks.copy(), self.length
        for chunk in chunks_of(flat):
            log.length += chunk.length
            log._append(chunk)
        return log

    def _append(self, chunk: Chunk) -> None:
        while self._chunks and isinstance(chunk, tinker.EncodedTextChunk):
            last = self._chunks[-1]
            if not isinstance(last, tinker.EncodedTextChunk) or last.length >= 2 * chunk.length:
                break
            chunk = _text_chunk([*last.tokens, *chunk.tokens])
            self._chunks.pop()
        self._chunks.append(chunk)

    def followed_by(self, flat: FlatPrompt) -> tinker.ModelInput:
        """The log and then ``flat``, as one prompt. The log itself does not change."""
        # Chunks that were validated once, or made here: validating them all again costs 10x.
        return tinker.ModelInput.model_construct(chunks=[*self._chunks, *chunks_of(flat)])


def _text_chunk(tokens: Sequence[int | Chunk]) -> tinker.EncodedTextChunk:
    return tinker.EncodedTextChunk.model_construct(tokens=tokens, type="encoded_text")
