"""Context managers that temporarily change this process.

swap_names     replaces classes and functions in every module that has imported them
cpu_threads    sets the number of PyTorch's CPU threads
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

Swap = tuple[str, Any, Any]  # name, value outside the block, value inside the block


@contextmanager
def swap_names(swaps: Sequence[Swap]) -> Iterator[None]:
    """Inside the block, replace the named objects in every module that has imported them."""
    for name, original, replacement in swaps:
        _swap_everywhere(name, original, replacement)
    try:
        yield
    finally:
        for name, original, replacement in swaps:
            _swap_everywhere(name, replacement, original)


def _swap_everywhere(name: str, old: Any, new: Any) -> None:
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is old:
            setattr(module, name, new)


@contextmanager
def cpu_threads(threads: int | None) -> Iterator[None]:
    """Set the number of PyTorch CPU threads inside the block (None leaves it unchanged)."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        if threads is not None:
            torch.set_num_threads(before)
