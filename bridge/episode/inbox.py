"""An inbox: the calls of one trained role, between the agent and its Env.

The agent's calls arrive in order (``put``), and the Env takes them one by one (``take``). A call
that is sampled ahead of the runner is taken again when its sample is ready (``note_sampled``). An
episode has one inbox, or one per seat.

The agent and the Env each learn when the other has ended. A parked call is *answered* or *refused*;
a waiting Env gets the next call, the agent's *end*, or the error that *closed* the inbox.
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
"""Type of the object that the Env keeps for a call that is sampled ahead of the runner."""


@dataclass(slots=True, eq=False)
class ParkedCall:
    """A model call that waits for its reply."""

    request: ChatRequest
    caller: str
    speaker: object
    _future: "asyncio.Future[Reply] | concurrent.futures.Future[Reply]"
    _loop: asyncio.AbstractEventLoop | None
    """The caller's loop if the caller is a task on a loop other than the episode's; else None."""
    has_reader: Callable[[], bool] = lambda: True
    """Whether a client has got the reply or can still get it: an HTTP client may disconnect."""
    refusal: BaseException | None = field(default=None, init=False)
    """The error with which the call was refused, or None."""
    _is_dropped: bool = field(default=False, init=False)

    @property
    def is_waiting(self) -> bool:
        """Whether the caller still waits (an agent may cancel or time out a call)."""
        return self.refusal is None and not self._future.done()

    @property
    def is_given_up(self) -> bool:
        """Whether the agent cancelled the call or ended, so that it never reads the reply."""
        if self.refusal is not None:
            return isinstance(self.refusal, EpisodeEndedError)
        return self._is_dropped or self._future.cancelled() or not self.has_reader()

    def drop(self) -> None:
        """Note that the caller was cancelled, perhaps after its reply arrived but was not read."""
        self._is_dropped = True

    def answer(self, reply: Reply) -> None:
        """Resume the caller with a reply."""
        self._settle(lambda: self._future.set_result(reply))

    def refuse(self, error: BaseException) -> None:
        """Resume the caller with an error, if it still waits."""
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
            pass  # the caller's loop is closed, so it no longer waits


@dataclass(frozen=True, slots=True)
class AgentEnd:
    """The agent function returned ``value``, or raised ``error``."""

    value: Any = None
    error: BaseException | None = None


class Inbox(Generic[P]):
    """The calls and notes of one trained role.

    Args:
        agent: The agent's name, for messages.
        frozen_calls: Calls that frozen models are answering. The agent's timeout does not run
            during such calls, while a call is sampled ahead of the runner, or while another role
            waits for a reply.
        boxes: The inboxes of all roles.

    Attributes:
        submitted: The calls in the policy queue that the Env has not yet taken again.
        latest: The call taken last; None before the first.
        notes: The agent's notes.
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
        self._sampled: list[ParkedCall] = []  # a list: an empty deque takes ten times the memory
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
        """Whether a call was taken and still waits for its reply from the trainer."""
        is_taken = self.latest is not None and self.latest.is_waiting
        return is_taken or any(call.is_waiting for call in self.submitted)

    @property
    def given_up(self) -> int:
        """Number of calls that the agent gave up while they were in the policy queue."""
        return self._given_up + sum(call.is_given_up for call in self.submitted)

    @property
    def has_calls(self) -> bool:
        """Whether a call waits to be taken."""
        return any(call.is_waiting for call in (*self._queue, *self._sampled))

    # -- the agent's side ------------------------------------------------------------------------

    def put(self, call: ParkedCall) -> None:
        """Add a call for the Env. Must run on the Env's loop."""
        if self._waiter is not None and not self._waiter.done() and self._has_room:
            self.latest = call  # set here, in case the waiting task is cancelled before it resumes
            self._waiter.set_result(call)
            return
        self._queue.append(call)
        if self._on_call is not None:
            self._on_call()

    def end(self, end: AgentEnd, refusal: BaseException) -> None:
        """Note that the agent has ended, refuse the calls that still wait, and wake the Env."""
        self._final = end
        self._refuse_all(refusal)
        self.wake()

    # -- giving up -------------------------------------------------------------------------------

    def abandon(self, refusal: BaseException) -> None:
        """Refuse all calls that wait. Safe from any thread."""
        self._final = self._final or refusal
        self._refuse_all(refusal)

    def wake(self) -> None:
        """Wake the Env, because no more calls will arrive."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if isinstance(self._final, BaseException) and self._waiter is not None:
            if not self._waiter.done():  # now, before the agent's end replaces the error
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
            except IndexError:  # another thread was faster
                return

    # -- the Env's side --------------------------------------------------------------------------

    async def take(
        self, patience: float | None, max_submitted: int | None = None
    ) -> "ParkedCall | P | AgentEnd":
        """Return the next waiting call, a call that the queue has sampled, or the agent's end.

        Args:
            patience: Seconds to wait; None: no limit.
            max_submitted: While the policy queue holds this many calls, no new call is taken;
                None: no limit.

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
            self._given_up += call.is_given_up  # never an observation
        if isinstance(self._final, BaseException):
            raise self._final
        return self._final

    def next_call(self) -> ParkedCall | None:
        """Remove and return the first call that waits to be taken; None if no call waits."""
        while self._queue:
            call = self._queue.popleft()
            if call.is_waiting:
                return call
        return None

    def watch(self, look: Callable[[], None]) -> None:
        """Call ``look`` whenever a call arrives while no ``take`` is waiting."""
        self._on_call = look

    def put_back(self, call: ParkedCall) -> None:
        """Put a call back, so that it is taken next."""
        self._queue.appendleft(call)

    def note_sampled(self, call: ParkedCall) -> None:
        """Note that the sample of a call is ready."""
        if call in self.submitted:
            self._sampled.append(call)
            self._wake_waiter()

    def note_resampled(self, call: ParkedCall) -> None:
        """Note that a call is sampled again, and that the new sample is not ready yet."""
        if call in self._sampled:
            self._sampled.remove(call)

    def _on_timer(self, patience: float) -> None:
        """Time out the current wait, or set the timer again for its deadline.

        One timer serves many turns, because a new timer per turn would take a tenth of its time.
        """
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return  # the next wait sets it again
        busy_roles = (box.awaits_reply for box in self._boxes if box is not self)
        if self._frozen_calls or self.submitted or any(busy_roles):
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
