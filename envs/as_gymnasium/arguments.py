"""Validates environment arguments.

Invalid actions, calls in the wrong order and invalid ids raise Gymnasium's own exceptions
(``gymnasium.error.InvalidAction``, ``ResetNeeded`` and ``RegistrationError``), since that is what
Gymnasium users expect.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import chz
import numpy as np
from tinker_cookbook.rl.rollout_limits import RolloutLimits

from evert.bridge.env.options import EnvOptions
from evert.bridge.errors import did_you_mean
from evert.bridge.groups.kept import unwrap
from evert.bridge.groups.tasks import load_tasks
from evert.envs.as_gymnasium.registration import check_some_tasks
from evert.envs.games import EnvArgumentError

NO_LIMIT = ", or None for no limit"


def require_one_of(name: str, value: object, values: Sequence[object]) -> None:
    """Check that ``value`` is one of ``values``."""
    if value not in values:
        allowed = ", ".join(map(repr, values))
        raise EnvArgumentError(
            f"{name}={value!r} is not supported; expected one of {allowed}."
            + did_you_mean(str(value), (str(value) for value in values))
        )


def require_count(name: str, value: object, otherwise: str = "") -> None:
    """Check that ``value`` is an integer >= 1; ``otherwise`` is appended to the error message."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise EnvArgumentError(
            f"{name} is {value!r}; expected an integer of at least 1{otherwise}."
        )


def require_supported(kind: str, names: Iterable[str], supported: Iterable[str]) -> None:
    """Check that every name is supported."""
    expected = sorted(supported)
    for name in names:
        if name not in expected:
            raise EnvArgumentError(
                f"Unknown {kind} {name!r}; expected {', '.join(expected)}."
                + did_you_mean(name, expected)
            )


def read_tasks(tasks: Any) -> Sequence[Any] | None:
    """Return the tasks, importing them if ``tasks`` is an import path. None means no tasks."""
    if tasks is None:
        return None
    sequence = load_tasks(tasks)
    check_some_tasks(sequence)
    return sequence


def read_options(options: EnvOptions, max_turns: int | None) -> EnvOptions:
    """Return the options for ``ChatAgentEnv``, with ``max_turns`` added to their limits."""
    arguments = ("level", "max_turns", "render_mode", "tasks")
    require_supported("argument", options, (*EnvOptions.__annotations__, *arguments))
    plain: Any = {name: unwrap(value) for name, value in options.items()}
    if max_turns is not None:
        require_count("max_turns", max_turns, NO_LIMIT)
        limits = plain.get("limits") or RolloutLimits()
        turns = max_turns if limits.max_turns is None else min(max_turns, limits.max_turns)
        plain["limits"] = chz.replace(limits, max_turns=turns)
    return plain  # type: ignore[no-any-return]


def is_same_task(first: Any, second: Any) -> bool:
    """Return whether two tasks, which may be arrays, are equal."""
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        return bool(np.array_equal(first, second))
    try:
        return bool(first == second)
    except (TypeError, ValueError):  # the tasks cannot be compared
        return first is second
