"""The rollout that a task or thread belongs to, as a context variable.

``bridge/clients/takeover.py`` says when a claim begins, and how pools and new threads inherit it.
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
        """Whether its agent has ended."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A rollout's claim on a task or thread."""

    owner: Callable[[], Owner | None]  # the rollout's API; None: the rollout no longer exists
    is_lent: bool  # whether the claim ends when the agent ends
    process: int  # id of the process in which it is valid; a fork copies all claims

    def lent(self) -> "Claim":
        """The same claim, but ending with the agent and keeping no object alive."""
        owner = self.owner()
        if self.is_lent or owner is None:
            return self
        return Claim(weakref.ref(owner), True, self.process)


CLAIM: contextvars.ContextVar[Claim | None] = contextvars.ContextVar("evert_claim", default=None)
"""The claim on the current task or thread; None if no rollout has one."""


def current_owner() -> Owner | None:
    """The API of the rollout that the current task or thread belongs to; None outside agents."""
    claim = CLAIM.get()
    if claim is None or claim.process != os.getpid():
        return None
    owner = claim.owner()
    return None if owner is None or (claim.is_lent and owner.is_over) else owner


@contextmanager
def left_alone() -> Iterator[None]:
    """Inside the block, take over no model calls: they are evert's own, to remote models."""
    token = CLAIM.set(None)
    try:
        yield
    finally:
        CLAIM.reset(token)
