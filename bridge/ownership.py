"""A context variable that tracks which rollout a task or thread belongs to.

``bridge/clients/takeover.py`` explains when a claim starts and how pools and threads inherit it.
"""

import contextvars
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol


class Owner(Protocol):
    """The API of a rollout."""

    @property
    def is_over(self) -> bool:
        """Whether the rollout's agent has finished."""
        ...


@dataclass(frozen=True, slots=True)
class Claim:
    """A rollout's claim on a task or thread."""

    owner: Callable[[], Owner | None]  # the rollout's API; None if the rollout no longer exists
    is_lent: bool  # whether the claim expires when the agent finishes
    process: int  # the process where the claim is valid (a fork also inherits its parent's claims)

    def lent(self) -> "Claim":
        """Return a copy that expires with the agent and only has a weak reference to its owner."""
        owner = self.owner()
        if self.is_lent or owner is None:
            return self
        return Claim(weakref.ref(owner), True, self.process)


CLAIM: contextvars.ContextVar[Claim | None] = contextvars.ContextVar("evert_claim", default=None)
"""The claim on the current task or thread; None if it does not belong to a rollout."""


def current_owner() -> Owner | None:
    """Return the API of the rollout that the current task or thread belongs to, if any."""
    claim = CLAIM.get()
    if claim is None or claim.process != os.getpid():
        return None
    owner = claim.owner()
    return None if owner is None or (claim.is_lent and owner.is_over) else owner


@contextmanager
def left_alone() -> Iterator[None]:
    """Disable take-over in a ``with`` block, in which evert itself calls a remote model."""
    token = CLAIM.set(None)
    try:
        yield
    finally:
        CLAIM.reset(token)
