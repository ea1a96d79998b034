"""When the games are registered: at once if Gymnasium is imported, else as soon as it is.

Gymnasium 1.0 dropped the entry points by which plugins were found, so importing evert has to do it,
and either order of imports must work:

    import evert, gymnasium                             # gymnasium.make("evert/GuessNumber-v0")
    gymnasium.make("evert.envs:evert/GuessNumber-v0")   # Gymnasium imports us itself

Importing Gymnasium from here would make everybody who imports evert pay for it (and for NumPy).
Instead a finder waits for the import of ``gymnasium``, steps aside, and registers when it is done.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType


def register_when_gymnasium_is_there() -> None:
    """Register the games now, or at the end of the first ``import gymnasium``."""
    if "gymnasium" in sys.modules:
        _register()
    elif not any(isinstance(finder, _GymnasiumWatcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _GymnasiumWatcher())


def _register() -> None:
    from evert.envs.registration import register_builtin_envs

    register_builtin_envs()


class _GymnasiumWatcher(importlib.abc.MetaPathFinder):
    """Finds nothing itself: lets the other finders find ``gymnasium`` and watches its loader."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "gymnasium":
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _RegisteringLoader(spec.loader)
        return spec


class _RegisteringLoader(importlib.abc.Loader):
    """Loads as the loader it wraps, then hands the module back to it and registers the games."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader  # importlib.resources and reload look here
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        _register()
