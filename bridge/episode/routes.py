"""The route table: it says which inbox or frozen model answers the calls to each model name.

    the policy's names      its inbox: the call is a transition ("gpt-*": many, "*": any)
    ``evert/SEAT``          the seat's inbox
    ``models={...}``        the frozen model of that name: answered immediately, never trained on
    any other name          the policy, if no other model is declared (frameworks insist on names
                            like "gpt-4o"); otherwise a 400 with the most similar name

Take-over uses ``knows``: a call with an unknown name goes where it would go without evert.
Unanswered names are *strangers*; error messages about failed agents list them.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from evert.bridge.chat.bad_requests import bad_request
from evert.bridge.chat.request import FrozenAnswer
from evert.bridge.episode.inbox import Inbox
from evert.bridge.episode.notes import Notes
from evert.bridge.errors import InvalidModelError, did_you_mean

DEFAULT_POLICY_NAME = "policy"
"""The policy's default name."""

ANY = "*"
"""Wildcard in a policy name: it matches any text."""

SEAT_PREFIX = "evert/"
"""The prefix of a seat's model name."""


class Routes:
    """The route table of one episode.

    Args:
        inboxes: Inboxes of trained roles by model name; a role may have several names.
        frozen: Frozen models by name.

    Attributes:
        strangers: Model names that the agent used but nothing here answers, in order.
        instead: Answers the calls in place of the inboxes; None: the inboxes answer.
    """

    def __init__(
        self, inboxes: Mapping[str, Inbox[Any]], frozen: Mapping[str, FrozenAnswer]
    ) -> None:
        exact = {name: inbox for name, inbox in inboxes.items() if ANY not in name}
        self._targets: dict[str, Inbox[Any] | FrozenAnswer] = {**exact, **frozen}
        self._patterns = {name: inbox for name, inbox in inboxes.items() if ANY in name}
        self._policies = tuple(inboxes)
        self.strangers: dict[str, None] = {}
        self.instead: FrozenAnswer | None = None
        roles = {*inboxes.values()}
        self._only = roles.pop() if len(roles) == 1 and not frozen else None

    @property
    def names(self) -> tuple[str, ...]:
        """All declared model names except patterns; the trained roles come first."""
        return tuple(self._targets)

    @property
    def seats(self) -> dict[str, Inbox[Any]]:
        """Inboxes by seat name; empty if the agent has no seats."""
        return {
            name.removeprefix(SEAT_PREFIX): target
            for name, target in self._targets.items()
            if isinstance(target, Inbox) and name.startswith(SEAT_PREFIX)
        }

    def notes_of(self, model: str) -> Notes:
        """Return the notes of a trained role; for a frozen model, notes that nothing reads."""
        target = self._targets[model]
        return target.notes if isinstance(target, Inbox) else Notes()

    def knows(self, model: object) -> bool:
        """Whether a model name was declared, or matches a pattern."""
        return isinstance(model, str) and (model in self._targets or self._match(model) is not None)

    def _match(self, model: str) -> Inbox[Any] | None:
        return next((box for name, box in self._patterns.items() if fnmatchcase(model, name)), None)

    def hint(self, *models: str) -> str:
        """Return advice on unknown model names; "" if there are none.

        Args:
            models: The unknown names. Default: all strangers.
        """
        names, policies = models or [*self.strangers], ", ".join(map(repr, self._policies))
        if not names:
            return ""
        return (
            f"The agent asked for {' and '.join(map(repr, names))}; the policy is called "
            f"{policies}. If the policy should answer such calls, give it that name: "
            f"policy_names={','.join(names)!r}. If another model should, declare it: "
            f"models={{{names[0]!r}: ...}}."
        )

    def find(self, model: str) -> Inbox[Any] | FrozenAnswer:
        """Return what answers the calls to ``model``.

        Raises:
            openai.BadRequestError: No model has that name (code ``model_not_found``).
        """
        target = self._targets.get(model)
        if target is None:
            target = self._match(model) or self._only
        if isinstance(target, Inbox) and self.instead is not None:
            return self.instead
        if target is not None:
            return target
        self.strangers[model] = None
        raise bad_request(
            f"There is no model {model!r} in this episode.{did_you_mean(model, self._targets)} "
            f"Models: {', '.join(self._targets)}. Call one of them (with client.seat(name) if the "
            f"agent has seats), or give the policy that name: policy_names={model!r}.",
            param="model",
            code="model_not_found",
        )


def seat_model(name: str) -> str:
    """Return the model name of a seat."""
    return f"{SEAT_PREFIX}{name}"


def read_policy_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names under which an agent may call the policy; evert's clients use the first.

    Patterns come last. If there are only patterns, "policy" comes first.

    Raises:
        InvalidModelError: ``names`` are not different, non-empty strings.
    """
    candidates = (names,) if isinstance(names, str) else tuple(names)
    are_strings = all(isinstance(name, str) and name for name in candidates)
    if not candidates or not are_strings or len(set(candidates)) < len(candidates):
        raise InvalidModelError(
            f"policy_names must be a model name or several different ones, got {names!r}. For "
            'example policy_names="gpt-4o", policy_names=("gpt-4o", "gpt-4o-mini"), or "*" for '
            "any name."
        )
    plain = tuple(name for name in candidates if ANY not in name)
    patterns = tuple(name for name in candidates if ANY in name)
    return (plain or (DEFAULT_POLICY_NAME,)) + patterns
