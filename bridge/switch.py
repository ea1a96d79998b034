"""The switch: one running agent, one place where its calls are parked.

``AgentRun`` starts the agent (a task on the Env's loop, or a thread of its own) and stands between
it and the Env. The agent's side is ``call`` / ``call_blocking``: park a request, wait for its
reply. The Env's side is ``next_event``: wait for the next parked call, or for the agent's end.
Calls made at the same time queue in order of arrival, from whatever task, thread or event loop
they come.

A call that waits always learns what became of its peer: *answered*, *refused* (a 400 it may
handle), *ended* (the agent function returned before) or *closed* (the Env was given up).
"""

import asyncio
import concurrent.futures
import contextvars
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from evert.bridge.agent import AgentForm
from evert.bridge.errors import (
    AgentAborted,
    AgentTimeoutError,
    BlockingCallError,
    EnvClosedError,
    EpisodeEndedError,
)
from evert.bridge.messages import Reply
from evert.bridge.models import Answers
from evert.bridge.requests import ChatRequest, bad_request

REFUSALS_BEFORE_ABORT = 3
"""Calls refused after the close before an agent that goes on calling gets ``AgentAborted``."""

SEAT_PREFIX = "evert/"
"""What a seat's model name begins with."""

AGENT_THREADS = 1024
"""Threads that the agents of one event loop may block at once; each is made when it is needed."""


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

    @property
    def is_waiting(self) -> bool:
        """Whether somebody still waits for the reply (an agent may cancel or time out a call)."""
        return not self._future.done()

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

        if self._loop is None:
            settle_if_waiting()
            return
        try:
            self._loop.call_soon_threadsafe(settle_if_waiting)
        except RuntimeError:  # the caller's own loop is closed: nobody waits any more
            self._future.cancel()


@dataclass(frozen=True, slots=True)
class AgentEnd:
    """The agent function is done: it returned ``value``, or raised ``error``."""

    value: Any = None
    error: BaseException | None = None


