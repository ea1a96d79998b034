"""An inbox: one trained role's side of an episode, between the agent and the Env that plays it.

The agent's calls arrive here in order (``put``); the Env takes one after the other (``take``).
What the agent notes between calls waits here too, for the transition it belongs to. An Env of a
plain agent reads the one inbox there is; an Env of a seat reads its own.

Whoever waits always learns what became of its peer. A parked call is *answered* or *refused*; a
waiting Env gets the next call, the agent's *end*, or the error with which the inbox was *closed*.
"""

import asyncio
import concurrent.futures
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from evert.bridge.errors import AgentTimeoutError
from evert.bridge.messages import Reply
from evert.bridge.requests import ChatRequest


@dataclass(slots=True, eq=False)
class ParkedCall:
    """A model call that waits for its reply.

    Attributes:
        request: What the agent asked.
        caller: Name of the task or thread that asked.
    """

    request: ChatRequest
    caller: str
    _future: "asyncio.Future[Reply] | concurrent.futures.Future[Reply]"
    _loop: asyncio.AbstractEventLoop | None
    """Of the caller, where that is another than the episode's."""

    @property
    def is_waiting(self) -> bool:
        """Whether somebody still waits for the reply (an agent may cancel or time out a call)."""
        return not self._future.done()

    @property
    def refusal(self) -> BaseException | None:
        """The error with which it was refused; None: it waits, was answered or given up."""
        is_settled = self._future.done() and not self._future.cancelled()
        return self._future.exception() if is_settled else None

    def answer(self, reply: Reply) -> None:
        """Resume the caller with a reply."""
        self._settle(lambda: self._future.set_result(reply))

    def refuse(self, error: BaseException) -> None:
        """Resume the caller with an error."""
        self._settle(lambda: self._future.set_exception(error))

    def _settle(self, settle: Callable[[], None]) -> None:
        def settle_if_waiting() -> None:
            if not self._future.done():
                settle()

        try:
            if self._loop is None:
                settle_if_waiting()
            else:
                self._loop.call_soon_threadsafe(settle_if_waiting)
        except RuntimeError:
            pass  # the caller's loop is closed: nobody waits any more


@dataclass(frozen=True, slots=True)
class AgentEnd:
    """The agent function is done: it returned ``value``, or raised ``error``."""

    value: Any = None
    error: BaseException | None = None


class Inbox:
    """One trained role's calls and notes.

    Args:
        agent: The agent's name, for messages.
        loop: The Env's event loop.
        asking: What the agent has other models answer at present. Its clock stands still while it
            waits for one, or for another role's trainer.

    Attributes:
        peers: The other roles' inboxes.
        notes: What the agent recorded between calls: ("reward" | "metric" | "log", key, value).
        rewarded: Whether the agent ever gave a reward by the client.
    """

    __slots__ = (
        "_agent", "_asking", "_deadline", "_final", "_loop", "_parked", "_queue", "_timer",
        "_waiter", "notes", "peers", "rewarded",
    )  # fmt: skip

    def __init__(
        self, agent: str, loop: asyncio.AbstractEventLoop, asking: Collection[object] = ()
    ) -> None:
        self._agent = agent
        self._loop = loop
        self._asking = asking
        self._queue: deque[ParkedCall] = deque()
        self._parked: ParkedCall | None = None
        self._waiter: asyncio.Future[ParkedCall | AgentEnd] | None = None
        self._final: AgentEnd | BaseException | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self.peers: tuple[Inbox, ...] = ()
        self.notes: list[tuple[str, str, Any]] = []
        self.rewarded = False

    @property
    def is_asked(self) -> bool:
        """Whether a call was taken and still waits for its reply: the trainer's turn."""
        return self._parked is not None and self._parked.is_waiting

    @property
    def latest(self) -> ParkedCall | None:
        """The call that was taken last; None before the first."""
        return self._parked

    # -- the agent's side ------------------------------------------------------------------------

    def put(self, call: ParkedCall) -> None:
        """Let a call wait for the Env; on the Env's loop."""
        if self._waiter is not None and not self._waiter.done():
            self._parked = call  # known here, in case whoever waits is cancelled at this moment
            self._waiter.set_result(call)
        else:
            self._queue.append(call)

    def end(self, end: AgentEnd, refusal: BaseException) -> None:
        """The agent is done: calls that still queue are refused, and the Env is told."""
        self._final = end
        self._stop_timer()
        self._refuse_queue(refusal)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(end)

    # -- giving up -------------------------------------------------------------------------------

    def abandon(self, refusal: BaseException) -> None:
        """Refuse the parked call and the queue. Safe from any thread."""
        self._final = self._final or refusal
        if self._parked is not None:
            self._parked.refuse(refusal)
        self._refuse_queue(refusal)

    def wake(self) -> None:
        """Tell the Env that the inbox was given up."""
        self._stop_timer()
        if self._waiter is not None and not self._waiter.done():
            self._tell(self._waiter)

    def _tell(self, waiter: "asyncio.Future[ParkedCall | AgentEnd]") -> None:
        if isinstance(self._final, AgentEnd):
            waiter.set_result(self._final)
        elif self._final is not None:
            waiter.set_exception(self._final)

    def _refuse_queue(self, refusal: BaseException) -> None:
        while self._queue:
            try:
                self._queue.popleft().refuse(refusal)
            except IndexError:  # another thread was quicker
                return

    # -- the Env's side --------------------------------------------------------------------------

    async def take(self, patience: float | None) -> ParkedCall | AgentEnd:
        """The next call that somebody waits on, or the agent's end.

        Raises:
            AgentTimeoutError: Neither came within ``patience`` seconds (None: wait for ever).
            EnvClosedError: The episode was given up before, or meanwhile.
        """
        while self._queue:
            call = self._queue.popleft()
            if call.is_waiting:
                self._parked = call
                return call
        waiter = self._loop.create_future()
        self._tell(waiter)
        if waiter.done():
            return waiter.result()  # type: ignore[no-any-return]
        self._waiter = waiter
        if patience is not None:
            self._deadline = self._loop.time() + patience
            if self._timer is None:
                self._timer = self._loop.call_at(self._deadline, self._on_timer, patience)
        try:
            return await waiter  # type: ignore[no-any-return]
        finally:
            self._waiter = None

    def _on_timer(self, patience: float) -> None:
        """Time out whoever waits, or look again at the deadline of the present wait.

        One timer serves many turns: to arm and cancel one for each would cost a tenth of a turn.
        """
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return  # the next wait arms it again
        if self._asking or any(peer.is_asked for peer in self.peers):
            self._deadline = self._loop.time() + patience
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._on_timer, patience)
            return
        self._waiter.set_exception(
            AgentTimeoutError(
                f"The agent {self._agent} neither called the model nor ended within "
                f"agent_timeout={patience} s. Raise agent_timeout if its tools are slow, or "
                "look for a wait that never ends."
            )
        )

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
