"""A radix tree for looking up a model's cached keys and values by their tokens.

Each node contains the tokens that follow its parent's tokens. Where two rows diverge, the node is
split, so that later rows find exactly their longest cached prefix. Nodes are evicted in LRU order.
Using a node also counts as using its ancestors, so parents are never evicted before their children.

Shapes: T tokens.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

KeyValues: TypeAlias = Sequence[Tensor]
"""Keys and values of T tokens: tensors [..., T, D], in an order that depends on the batch class."""


class _Node:
    def __init__(self, tokens: np.ndarray, key_values: KeyValues, parent: "_Node | None") -> None:
        self.tokens = tokens
        self.key_values = key_values
        self.parent = parent
        self.children: dict[int, _Node] = {}  # by first token


class PrefixCache:
    """Caches the keys and values of row prefixes."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.tokens = 0  # number of cached tokens, counting shared ones once
        self._root = _Node(np.zeros(0, np.int64), (), None)
        self._used: OrderedDict[_Node, None] = OrderedDict()  # in LRU order, most recent last

    def longest(self, tokens: np.ndarray, limit: int) -> tuple[int, list[KeyValues]]:
        """Return how many of the first ``limit`` tokens are cached, and their keys and values."""
        path, length = self._walk(tokens[:limit])
        return length, [_cut(node.key_values, 0, matched) for node, matched in path]

    def put(self, tokens: np.ndarray, copy_span: Callable[[int, int], KeyValues]) -> None:
        """Cache a row, unless it is too long. ``copy_span(start, end)`` copies the new part."""
        path, length = self._walk(tokens)
        if length == len(tokens) or len(tokens) > self.max_tokens:
            return
        node, matched = path[-1] if path else (self._root, 0)
        if matched < len(node.tokens):
            node = self._split(node, matched)
        new, new_key_values = tokens[length:], copy_span(length, len(tokens))
        if node.children or node is self._root:
            child = node.children[int(new[0])] = _Node(new, new_key_values, node)
            self._touch(child)
        else:  # the row extends a leaf, so we append to it instead of adding a node
            node.tokens = np.concatenate([node.tokens, new])
            pairs = zip(node.key_values, new_key_values, strict=True)
            node.key_values = [torch.cat(pair, dim=-2) for pair in pairs]
        self.tokens += len(new)
        while self.tokens > self.max_tokens:
            self._drop_oldest()

    def _walk(self, tokens: np.ndarray) -> tuple[list[tuple[_Node, int]], int]:
        """Find the longest cached prefix. Return (node, tokens matched) pairs and its length."""
        node, length, path = self._root, 0, []
        while length < len(tokens):
            child = node.children.get(int(tokens[length]))
            if child is None:
                break
            matched = common_length(child.tokens, tokens[length:])
            path.append((child, matched))
            length += matched
            if matched < len(child.tokens):
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
        """Split a node in two and return the first."""
        parent = node.parent or self._root
        # Make copies rather than views, so that memory is freed when one part is evicted.
        head = _copy(node.key_values, 0, length)
        tail = _copy(node.key_values, length, len(node.tokens))
        first = _Node(node.tokens[:length], head, parent)
        parent.children[int(first.tokens[0])] = first
        node.key_values, node.tokens, node.parent = tail, node.tokens[length:], first
        first.children[int(node.tokens[0])] = node
        self._touch(node)
        return first

    def _drop_oldest(self) -> None:
        node, _ = self._used.popitem(last=False)
        if node.parent is not None:
            del node.parent.children[int(node.tokens[0])]
        self.tokens -= len(node.tokens)


def common_length(first: np.ndarray, second: np.ndarray) -> int:
    """Return the length of the common prefix of two rows."""
    length = min(len(first), len(second))
    differ = first[:length] != second[:length]
    index = int(differ.argmax()) if length else 0
    return index if length and differ[index] else length


def sort_by_tokens(rows: Sequence[np.ndarray]) -> tuple[list[int], list[int]]:
    """Sort rows by tokens. Return their indices, and each row's overlap with its predecessor."""
    # Use big-endian integers, so that sorting by bytes is the same as sorting by tokens.
    order = sorted(range(len(rows)), key=lambda row: rows[row].astype(">u4").tobytes())
    return order, [0, *(common_length(rows[a], rows[b]) for a, b in pairwise(order))]


def _cut(key_values: KeyValues, start: int, end: int) -> KeyValues:
    return [tensor[..., start:end, :] for tensor in key_values]


def _copy(key_values: KeyValues, start: int, end: int) -> KeyValues:
    return [tensor.clone() for tensor in _cut(key_values, start, end)]
