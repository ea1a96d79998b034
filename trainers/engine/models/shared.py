"""One base in memory, whoever trains adapters of it and samples from them.

A base that is not trained whole is loaded once, while somebody uses it. Everybody gets a ``tree``:
a model with modules of its own, so that an adapter can be put into it, and with the weights of the
one that was loaded, which nobody changes.
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
    """The bases that are in use, by name."""

    def __init__(self) -> None:
        self._loaded: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def tree(self, name: str, load: Callable[[], Any]) -> Any:
        """A model with the weights of a base, which ``load`` loads where nobody uses it yet."""
        with self._lock:
            original = self._loaded.get(name)
            if original is None:
                original = load()
                original.requires_grad_(False)
                if can_be_lean(original):
                    lay_out(original)
                self._loaded[name] = original
        tree = with_own_modules(original)
        # Not an attribute like others: its parameters are not the tree's a second time.
        tree.__dict__[_ORIGINAL] = original
        return tree


def original_of(model: Any) -> Any:
    """The shared model whose weights a model has; None where its weights are its own."""
    return base_of(model).__dict__.get(_ORIGINAL)


def with_own_modules(model: Any) -> Any:
    """A copy of a model, but for the weights that are not trained: those stay the same tensors."""
    keep = {id(p): p for p in model.parameters() if not p.requires_grad}
    original = original_of(model)
    return copy.deepcopy(model, keep | {id(original): original})
