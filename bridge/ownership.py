"""A context variable with the rollout that a task or thread belongs to.

``bridge/clients/takeover.py`` explains when a claim begins, and how pools and threads inherit it.
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
        """Whether the rollout's agent has ended."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A rollout's claim on a task or thread."""

    owner: Callable[[], Owner | None]  # the rollout's API; None: the rollout no longer exists
    is_lent: bool  # whether the claim ends when the agent ends
    process: int  # id of the process in which the claim is valid; a fork copies all claims

    def lent(self) -> "Claim":
        """Return the same claim, but one that ends with the agent and keeps no object alive."""
        owner = self.owner()
        if self.is_lent or owner is None:
            return self
        return Claim(weakref.ref(owner), True, self.process)


CLAIM: contextvars.ContextVar[Claim | None] = contextvars.ContextVar("evert_claim", default=None)
"""The claim on the current task or thread; None if the task or thread belongs to no rollout."""


def current_owner() -> Owner | None:
    """Return the API of the current task's or thread's rollout; None outside agents."""
    claim = CLAIM.get()
    if claim is None or claim.process != os.getpid():
        return None
    owner = claim.owner()
    return None if owner is None or (claim.is_lent and owner.is_over) else owner


@contextmanager
def left_alone() -> Iterator[None]:
    """Take over no model calls inside the block, since evert itself calls a remote model there."""
    token = CLAIM.set(None)
    try:
        yield
    finally:
        CLAIM.reset(token)
