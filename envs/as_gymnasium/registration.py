"""Gymnasium ids for agents: the games, and ``register_agent`` for your agents.

    evert.register_agent("my/Env-v0", my_agent, tasks=[...])
    env = gymnasium.make("my/Env-v0")

Nothing here imports torch, tinker or a tokenizer; ``gymnasium.make`` does. An agent with an import
path is registered by that path, so that its ``EnvSpec`` can be pickled and written as JSON. Other
objects are wrapped in a ``Kept``, which deep copies share.
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
    """Register the games with their training tasks. Ids already registered are left alone."""
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
    """Give an agent an id, so that ``gymnasium.make(id)`` makes it an environment.

    ``gymnasium.make_vec(id, num_envs=64)`` makes many of them, played at the same time.

    Args:
        id: '[namespace/]Name-v0'.
        agent: The agent, or its import path 'module:function', which ``gymnasium.make`` imports.
        tasks: Sequence of tasks, or its import path; each episode draws one. None: no tasks.
        max_turns: Number of actions after which an episode is truncated. None: no limit.
        replace: Whether to replace a registered id, as when a notebook cell runs again.
        **options: Options of ``ChatAgentEnv`` for every environment of this id.

    Returns:
        The ``EnvSpec``, as from ``gymnasium.spec(id)``.

    Raises:
        gymnasium.error.RegistrationError: The id is malformed, or taken.
        InvalidAgentError: ``agent`` is not an agent, or does not take these arguments.
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
            f"An environment id is a string like 'my/Env-v0' ([namespace/]name-v<version>), got "
            f"{id!r}. Letters, digits, '_', '-' and ':' are allowed, and in the name '.'."
        )
    if id in gymnasium.registry and not replace:
        raise error.RegistrationError(_taken_message(str(id)))


def _taken_message(id: str) -> str:
    holder = gymnasium.registry[id].kwargs.get("agent", gymnasium.registry[id].entry_point)
    holder = unwrap(holder)
    name = holder if isinstance(holder, str) else agent_name(holder)
    base, _, version = id.rpartition("-v")
    return (
        f"The id {id!r} is taken by {name}. Choose another id, or the next version "
        f"({base}-v{int(version) + 1}), or pass replace=True to take its place."
    )


def _check_path(subject: str, path: str, error: type[EvertError]) -> None:
    module, _, name = path.partition(":")
    if not module or not name:
        raise error(f"Got {path!r} for {subject}; expected 'package.module:name'.")


def check_some_tasks(tasks: Any) -> None:
    """Check that tasks are a sequence, and not empty."""
    check_tasks(tasks)
    if isinstance(tasks, str):
        raise InvalidDatasetError(f"tasks are the text {tasks!r:.200}; expected a list of tasks.")
    if len(tasks) == 0:
        raise InvalidDatasetError(
            "tasks are empty: an episode draws one of them. Give at least one, or leave tasks out "
            "for an agent that takes none."
        )


def import_path(value: Any) -> str | None:
    """Return the path 'package.module:name' at which ``value`` can be imported, or None."""
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
    """Return ``value`` if it is a scalar or a list of scalars, else wrapped in a ``Kept``."""
    value = unwrap(value)
    if isinstance(value, (list, tuple)) and all(_is_scalar(item) for item in value):
        return list(value)
    return value if _is_scalar(value) else Kept(value)


def _is_scalar(value: Any) -> bool:
    return value is None or type(value) in (str, int, float, bool)
