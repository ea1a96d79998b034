"""Keeps a single copy of each base model in memory, shared by all adapters.

A shared base model is loaded once and stays loaded while it is in use. Each user gets a ``tree``: a
model with its own module objects, to which an adapter can be attached. A tree's weights are the
shared weights, which never change.
"""

import copy
import threading
import weakref
from collections.abc import Callable
from typing import Any

from evert.trainers.engine.models.base_models import base_of
from evert.trainers.engine.models.lean import can_be_lean, lay_out

_ORIGINAL = "_evert_original"


class SharedBases:
    """The base models that are in use, by name."""

    def __init__(self) -> None:
        self._bases: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def tree(self, name: str, load: Callable[[], Any]) -> Any:
        """Return a model that shares a base model's weights, calling ``load`` if necessary."""
        with self._lock:
            original = self._bases.get(name)
            if original is None:
                original = load()
                original.requires_grad_(False)
                if can_be_lean(original):
                    lay_out(original)
                self._bases[name] = original
        tree = with_own_modules(original)
        # Don't register the original as a submodule: its parameters would be counted twice.
        tree.__dict__[_ORIGINAL] = original
        return tree


def original_of(model: Any) -> Any:
    """Return the shared base model whose weights a model uses, or None if they are its own."""
    return base_of(model).__dict__.get(_ORIGINAL)


def with_own_modules(model: Any) -> Any:
    """Copy a model's modules and trained weights, but share its frozen weights."""
    keep = {id(p): p for p in model.parameters() if not p.requires_grad}
    original = original_of(model)
    return copy.deepcopy(model, keep | {id(original): original})
