"""When the games are registered: at once if Gymnasium is imported, else as soon as it is.

Gymnasium 1.0 dropped the entry points by which plugins were found. So importing evert does it, in
either order of imports, and a ``.pth`` file beside the installed package (``setup.py``) imports
evert when Python starts, so that nobody else has to.

Importing Gymnasium from here would make every start of Python pay for it (and for NumPy). Instead a
finder waits for the import of ``gymnasium``, steps aside, and registers when it is done. For the
same reason this module imports next to nothing.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # not typing's, which takes longer than all of this
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType


def register_when_gymnasium_is_there() -> None:
    """Register the games now, or at the end of the first ``import gymnasium``."""
    if "gymnasium" in sys.modules:
        _register()
    elif not any(isinstance(finder, _GymnasiumWatcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _GymnasiumWatcher())


def _register() -> None:
    # Registers as it is loaded; asked for nothing, since this may be happening half way through it.
    import evert.envs.gym.registration  # noqa: F401


class _GymnasiumWatcher:
    """Finds nothing itself: lets the other finders find ``gymnasium`` and watches its loader."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "gymnasium":
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        from importlib.util import find_spec

        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _RegisteringLoader(spec.loader)  # type: ignore[assignment]
        return spec


class _RegisteringLoader:
    """Loads as the loader it wraps, then hands the module back to it and registers the games."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader  # importlib.resources and reload look here
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        _register()
