"""Keeps one copy of a base in memory for all adapters that are trained or sampled from.

A shared base is loaded once, and stays loaded while in use. Each user gets a ``tree``: a model with
its own modules, which can take an adapter, and the shared weights, which never change.
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
    """The bases in use, by name."""

    def __init__(self) -> None:
        self._bases: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def tree(self, name: str, load: Callable[[], Any]) -> Any:
        """Return a model with a base's shared weights; call ``load`` if they are not in use."""
        with self._lock:
            original = self._bases.get(name)
            if original is None:
                original = load()
                original.requires_grad_(False)
                if can_be_lean(original):
                    lay_out(original)
                self._bases[name] = original
        tree = with_own_modules(original)
        # Not as a submodule, or the tree would count the shared parameters twice.
        tree.__dict__[_ORIGINAL] = original
        return tree


def original_of(model: Any) -> Any:
    """Return the shared base whose weights a model uses; None if the model has its own."""
    return base_of(model).__dict__.get(_ORIGINAL)


def with_own_modules(model: Any) -> Any:
    """Copy a model, but share the weights that are not trained."""
    keep = {id(p): p for p in model.parameters() if not p.requires_grad}
    original = original_of(model)
    return copy.deepcopy(model, keep | {id(original): original})
