"""``TokenLog`` stores the tokens of a growing conversation and returns them as prompts.

Returning a prompt of n tokens must not take O(n) time, so the log stores its tokens in chunks. New
tokens are merged with the last chunks until the preceding chunk is at least twice as long. A log of
n tokens therefore has at most log2(n) + 1 chunks, each token is copied about log2(n) times in
total, and a snapshot only copies references to chunks.

A *flat prompt* is a list of token ids in which an image (or another non-text chunk) is one element.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import tinker

Chunk = tinker.ModelInputChunk
FlatPrompt = list[int | Chunk]


def flatten(chunks: Iterable[Chunk]) -> FlatPrompt:
    """Convert chunks to a flat prompt."""
    flat: FlatPrompt = []
    for chunk in chunks:
        if isinstance(chunk, tinker.EncodedTextChunk):
            flat.extend(chunk.tokens)
        else:
            flat.append(chunk)
    return flat


def is_text(flat: Iterable[int | Chunk]) -> bool:
    """Return whether a flat prompt consists only of token ids."""
    return set(map(type, flat)) <= {int}  # hot path: one pass without a Python loop


def length_of(flat: Sequence[int | Chunk]) -> int:
    """Return the number of tokens. A non-text chunk counts as its length in tokens."""
    if is_text(flat):
        return len(flat)
    return sum(1 if isinstance(element, int) else element.length for element in flat)


def chunks_of(flat: FlatPrompt) -> list[Chunk]:
    """Convert a flat prompt to nonempty chunks. The list must not be modified afterwards."""
    return [_text_chunk(piece) if isinstance(piece, list) else piece for piece in _pieces(flat)]


def _pieces(flat: FlatPrompt) -> list[list[int] | Chunk]:
    """Split a flat prompt into runs of token ids and the non-text chunks between them."""
    if is_text(flat):
        return [flat] if flat else []  # type: ignore[list-item]
    pieces: list[Any] = []
    for is_token, run in groupby(flat, lambda element: isinstance(element, int)):
        elements = [*run]
        pieces += [elements] if is_token else elements
    return pieces


class TokenLog:
    """The tokens of a conversation. ``length`` also counts the tokens of non-text chunks.

    Logs are immutable: ``extended`` returns a new log that shares most chunks with the old one.
    """

    __slots__ = ("_chunks", "length")

    def __init__(self, chunks: Iterable[Chunk] = (), length: int = 0) -> None:
        self._chunks = [*chunks]
        self.length = length

    def extended(self, flat: FlatPrompt) -> "TokenLog":
        """Return the log followed by ``flat``, which must not be modified afterwards."""
        log = TokenLog(self._chunks, self.length)
        for piece in _pieces(flat):
            if isinstance(piece, list):
                log.length += len(piece)
                log._chunks.append(log._merged(piece))
            else:
                log.length += piece.length
                log._chunks.append(piece)
        return log

    def _merged(self, tokens: list[int]) -> tinker.EncodedTextChunk:
        """Remove chunks from the end of the log and return them merged with ``tokens``.

        Stops at a chunk that is not text, or that is at least twice as long as the merged tokens.
        """
        while self._chunks and isinstance(last := self._chunks[-1], tinker.EncodedTextChunk):
            if len(last.tokens) >= 2 * len(tokens):
                break
            tokens = [*last.tokens, *tokens]
            self._chunks.pop()
        return _text_chunk(tokens)

    def followed_by(self, flat: FlatPrompt) -> tinker.ModelInput:
        """Return the prompt that consists of the log and ``flat``, without changing the log."""
        return tinker.ModelInput(chunks=[*self._chunks, *chunks_of(flat)])


def _text_chunk(tokens: Sequence[int]) -> tinker.EncodedTextChunk:
    return tinker.EncodedTextChunk.model_construct(tokens=tokens, type="encoded_text")
