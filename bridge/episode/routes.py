"""The route table, which maps model names to inboxes and frozen models.

    policy names            the policy's inbox: the call becomes a transition. Wildcards are
                            allowed ("gpt-*", or "*" for any name).
    ``evert/SEAT``          the seat's inbox
    ``models={...}``        a frozen model: answered immediately and never trained on
    any other name          the policy, if it is the only model (frameworks insist on names like
                            "gpt-4o"); otherwise a 400 error that suggests the most similar name

Take-over uses ``knows``: calls to unknown model names are passed through to their original
destination. Names without a target are recorded as *strangers*. If the agent fails, the error
message lists these names.
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
"""Wildcard in a policy name. It matches any text."""

SEAT_PREFIX = "evert/"
"""The prefix of a seat's model name."""


class Routes:
    """The route table of one episode.

    Args:
        inboxes: Inboxes of trained roles by model name; a role may have several names.
        frozen: Frozen models by name.

    Attributes:
        strangers: Model names that the agent used but that have no target, in order of first use.
        instead: If set, this function answers all calls that would otherwise go to an inbox.
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
        """Inboxes by seat name (empty if the agent has no seats)."""
        return {
            name.removeprefix(SEAT_PREFIX): target
            for name, target in self._targets.items()
            if isinstance(target, Inbox) and name.startswith(SEAT_PREFIX)
        }

    def notes_of(self, model: str) -> Notes:
        """Return the notes of a trained role. For a frozen model, the notes are discarded."""
        target = self._targets[model]
        return target.notes if isinstance(target, Inbox) else Notes()

    def knows(self, model: object) -> bool:
        """Whether a model name was declared or matches a pattern."""
        return isinstance(model, str) and (model in self._targets or self._match(model) is not None)

    def _match(self, model: str) -> Inbox[Any] | None:
        return next((box for name, box in self._patterns.items() if fnmatchcase(model, name)), None)

    def hint(self, *models: str) -> str:
        """Return advice about unknown model names, or "" if there are none.

        Args:
            models: The unknown names (default: all strangers).
        """
        names, policies = models or [*self.strangers], ", ".join(map(repr, self._policies))
        if not names:
            return ""
        return (
            f"The agent requested {' and '.join(map(repr, names))}; the policy is called "
            f"{policies}. To send these calls to the policy, set "
            f"policy_names={','.join(names)!r}. To send them to another model, declare it with "
            f"models={{{names[0]!r}: ...}}."
        )

    def find(self, model: str) -> Inbox[Any] | FrozenAnswer:
        """Return the inbox or frozen model that answers calls to ``model``.

        Raises:
            openai.BadRequestError: The name is unknown (code ``model_not_found``).
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
            f"Available models: {', '.join(self._targets)}. Call one of them (with "
            f"client.seat(name) if the agent has seats), or set policy_names={model!r}.",
            param="model",
            code="model_not_found",
        )


def seat_model(name: str) -> str:
    """Return the model name of a seat."""
    return f"{SEAT_PREFIX}{name}"


def read_policy_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return the model names that an agent can use to call the policy.

    evert's own clients use the first name, so patterns are moved to the end. If there are only
    patterns, "policy" is added as the first name.

    Raises:
        InvalidModelError: ``names`` are not unique, non-empty strings.
    """
    candidates = (names,) if isinstance(names, str) else tuple(names)
    are_strings = all(isinstance(name, str) and name for name in candidates)
    if not candidates or not are_strings or len(set(candidates)) < len(candidates):
        raise InvalidModelError(
            f"policy_names must be a model name or a list of unique names, got {names!r}. For "
            'example, policy_names="gpt-4o", policy_names=("gpt-4o", "gpt-4o-mini"), or "*" for '
            "any name."
        )
    plain = tuple(name for name in candidates if ANY not in name)
    patterns = tuple(name for name in candidates if ANY in name)
    return (plain or (DEFAULT_POLICY_NAME,)) + patterns
