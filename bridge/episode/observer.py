"""What watches an episode. ``Observer`` itself sees nothing; ``traces.py`` writes spans."""

import contextvars
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from evert.bridge.chat.reply import Reply
from evert.bridge.chat.request import ChatRequest

Over: TypeAlias = Callable[[Reply | BaseException], None]
"""Is told the reply of a model call, or with what it was refused or given up."""


class Observer:
    """What watches one episode; its methods are safe from any thread."""

    __slots__ = ()

    def begins(self, context: contextvars.Context) -> None:
        """The agent is about to be started in these context variables, which may be set."""

    def asked(
        self, request: ChatRequest, shown: Callable[[str], str], carrier: Mapping[str, str] | None
    ) -> Over:
        """The agent makes a model call; what is returned is to be told its end."""
        return _not_watched

    def rewarded(self, role: str, reward: float, why: str = "") -> None:
        """A reward was given, to the policy or a seat of this name; ``why`` is the stop reason."""

    def ends(self, how: str, error: BaseException | None = None) -> None:
        """The episode is over, by the agent's ``error`` or without one; may be told again."""

    def carried(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function for another thread, as it would be watched here."""
        return function

    def variables(self) -> dict[str, str]:
        """Environment variables by which a command is watched."""
        return {}


def _not_watched(_: Reply | BaseException) -> None:
    pass


NOBODY = Observer()