@dataclass(slots=True, eq=False)
class AgentRun:
    """One run of an agent, seen from both sides (see the module's docstring).

    Attributes:
        loop: The Env's event loop.
        notes: What the agent recorded between calls: ("reward" | "metric" | "log", key, value).
        rewarded: Whether the agent ever called ``client.reward``.
        frozen: What answers the calls to models that are not the policy, by name.
        seats: Where the agent has several trained roles: each one's run, by model name, this one
            included. The agent belongs to the first; the others hear from it. Else empty.
    """

    form: AgentForm
    loop: asyncio.AbstractEventLoop
    frozen: Mapping[str, Answers] = field(default_factory=dict)
    seats: "Mapping[str, AgentRun]" = field(default_factory=dict)
    notes: list[tuple[str, str, Any]] = field(default_factory=list)
    rewarded: bool = False
    _queue: deque[ParkedCall] = field(default_factory=deque)
    _parked: ParkedCall | None = None
    _waiter: "asyncio.Future[ParkedCall | AgentEnd] | None" = None
    _timer: asyncio.TimerHandle | None = None
    _deadline: float = 0.0
    _end: AgentEnd | None = None
    _closed: bool = False
    _refused: int = 0
    _releases: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    _frozen_calls: "dict[asyncio.Task[None], ParkedCall]" = field(default_factory=dict)
    _task: "asyncio.Task[Any] | None" = None
    _thread: threading.Thread | None = None
    _ended: "asyncio.Event" = field(default_factory=asyncio.Event)
    _loop_thread: int = field(default_factory=threading.get_ident)

    # -- life ------------------------------------------------------------------------------------

    def start(
        self,
        agent: Callable[..., Any],
        arguments: tuple[Any, ...],
        context: contextvars.Context | None = None,
    ) -> None:
        """Start the agent; async agents as a task, others in a daemon thread of their own.

        Args:
            agent: What to call.
            arguments: What to call it with.
            context: The context variables it is to see; None: a copy of the present ones.
        """
        context = contextvars.copy_context() if context is None else context
        if self.form.is_async:
            self._task = self.loop.create_task(
                self._run_in_task(agent, arguments),
                name=f"evert agent {self.form.name}",
                context=context,
            )
            self._task.add_done_callback(self._on_task_done)
        else:
            self._thread = threading.Thread(
                target=context.run,
                args=(self._run_in_thread, agent, arguments),
                name=f"evert agent {self.form.name}",
                daemon=True,  # an agent that ignores its close must not keep the process alive
            )
            self._thread.start()

    async def _run_in_task(self, agent: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        try:
            end = AgentEnd(await agent(*arguments))
        except BaseException as error:  # handed to whoever steps the Env
            end = AgentEnd(error=error)
        # At once: a call that a sub-agent makes in this same turn of the loop comes too late.
        self._on_end(end)

    def _on_task_done(self, task: "asyncio.Task[Any]") -> None:
        if self._end is None:  # cancelled before its first step
            self._on_end(AgentEnd(error=asyncio.CancelledError()))

    def _run_in_thread(self, agent: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        try:
            end = AgentEnd(agent(*arguments))
        except BaseException as error:  # handed to whoever steps the Env
            end = AgentEnd(error=error)
        try:
            self.loop.call_soon_threadsafe(self._on_end, end)
        except RuntimeError:
            self._end = end  # the Env's loop is gone, and whoever waited with it

    def _on_end(self, end: AgentEnd) -> None:
        self._end = end
        self._stop_timer()
        if self._thread is not None:
            self._thread.join()  # its last act was to schedule this
        self._ended.set()
        for task in self._frozen_calls:
            task.cancel()
        ended = EpisodeEndedError(
            f"This model call outlived its agent {self.form.name}, which has already returned. "
            "Await (or join) every call before the agent returns."
        )
        while self._queue:
            self._queue.popleft().refuse(ended)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(end)
        for peer in self._peers():
            if not peer.is_over:
                peer._on_end(end)

    def _peers(self) -> "list[AgentRun]":
        return [run for run in self.seats.values() if run is not self]

    def on_release(self, release: Callable[[], Awaitable[None]]) -> None:
        """Have something let go when the run is over. Safe from any thread."""
        self._releases.append(release)

    async def release(self) -> None:
        """Let go of what was held for the agent; again to no effect."""
        while self._releases:
            await self._releases.pop()()

    @property
    def is_over(self) -> bool:
        """Whether the agent function is done."""
        return self._end is not None

    @property
    def is_closed(self) -> bool:
        """Whether the run was given up, by its own Env or by another seat's."""
        return self._closed

    async def close(self, patience: float) -> bool:
        """Give the run up: refuse its calls, cancel it, wait for its ``finally`` blocks.

        Args:
            patience: Seconds to wait for the agent to end, twice: after the first refusal and
                cancellation, and after the last.

        Returns:
            Whether the agent ended. One that computes or sleeps without calling cannot be stopped
            from outside if it runs in a thread; the thread is a daemon and ends with the process.
        """
        leader = next(iter(self.seats.values()), self)
        if leader is not self:
            return await leader.close(patience)
        self.abandon()
        self._stop_timer()
        for task in self._frozen_calls:
            task.cancel()
        for run in (self, *self._peers()):
            if run._waiter is not None and not run._waiter.done():
                run._waiter.set_exception(_closed(self.form.name))
        for _ in range(2):
            if self.is_over:
                break
            if self._task is not None:
                self._task.cancel()
            try:
                await asyncio.wait_for(self._ended.wait(), patience)
            except TimeoutError:
                continue
        for run in (self, *self._peers()):
            await run.release()
        return self.is_over

    def abandon(self) -> None:
        """Refuse the parked call, the queue and all later calls. Safe from any thread."""
        for run in (self, *self._peers()):
            run._abandon()

    def _abandon(self) -> None:
        self._closed = True
        error = _closed(self.form.name)
        if self._parked is not None:
            self._parked.refuse(error)
        while self._queue:
            try:
                self._queue.popleft().refuse(error)
            except IndexError:
                break
        for call in [*self._frozen_calls.values()]:
            call.refuse(error)

    # -- the Env's side --------------------------------------------------------------------------

    async def next_event(self, patience: float | None) -> ParkedCall | AgentEnd:
        """The next call that somebody waits on, or the agent's end.

        Raises:
            AgentTimeoutError: Neither came within ``patience`` seconds (None: wait for ever).
            EnvClosedError: The run was closed meanwhile.
        """
        while self._queue:
            call = self._queue.popleft()
            if call.is_waiting:
                self._parked = call
                return call
        if self._end is not None:
            return self._end
        self._waiter = self.loop.create_future()
        if patience is not None:
            self._deadline = self.loop.time() + patience
            if self._timer is None:
                self._timer = self.loop.call_at(self._deadline, self._on_timer, patience)
        try:
            return await self._waiter
        finally:
            self._waiter = None

    def _on_timer(self, patience: float) -> None:
        """Time out whoever waits, or look again at the deadline of the present wait.

        One timer serves many turns: to arm and cancel one for each would cost a tenth of a turn.
        """
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return  # the next wait arms it again
        if any(peer._is_asked() for peer in self._peers()):
            self._deadline = self.loop.time() + patience  # the trainer's turn, not the agent's
        if self.loop.time() < self._deadline:
            self._timer = self.loop.call_at(self._deadline, self._on_timer, patience)
            return
        self._waiter.set_exception(
            AgentTimeoutError(
                f"The agent {self.form.name} neither called the model nor ended within "
                f"agent_timeout={patience} s. Raise agent_timeout if its tools are slow, or "
                "look for a wait that never ends."
            )
        )

    def _is_asked(self) -> bool:
        return self._parked is not None and self._parked.is_waiting

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- the agent's side ------------------------------------------------------------------------

    async def call(self, request: ChatRequest) -> Reply:
        """Park a request from a task, on any event loop, and wait for its reply.

        Raises:
            openai.BadRequestError: The Env refused the request.
            EnvClosedError: The Env was closed.
            EpisodeEndedError: The agent had already ended.
        """
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        caller = task.get_name() if task is not None else ""
        if loop is self.loop:
            future = loop.create_future()
            self._arrive(ParkedCall(request, caller, future, None))
        else:
            future = loop.create_future()
            caller = f"{threading.current_thread().name} {caller}"
            self._arrive_from_outside(ParkedCall(request, caller, future, loop))
        try:
            return await future  # type: ignore[no-any-return]
        except (EnvClosedError, EpisodeEndedError):
            self._count_refusal()
            # An agent that tries again at once would keep the loop from ever cancelling it.
            await asyncio.sleep(0)
            raise

    def call_blocking(self, request: ChatRequest) -> Reply:
        """Park a request from a thread and block until its reply.

        Raises:
            BlockingCallError: Called on the Env's own loop, which it would block for ever.
            openai.BadRequestError, EnvClosedError, EpisodeEndedError: As ``call``.
        """
        if threading.get_ident() == self._loop_thread and self.loop.is_running():
            raise BlockingCallError(
                "A blocking model call on the event loop that has to answer it would wait for "
                "ever. Use `await client.chat.completions.create(...)` here, or make the blocking "
                "call in a thread (asyncio.to_thread)."
            )
        future: concurrent.futures.Future[Reply] = concurrent.futures.Future()
        call = ParkedCall(request, threading.current_thread().name, future, None)
        self._arrive_from_outside(call)
        try:
            return future.result()
        except (EnvClosedError, EpisodeEndedError):
            self._count_refusal()
            raise

    def _count_refusal(self) -> None:
        self._refused += 1
        if self._refused > REFUSALS_BEFORE_ABORT:
            raise AgentAborted(
                f"The agent {self.form.name} went on calling the model after it was told "
                f"{self._refused} times that its episode is over."
            )

    def _arrive_from_outside(self, call: ParkedCall) -> None:
        try:
            self.loop.call_soon_threadsafe(self._arrive, call)
        except RuntimeError:  # the Env's loop is closed, and the Env with it
            call.refuse(_closed(self.form.name))

    def _arrive(self, call: ParkedCall) -> None:
        if self.seats and call.request.model not in self.frozen:
            seat = self.seats.get(call.request.model)
            if seat is None:
                call.refuse(_no_seat(call.request.model, self.seats))
                return
            if seat is not self:
                seat._arrive(call)
                return
        if self._closed:
            call.refuse(_closed(self.form.name))
        elif self._end is not None:
            call.refuse(
                EpisodeEndedError(
                    f"A model call arrived after the agent {self.form.name} had ended; nothing can "
                    "answer it. Await (or join) every call before the agent returns."
                )
            )
        elif call.request.model in self.frozen:
            self._ask_frozen(call)
        elif self._waiter is not None and not self._waiter.done():
            self._parked = call  # known here, in case whoever waits is cancelled at this moment
            self._waiter.set_result(call)
        else:
            self._queue.append(call)

    def _ask_frozen(self, call: ParkedCall) -> None:
        """Answer a call from a model that is not the policy; outside of the agent's context."""
        task = self.loop.create_task(
            self._answer_from_frozen(call), context=contextvars.Context(), name="evert frozen model"
        )
        self._frozen_calls[task] = call
        task.add_done_callback(self._frozen_calls.pop)

    async def _answer_from_frozen(self, call: ParkedCall) -> None:
        try:
            call.answer(await self.frozen[call.request.model](call.request))
        except BaseException as error:  # the agent called it, and the agent gets it
            call.refuse(_closed(self.form.name) if self._closed else error)


def seat_model(name: str) -> str:
    """The model name that calls a seat."""
    return f"{SEAT_PREFIX}{name}"


def seat_name(model: str) -> str:
    """The seat that a model name calls."""
    return model.removeprefix(SEAT_PREFIX)


def give_threads(loop: asyncio.AbstractEventLoop) -> None:
    """Give an event loop's default executor enough threads for frameworks that block in them.

    They run blocking clients there, and its default is a handful of threads: as many agents would
    wait in them, and the rest could never make the calls that a trainer waits for. An executor that
    somebody chose is left alone.
    """
    present = getattr(loop, "_default_executor", None)
    size = getattr(present, "_max_workers", 0)
    if present is None or (type(present) is ThreadPoolExecutor and size == _default_size()):
        loop.set_default_executor(ThreadPoolExecutor(AGENT_THREADS, thread_name_prefix="asyncio"))
        if present is not None:
            present.shutdown(wait=False)  # what it was given, it still does


@cache
def _default_size() -> int:
    pool = ThreadPoolExecutor()
    pool.shutdown()
    return pool._max_workers


def _no_seat(model: str, seats: Mapping[str, AgentRun]) -> Exception:
    return bad_request(
        f"The model {model!r} is none of this episode's seats: {', '.join(seats)}. Name one of "
        "them, or take client.seat(name).",
        param="model",
    )


def _closed(name: str) -> EnvClosedError:
    return EnvClosedError(
        f"The environment of the agent {name} was closed: this rollout is over and its model calls "
        "are refused. Let the agent end."
    )
