"""What is different in this process inside a block: names of others that are ours, threads.

swapped        classes and functions replaced in every module that holds them
cpu_threads    how many threads PyTorch computes with
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

Swap = tuple[str, Any, Any]  # A name, what it is elsewhere, and what it is inside the block


@contextmanager
def swapped(swaps: Sequence[Swap]) -> Iterator[None]:
    """Have the names be ours inside the block, wherever they were imported to."""
    for name, theirs, ours in swaps:
        _swap_everywhere(name, theirs, ours)
    try:
        yield
    finally:
        for name, theirs, ours in swaps:
            _swap_everywhere(name, ours, theirs)


def _swap_everywhere(name: str, old: Any, new: Any) -> None:
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is old:
            setattr(module, name, new)


@contextmanager
def cpu_threads(threads: int | None) -> Iterator[None]:
    """Set PyTorch's threads inside the block; None leaves them as they are."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        if threads is not None:
            torch.set_num_threads(before)
