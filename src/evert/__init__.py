"""evert: chat agents turned inside out into token-level RL environments.

    env = ChatAgentEnv(my_agent_fn)          # a tinker_cookbook.rl.types.Env

The public names are listed in ``__init__.pyi``, which is also used by type checkers. Each name is
loaded on first use. Like other Gymnasium packages, evert registers its games with Gymnasium when it
is imported. Importing evert does not load torch, tinker or transformers. The code is organised as
follows:

    evert.bridge     agent function -> Env, groups, datasets
    evert.agents     ready-made agents that run well-known programs
    evert.envs       games, and agents as Gymnasium environments
    evert.trainers   the embedded engine, training, evaluation
"""

import ast
import importlib
from pathlib import Path
from typing import Any

from evert.envs.as_gymnasium import registration as _registration

__version__ = "0.3.0"

_FACE = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_HOMES = {
    alias.name: str(node.module)
    for node in _FACE.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
__all__ = ["__version__", *_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'evert' has no attribute {name!r}")
    if _HOMES[name] == __name__:
        return importlib.import_module(f"{__name__}.{name}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__


_registration.register_games()
