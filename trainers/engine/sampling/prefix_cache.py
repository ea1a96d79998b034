"""Keys and values of one set of weights, found by the tokens that they belong to: a radix tree.

A node holds the tokens that follow its parent's. Where two rows diverge, their node is cut in two,
so that a later row finds all of its cached prefix, to the token. The least recently used leaves are
dropped first; using a node also uses its parents, so they are never dropped before it.

Shapes: T tokens.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

Kept: TypeAlias = Sequence[Tensor]
"""Keys and values of T tokens: tensors [..., T, D], of all layers in the owner's order."""


class _Node:
    def __init__(self, tokens: np.ndarray, kept: Kept, parent: "_Node | None") -> None:
        self.tokens = tokens
        self.kept = kept
        self.parent = parent
        self.children: dict[int, _Node] = {}  # By their first token


class PrefixCache:
    """Keys and values of prefixes of rows."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.tokens = 0  # Tokens in the cache; shared ones count once
        self._root = _Node(np.zeros(0, np.int64), (), None)
        self._used: OrderedDict[_Node, None] = OrderedDict()  # The last used last, parents included

    def longest(self, tokens: np.ndarray, most: int) -> tuple[int, list[Kept]]:
        """How many of a row's first ``most`` tokens are cached; their keys and values in pieces."""
        path, length = self._walk(tokens[:most])
        return length, [_cut(node.kept, 0, same) for node, same in path]

    def put(self, tokens: np.ndarray, read: Callable[[int, int], Kept]) -> None:
        """Cache a row, unless it is too long; ``read(start, end)`` copies the part that is new."""
        path, length = self._walk(tokens)
        if length == len(tokens) or len(tokens) > self.max_tokens:
            return
        node, same = path[-1] if path else (self._root, 0)
        if same < len(node.tokens):
            node = self._split(node, same)
        new, kept = tokens[length:], read(length, len(tokens))
        if node.children or node is self._root:
            child = node.children[int(new[0])] = _Node(new, kept, node)
            self._touch(child)
        else:  # The row extends a leaf, which stays one piece.
            node.tokens = np.concatenate([node.tokens, new])
            node.kept = [torch.cat(pair, dim=-2) for pair in zip(node.kept, kept, strict=True)]
        self.tokens += len(new)
        while self.tokens > self.max_tokens:
            self._drop_oldest()

    def _walk(self, tokens: np.ndarray) -> tuple[list[tuple[_Node, int]], int]:
        """The nodes that match a prefix of ``tokens``, with each matched length; and their sum."""
        node, length, path = self._root, 0, []
        while length < len(tokens):
            child = node.children.get(int(tokens[length]))
            if child is None:
                break
            same = common_length(child.tokens, tokens[length:])
            path.append((child, same))
            length += same
            if same < len(child.tokens):
                break
            node = child
        if path:
            self._touch(path[-1][0])
        return path, length

    def _touch(self, node: _Node) -> None:
        while node.parent is not None:
            self._used[node] = None
            self._used.move_to_end(node)
            node = node.parent

    def _split(self, node: _Node, length: int) -> _Node:
        """Cut a node in two; returns the first."""
        parent = node.parent or self._root
        # Copies, not views: a dropped part must free its memory.
        kept, rest = _copy(node.kept, 0, length), _copy(node.kept, length, len(node.tokens))
        first = _Node(node.tokens[:length], kept, parent)
        parent.children[int(first.tokens[0])] = first
        node.kept, node.tokens, node.parent = rest, node.tokens[length:], first
        first.children[int(node.tokens[0])] = node
        self._touch(node)
        return first

    def _drop_oldest(self) -> None:
        node, _ = self._used.popitem(last=False)
        if node.parent is not None:
            del node.parent.children[int(node.tokens[0])]
        self.tokens -= len(node.tokens)


def common_length(first: np.ndarray, second: np.ndarray) -> int:
    """The length of the common prefix of two rows."""
    length = min(len(first), len(second))
    differ = first[:length] != second[:length]
    at = int(differ.argmax()) if length else 0
    return at if length and differ[at] else length


def in_line(rows: Sequence[np.ndarray]) -> tuple[list[int], list[int]]:
    """Sort rows by their tokens: their indices, and the length each shares with the one before."""
    # Big-endian, so that bytes sort as tokens do.
    order = sorted(range(len(rows)), key=lambda row: rows[row].astype(">u4").tobytes())
    return order, [0, *(common_length(rows[a], rows[b]) for a, b in pairwise(order))]


def _cut(kept: Kept, start: int, end: int) -> Kept:
    return [tensor[..., start:end, :] for tensor in kept]


def _copy(kept: Kept, start: int, end: int) -> Kept:
    return [tensor.clone() for tensor in _cut(kept, start, end)]
