"""Checks of an environment's arguments: an error names the mistake, and what was expected.

Wrong actions, calls in the wrong order and wrong ids raise Gymnasium's errors
(``gymnasium.error.InvalidAction``, ``ResetNeeded``, ``RegistrationError``), which its users catch.
"""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

import chz
import numpy as np
from tinker_cookbook.rl.rollout_limits import RolloutLimits

from evert.bridge.env.options import EnvOptions
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
    """Check that ``value`` is an integer of at least 1; ``otherwise`` ends the message."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise EnvArgumentError(
            f"{name} is {value!r}; expected an integer of at least 1{otherwise}."
        )


def require_known(kind: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Check that every given name is known."""
    names = sorted(known)
    for name in given:
        if name not in names:
            raise EnvArgumentError(
                f"Unknown {kind} {name!r}; expected {', '.join(names)}." + did_you_mean(name, names)
            )


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """ " Did you mean ...?", or nothing."""
    close = difflib.get_close_matches(name, list(names), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def read_tasks(tasks: Any) -> Sequence[Any] | None:
    """The tasks, imported if ``tasks`` is an import path; None for no tasks."""
    if tasks is None:
        return None
    found = load_tasks(tasks)
    check_some_tasks(found)
    return found


def read_options(options: EnvOptions, max_turns: int | None) -> EnvOptions:
    """The options of ``ChatAgentEnv``, with ``max_turns`` in their limits."""
    own = ("level", "max_turns", "render_mode", "tasks")
    require_known("argument", options, (*EnvOptions.__annotations__, *own))
    plain: Any = {name: unwrap(value) for name, value in options.items()}
    if max_turns is not None:
        require_count("max_turns", max_turns, NO_LIMIT)
        limits = plain.get("limits") or RolloutLimits()
        turns = max_turns if limits.max_turns is None else min(max_turns, limits.max_turns)
        plain["limits"] = chz.replace(limits, max_turns=turns)
    return plain  # type: ignore[no-any-return]


def is_same_task(one: Any, other: Any) -> bool:
    """Whether two tasks are equal, arrays included."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return bool(np.array_equal(one, other))
    try:
        return bool(one == other)
    except (TypeError, ValueError):  # they cannot be compared
        return one is other
