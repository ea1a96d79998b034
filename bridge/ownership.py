"""Whose work it is: the rollout that a task or thread belongs to, said by a context variable.

``bridge/clients/takeover.py`` says when a claim begins and how it is handed on.
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
        """Whether its agent is done."""


@dataclass(frozen=True, slots=True)
class Claim:
    """To whom a piece of work belongs."""

    owner: Callable[[], Owner | None]  # the API of its rollout; None: the rollout is gone
    is_lent: bool  # whether it ends with the agent
    process: int  # where it holds; a forked process has a copy of all claims

    def lent(self) -> "Claim":
        """The same until the agent is over, and holding on to nothing."""
        owner = self.owner()
        if self.is_lent or owner is None:
            return self
        return Claim(weakref.ref(owner), True, self.process)


CLAIM: contextvars.ContextVar[Claim | None] = contextvars.ContextVar("evert_claim", default=None)
"""The claim on whatever runs here; None: it is nobody's."""


def current_owner() -> Owner | None:
    """The API of the rollout that the current task or thread belongs to; None outside of agents."""
    claim = CLAIM.get()
    if claim is None or claim.process != os.getpid():
        return None
    owner = claim.owner()
    return None if owner is None or (claim.is_lent and owner.is_over) else owner


@contextmanager
def left_alone() -> Iterator[None]:
    """Calls made inside are never taken over: evert's own, to models that are really elsewhere."""
    token = CLAIM.set(None)
    try:
        yield
    finally:
        CLAIM.reset(token)
