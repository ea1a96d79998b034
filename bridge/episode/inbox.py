"""An inbox: a queue that passes the calls of one trained role from the agent to its Env.

The agent adds calls with ``put``, and the Env takes them one by one with ``take``. A call that is
sampled ahead of the runner is taken a second time once its sample is ready (``note_sampled``). An
episode has one inbox or, if the agent has seats, one inbox per seat.

If either the agent or the Env stops, the other one is notified. A parked call is *answered* or
*refused*. An Env that waits in ``take`` gets the next call, the agent's *end*, or the error that
*closed* the inbox.
"""

import asyncio
import concurrent.futures
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from evert.bridge.chat.reply import Reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.episode.notes import Notes
from evert.bridge.errors import AgentTimeoutError, EpisodeEndedError

P = TypeVar("P")
"""Type of the object that the Env stores for a call that is sampled ahead of the runner."""


@dataclass(slots=True, eq=False)
class ParkedCall:
    """A model call waiting for its reply."""

    request: ChatRequest
    caller: str
    speaker: object
    _future: "asyncio.Future[Reply] | concurrent.futures.Future[Reply]"
    _loop: asyncio.AbstractEventLoop | None
    """The caller's event loop, if the caller is a task on a different loop than the episode."""
    has_reader: Callable[[], bool] = lambda: True
    """Whether the client has the reply or still waits for it (an HTTP client may disconnect)."""
    refusal: BaseException | None = field(default=None, init=False)
    """The error that the call was refused with, if any."""
    _is_dropped: bool = field(default=False, init=False)

    @property
    def is_waiting(self) -> bool:
        """Whether the caller is still waiting (agents may cancel calls or time out)."""
        return self.refusal is None and not self._future.done()

    @property
    def is_given_up(self) -> bool:
        """Whether the agent will never read the reply, because it cancelled the call or ended."""
        if self.refusal is not None:
            return isinstance(self.refusal, EpisodeEndedError)
        return self._is_dropped or self._future.cancelled() or not self.has_reader()

    def drop(self) -> None:
        """Record that the caller was cancelled. The reply may have arrived, but was never read."""
        self._is_dropped = True

    def answer(self, reply: Reply) -> None:
        """Resume the caller with a reply."""
        self._settle(lambda: self._future.set_result(reply))

    def refuse(self, error: BaseException) -> None:
        """Resume the caller with an error, if it is still waiting."""
        if self.is_waiting:
            self.refusal = error
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
            pass  # the caller's loop is closed, so nobody is waiting


@dataclass(frozen=True, slots=True)
class AgentEnd:
    """How the agent function finished: it returned ``value`` or raised ``error``."""

    value: Any = None
    error: BaseException | None = None


