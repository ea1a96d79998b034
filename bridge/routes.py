"""The route table: which inbox or frozen model a model name leads to, or the 400 that says why not.

    the policy's names      its inbox: the call is a transition
    ``evert/SEAT``          the seat's inbox
    ``models={...}``        the frozen model of that name: answered at once, never trained on
    any other name          the policy where there is nothing else to mean (frameworks insist on
                            names like "gpt-4o"); else a 400 with the nearest name there is

Calls that are taken over are looked up by ``knows``: another name goes where it would have gone.
"""

import difflib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from evert.bridge.errors import InvalidModelError
from evert.bridge.inbox import Inbox
from evert.bridge.messages import Reply
from evert.bridge.requests import ChatRequest, bad_request

SEAT_PREFIX = "evert/"
"""What a seat's model name begins with."""

FrozenAnswer: TypeAlias = Callable[[ChatRequest], Awaitable[Reply]]
"""A frozen model: what it replies to a request."""


class Routes:
    """Who answers the calls to each model name.

    Args:
        inboxes: Trained roles by model name; a role may have several names.
        frozen: Frozen models by name.
    """

    def __init__(self, inboxes: Mapping[str, Inbox], frozen: Mapping[str, FrozenAnswer]) -> None:
        self._targets: dict[str, Inbox | FrozenAnswer] = {**inboxes, **frozen}
        roles = {id(inbox): inbox for inbox in inboxes.values()}
        self._only = next(iter(roles.values())) if len(roles) == 1 and not frozen else None

    @property
    def names(self) -> tuple[str, ...]:
        """All names that are answered, the trained roles' first."""
        return tuple(self._targets)

    @property
    def seats(self) -> dict[str, Inbox]:
        """The seats' inboxes by the seats' names; none where there is one policy."""
        return {
            name.removeprefix(SEAT_PREFIX): target
            for name, target in self._targets.items()
            if isinstance(target, Inbox) and name.startswith(SEAT_PREFIX)
        }

    def knows(self, model: object) -> bool:
        """Whether a name is one of those answered here."""
        return isinstance(model, str) and model in self._targets

    def find(self, model: str) -> Inbox | FrozenAnswer:
        """Who answers the calls to ``model``.

        Raises:
            openai.BadRequestError: Nobody does (code ``model_not_found``).
        """
        target = self._targets.get(model, self._only)
        if target is not None:
            return target
        near = difflib.get_close_matches(model, self._targets, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise bad_request(
            f"There is no model {model!r} in this episode. {hint}Models: "
            f"{', '.join(self._targets)}. Ask for one of them (an agent with seats: by "
            "client.seat(name)).",
            param="model",
            code="model_not_found",
        )


def seat_model(name: str) -> str:
    """The model name that calls a seat."""
    return f"{SEAT_PREFIX}{name}"


def policy_names(model_name: str | Sequence[str]) -> tuple[str, ...]:
    """The names by which an agent may call the policy; the first is what a client uses itself.

    Raises:
        InvalidModelError: They are no different, non-empty strings.
    """
    names = (model_name,) if isinstance(model_name, str) else tuple(model_name)
    are_strings = all(isinstance(name, str) and name for name in names)
    if not names or not are_strings or len(set(names)) < len(names):
        raise InvalidModelError(
            f"model_name must be a name or several different ones, got {model_name!r}. For example "
            'model_name="policy" or model_name=("gpt-4o", "gpt-4o-mini").'
        )
    return names
