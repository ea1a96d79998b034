"""Gymnasium ids: registers the games, and provides ``register_agent`` for your own agents.

    evert.register_agent("my/Env-v0", my_agent, tasks=[...])
    env = gymnasium.make("my/Env-v0")

This module doesn't import torch, tinker or a tokenizer; that happens in ``gymnasium.make``. Agents
that can be imported are registered by import path, so that the ``EnvSpec`` can be pickled and
written as JSON. All other objects are wrapped in a ``Kept``, so that deep copies share them.
"""

import importlib
from typing import TYPE_CHECKING, Any, Unpack

import gymnasium
from gymnasium import error
from gymnasium.envs.registration import ENV_ID_RE, EnvSpec

from evert.bridge.episode.agent import NO_TASK, Agent, agent_name, inspect_agent
from evert.bridge.errors import EvertError, InvalidAgentError, InvalidDatasetError
from evert.bridge.groups.kept import Kept, unwrap
from evert.bridge.groups.tasks import check_tasks
from evert.envs.games import games

if TYPE_CHECKING:
    from evert.bridge.env.options import EnvOptions

ENTRY_POINT = "evert.envs.as_gymnasium.env:AgentGymEnv"
VECTOR_ENTRY_POINT = "evert.envs.as_gymnasium.vector:AgentVectorEnv"


def register_games() -> None:
    """Register the games with their training tasks, skipping ids that are already registered."""
    for game in games().values():
        if game.id not in gymnasium.registry:
            register_agent(game.id, game.agent, game.train_tasks)


def register_agent(
    id: str,
    agent: Agent | str,
    tasks: Any = None,
    *,
    max_turns: int | None = None,
    replace: bool = False,
    **options: "Unpack[EnvOptions]",
) -> EnvSpec:
    """Register an agent as a Gymnasium environment, so that ``gymnasium.make(id)`` creates it.

    Use ``gymnasium.make_vec(id, num_envs=64)`` to play many episodes in parallel.

    Args:
        id: The environment id, '[namespace/]Name-v0'.
        agent: The agent, or its import path 'module:function', which ``gymnasium.make`` imports.
        tasks: Sequence of tasks, or its import path. Each episode draws one task (default: no
            tasks).
        max_turns: Number of actions after which an episode is truncated (default: no limit).
        replace: Whether to replace an existing id, for example when a notebook cell is rerun.
        **options: Options for ``ChatAgentEnv``, used by every environment with this id.

    Returns:
        The ``EnvSpec``, as returned by ``gymnasium.spec(id)``.

    Raises:
        gymnasium.error.RegistrationError: The id is malformed or already taken.
        InvalidAgentError: ``agent`` is not an agent, or has the wrong signature.
        InvalidDatasetError: ``tasks`` is not a sequence, or is empty.
    """
    _check_id(id, replace)
    if isinstance(tasks, str):
        _check_path("tasks", tasks, InvalidDatasetError)
    elif tasks is not None:
        check_some_tasks(tasks)
    if isinstance(agent, str):
        _check_path("the agent", agent, InvalidAgentError)
    else:
        inspect_agent(agent, NO_TASK if tasks is None else None)
    kwargs: dict[str, Any] = {"agent": wrap(import_path(agent) or agent)}
    if tasks is not None:
        kwargs["tasks"] = wrap(tasks)
    if max_turns is not None:
        kwargs["max_turns"] = max_turns
    kwargs.update({name: wrap(value) for name, value in options.items()})
    gymnasium.registry.pop(id, None)
    gymnasium.register(
        id, entry_point=ENTRY_POINT, vector_entry_point=VECTOR_ENTRY_POINT, kwargs=kwargs
    )
    return gymnasium.spec(id)


def _check_id(id: object, replace: bool) -> None:
    match = ENV_ID_RE.fullmatch(id) if isinstance(id, str) else None
    if match is None or match.group("version") is None:
        raise error.RegistrationError(
            f"An environment id must be a string like 'my/Env-v0' ([namespace/]name-v<version>), "
            f"got {id!r}. It may contain letters, digits, '_', '-', ':' and, in the name, '.'."
        )
    if id in gymnasium.registry and not replace:
        raise error.RegistrationError(_taken_message(str(id)))


def _taken_message(id: str) -> str:
    holder = gymnasium.registry[id].kwargs.get("agent", gymnasium.registry[id].entry_point)
    holder = unwrap(holder)
    name = holder if isinstance(holder, str) else agent_name(holder)
    base, _, version = id.rpartition("-v")
    return (
        f"The id {id!r} is already taken by {name}. Choose a different id, use the next version "
        f"({base}-v{int(version) + 1}), or pass replace=True to replace it."
    )


def _check_path(subject: str, path: str, error: type[EvertError]) -> None:
    module, _, name = path.partition(":")
    if not module or not name:
        raise error(f"Got {path!r} for {subject}; expected 'package.module:name'.")


def check_some_tasks(tasks: Any) -> None:
    """Check that ``tasks`` is a non-empty sequence."""
    check_tasks(tasks)
    if isinstance(tasks, str):
        raise InvalidDatasetError(f"tasks is the string {tasks!r:.200}; expected a list of tasks.")
    if len(tasks) == 0:
        raise InvalidDatasetError(
            "tasks is empty, but each episode draws a task from it. Pass at least one task, or "
            "leave tasks out if the agent doesn't take a task."
        )


def import_path(value: Any) -> str | None:
    """Return the path 'package.module:name' that ``value`` can be imported from, or None."""
    if isinstance(value, str):
        return value
    module_name, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if not module_name or not name or "<" in name:
        return None
    try:
        target: Any = importlib.import_module(module_name)
        for part in name.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError):
        return None
    return f"{module_name}:{name}" if target is value else None


def wrap(value: Any) -> Any:
    """Wrap ``value`` in a ``Kept``, unless it is a scalar or a list of scalars."""
    value = unwrap(value)
    if isinstance(value, (list, tuple)) and all(_is_scalar(item) for item in value):
        return list(value)
    return value if _is_scalar(value) else Kept(value)


def _is_scalar(value: Any) -> bool:
    return value is None or type(value) in (str, int, float, bool)