class Inbox(Generic[P]):
    """The calls and notes of one trained role.

    Args:
        agent: The agent's name, used in messages.
        frozen_calls: Calls that frozen models are currently answering. The agent timeout is paused
            during these calls, while a call is sampled ahead of the runner, and while another role
            waits for a reply.
        boxes: The inboxes of all roles.

    Attributes:
        submitted: Calls in the policy queue, until the Env takes them for the second time.
        latest: The call that was taken last, or None.
        notes: Rewards, metrics and logs recorded by the agent.
    """

    __slots__ = (
        "_agent", "_boxes", "_deadline", "_final", "_frozen_calls", "_given_up", "_loop",
        "_max_submitted", "_on_call", "_queue", "_sampled", "_timer", "_waiter", "latest", "notes",
        "submitted",
    )  # fmt: skip

    def __init__(
        self,
        agent: str,
        loop: asyncio.AbstractEventLoop,
        frozen_calls: Collection[object],
        boxes: "Sequence[Inbox[Any]]",
    ) -> None:
        self._agent = agent
        self._loop = loop
        self._frozen_calls = frozen_calls
        self._boxes = boxes
        self._queue: deque[ParkedCall] = deque()
        self._sampled: list[ParkedCall] = []  # an empty deque would use ten times the memory
        self.latest: ParkedCall | None = None
        self._waiter: asyncio.Future[ParkedCall | None] | None = None
        self._max_submitted: int | None = None
        self._final: AgentEnd | BaseException | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self.submitted: dict[ParkedCall, P] = {}
        self._given_up = 0
        self._on_call: Callable[[], None] | None = None
        self.notes = Notes()

    @property
    def awaits_reply(self) -> bool:
        """Whether a call that was taken is still waiting for the trainer's reply."""
        is_taken = self.latest is not None and self.latest.is_waiting
        return is_taken or any(call.is_waiting for call in self.submitted)

    @property
    def given_up(self) -> int:
        """Number of calls that the agent abandoned while they were in the policy queue."""
        return self._given_up + sum(call.is_given_up for call in self.submitted)

    @property
    def has_calls(self) -> bool:
        """Whether a call is waiting to be taken."""
        return any(call.is_waiting for call in (*self._queue, *self._sampled))

    # -- the agent's side ------------------------------------------------------------------------

    def put(self, call: ParkedCall) -> None:
        """Add a call for the Env. Must run on the Env's loop."""
        if self._waiter is not None and not self._waiter.done() and self._has_room:
            self.latest = call  # set now, because the waiting task may be cancelled before resuming
            self._waiter.set_result(call)
            return
        self._queue.append(call)
        if self._on_call is not None:
            self._on_call()

    def end(self, end: AgentEnd, refusal: BaseException) -> None:
        """Record that the agent has ended, refuse all pending calls, and wake the Env."""
        self._final = end
        self._refuse_all(refusal)
        self.wake()

    # -- giving up -------------------------------------------------------------------------------

    def abandon(self, refusal: BaseException) -> None:
        """Refuse all pending calls. Thread-safe."""
        self._final = self._final or refusal
        self._refuse_all(refusal)

    def wake(self) -> None:
        """Wake the Env, because no more calls will arrive after this."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if isinstance(self._final, BaseException) and self._waiter is not None:
            if not self._waiter.done():  # set it now, before the agent's end overwrites the error
                self._waiter.set_exception(self._final)
            return
        self._wake_waiter()

    def _wake_waiter(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _refuse_all(self, refusal: BaseException) -> None:
        if self.latest is not None:
            self.latest.refuse(refusal)
        for call in [*self.submitted]:
            call.refuse(refusal)
        while self._queue:
            try:
                self._queue.popleft().refuse(refusal)
            except IndexError:  # another thread emptied the queue
                return

    # -- the Env's side --------------------------------------------------------------------------

    async def take(
        self, patience: float | None, max_submitted: int | None = None
    ) -> "ParkedCall | P | AgentEnd":
        """Wait for the next call, a sampled call from the policy queue, or the agent's end.

        Args:
            patience: Seconds to wait, or None to wait forever.
            max_submitted: Take no new calls while the policy queue holds at least this many
                (None: no limit).

        Raises:
            AgentTimeoutError: Nothing arrived in time.
            EnvClosedError: The episode was closed, before or during the wait.
        """
        self._max_submitted = max_submitted
        while (event := self._next()) is None:
            self._waiter = self._loop.create_future()
            if patience is not None:
                self._deadline = self._loop.time() + patience
                if self._timer is None:
                    self._timer = self._loop.call_at(self._deadline, self._on_timer, patience)
            try:
                call = await self._waiter
            finally:
                self._waiter = None
            if call is not None:
                return call
        return event

    @property
    def _has_room(self) -> bool:
        return (
            self._max_submitted is None
            or len(self.submitted) < self._max_submitted
            or not self.submitted
        )

    def _next(self) -> "ParkedCall | P | AgentEnd | None":
        if self._has_room and (call := self.next_call()) is not None:
            self.latest = call
            return call
        while self._sampled:
            call = self._sampled.pop(0)
            outstanding = self.submitted.pop(call)
            if call.is_waiting:
                self.latest = call
                return outstanding
            self._given_up += call.is_given_up  # the call never becomes an observation
        if isinstance(self._final, BaseException):
            raise self._final
        return self._final

    def next_call(self) -> ParkedCall | None:
        """Remove and return the first call that is waiting to be taken, or None."""
        while self._queue:
            call = self._queue.popleft()
            if call.is_waiting:
                return call
        return None

    def watch(self, look: Callable[[], None]) -> None:
        """Run ``look`` whenever a call arrives while no ``take`` is waiting."""
        self._on_call = look

    def put_back(self, call: ParkedCall) -> None:
        """Put a call back at the front of the queue."""
        self._queue.appendleft(call)

    def note_sampled(self, call: ParkedCall) -> None:
        """Record that the sample for a call is ready."""
        if call in self.submitted:
            self._sampled.append(call)
            self._wake_waiter()

    def note_resampled(self, call: ParkedCall) -> None:
        """Record that a call is being sampled again, so its sample is not ready yet."""
        if call in self._sampled:
            self._sampled.remove(call)

    def _on_timer(self, patience: float) -> None:
        """Time out the current wait, or restart the timer if the deadline has moved.

        We reuse the timer across turns, because creating a new one would make each turn about 10%
        slower.
        """
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return  # the next wait restarts the timer
        busy_roles = (box.awaits_reply for box in self._boxes if box is not self)
        if self._frozen_calls or self.submitted or any(busy_roles):
            self._deadline = self._loop.time() + patience
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._on_timer, patience)
            return
        self._waiter.set_exception(
            AgentTimeoutError(
                f"The agent {self._agent} neither called the model nor ended within "
                f"agent_timeout={patience} s. Increase agent_timeout if its tools are slow, or "
                "check whether the agent is stuck."
            )
        )
