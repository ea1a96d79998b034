"""evert: chat agents turned inside out into token-level RL environments.

    env = ChatAgentEnv(my_agent_fn)          # a tinker_cookbook.rl.types.Env

This is the public face. Names are loaded on first use, so that importing evert (as Gymnasium does
to register the games) costs neither torch nor tinker. Where things live:

    evert.bridge     agent function -> Env, groups, datasets
    evert.envs       the games, and their registration with Gymnasium
    evert.trainers   the embedded engine, training, evaluation
"""

from __future__ import annotations

import importlib

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

__version__ = "0.1.0"

_HOMES = {
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
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'evert' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return __all__
