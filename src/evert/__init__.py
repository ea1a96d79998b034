"""evert: chat agents turned inside out into token-level RL environments.

    env = ChatAgentEnv(my_agent_fn)          # a tinker_cookbook.rl.types.Env

This is the public face; its names are listed in ``__init__.pyi``, where type checkers look, and
loaded on first use. Importing evert registers the games with Gymnasium, as Gymnasium's libraries
do, and loads neither torch nor tinker nor transformers. Where things live:

    evert.bridge     agent function -> Env, groups, datasets
    evert.envs       the games, and agents as Gymnasium environments
    evert.trainers   the embedded engine, training, evaluation
"""

import ast
import importlib
from pathlib import Path
from typing import Any

<<<<<<< HEAD
from evert.envs.gym import registration as _registration
=======
from evert import envs as envs  # registers the games once Gymnasium is imported

TYPE_CHECKING = False  # not typing's: this module is imported whenever Python starts
if TYPE_CHECKING:
    from typing import Any

    from evert.bridge.agent import Outcome
    from evert.bridge.check import check_env
    from evert.bridge.dataset import AgentDataset, AgentDatasetBuilder
    from evert.bridge.env import ChatAgentEnv
    from evert.bridge.errors import (
        AgentError,
        AgentTimeoutError,
        EnvCheckError,
        EnvClosedError,
        EnvStateError,
        EpisodeEndedError,
        EvertError,
        InvalidAgentError,
        RewardError,
    )
    from evert.bridge.explain import explain
    from evert.bridge.faces.client import AgentClient, BlockingAgentClient
    from evert.bridge.faces.process import ProcessAgent
    from evert.bridge.group import ChatAgentGroupBuilder
    from evert.bridge.models import RemoteModel
    from evert.bridge.scripted import ScriptedPolicy
    from evert.envs.games import Game
    from evert.envs.gym.registration import register_agent
    from evert.trainers.engine.engine import embedded_engine
    from evert.trainers.train import train
>>>>>>> 70167e6 (evert.train from Python; every field of the Cookbook's Config can be set; a run's folder survives kills; mistakes are a line)

__version__ = "0.1.0"

_FACE = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_HOMES = {
<<<<<<< HEAD
    alias.name: str(node.module)
    for node in _FACE.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
__all__ = ["__version__", *_HOMES]
=======
    "AgentClient": "evert.bridge.faces.client",
    "AgentDataset": "evert.bridge.dataset",
    "AgentDatasetBuilder": "evert.bridge.dataset",
    "AgentError": "evert.bridge.errors",
    "AgentTimeoutError": "evert.bridge.errors",
    "BlockingAgentClient": "evert.bridge.faces.client",
    "ChatAgentEnv": "evert.bridge.env",
    "ChatAgentGroupBuilder": "evert.bridge.group",
    "EnvCheckError": "evert.bridge.errors",
    "EnvClosedError": "evert.bridge.errors",
    "EnvStateError": "evert.bridge.errors",
    "EpisodeEndedError": "evert.bridge.errors",
    "EvertError": "evert.bridge.errors",
    "Game": "evert.envs.games",
    "InvalidAgentError": "evert.bridge.errors",
    "Outcome": "evert.bridge.agent",
    "ProcessAgent": "evert.bridge.faces.process",
    "RemoteModel": "evert.bridge.models",
    "RewardError": "evert.bridge.errors",
    "ScriptedPolicy": "evert.bridge.scripted",
    "check_env": "evert.bridge.check",
    "embedded_engine": "evert.trainers.engine.engine",
    "explain": "evert.bridge.explain",
    "register_agent": "evert.envs.gym.registration",
    "train": "evert.trainers.train",
}

__all__ = [
    "AgentClient",
    "AgentDataset",
    "AgentDatasetBuilder",
    "AgentError",
    "AgentTimeoutError",
    "BlockingAgentClient",
    "ChatAgentEnv",
    "ChatAgentGroupBuilder",
    "EnvCheckError",
    "EnvClosedError",
    "EnvStateError",
    "EpisodeEndedError",
    "EvertError",
    "Game",
    "InvalidAgentError",
    "Outcome",
    "ProcessAgent",
    "RemoteModel",
    "RewardError",
    "ScriptedPolicy",
    "__version__",
    "check_env",
    "embedded_engine",
    "explain",
    "register_agent",
    "train",
]
>>>>>>> 70167e6 (evert.train from Python; every field of the Cookbook's Config can be set; a run's folder survives kills; mistakes are a line)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'evert' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__


_registration.register_games()
