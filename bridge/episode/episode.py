"""An episode: one run of an agent, from start to cleanup.

The agent is started once, as a task on the Env's event loop or in its own thread. It makes model
calls through ``call`` and ``call_blocking``, from any task, thread or event loop. The route table
decides whether a call waits in an inbox or goes to a frozen model. An episode has three states:

    running   the agent can make calls
    ended     the agent function has finished; further calls raise ``EpisodeEndedError``
    closed    the Env was closed and the agent cancelled; calls raise ``EnvClosedError``

Resources opened for the agent (such as a URL) are released by an ``AsyncExitStack`` when the
episode is over.
"""

import asyncio
import concurrent.futures
import contextvars
import random
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from enum import StrEnum
from functools import cached_property
from typing import Any

from evert.bridge.chat.bad_requests import bad_request
from evert.bridge.chat.reply import Reply
from evert.bridge.chat.request import ChatRequest, FrozenAnswer
from evert.bridge.episode.agent import AgentForm
from evert.bridge.episode.inbox import AgentEnd, Inbox, ParkedCall
from evert.bridge.episode.refusals import Refusals
from evert.bridge.episode.routes import Routes
from evert.bridge.episode.seeds import random_seed
from evert.bridge.errors import (
    AgentAborted,
    BlockingCallError,
    EnvClosedError,
    EpisodeEndedError,
)

REFUSALS_BEFORE_ABORT = 3
"""Number of calls after the end of the episode that raise a regular error. All later calls raise
``AgentAborted``."""

JOINED_AT_ONCE = 0.005
"""Seconds to wait for an agent's thread to exit after the agent function has finished."""

_detached_tasks: set["asyncio.Task[None]"] = set()
"""Background tasks that nobody awaits: agents that ignore cancellation, and cleanup tasks. We keep
references to them so that they are not garbage-collected."""


class EpisodeState(StrEnum):
    """The states of an episode (see the module docstring)."""

    RUNNING = "running"
    ENDED = "ended"
    CLOSED = "closed"


class Episode:
    """One run of an agent.

    Args:
        roles: The model names of each trained role. There is one role or, if the agent has seats,
            one role per seat.
        frozen: Frozen models by name.
        seed: Seed for the agent (default: a random seed).

    Attributes:
        has_called: Whether the agent has called a known model.
        inboxes: One inbox per role, in the order of ``roles``.
        refusals: Delays an agent that keeps making calls we refuse.
        routes: Maps each model name to an inbox or a frozen model.
        hints: Functions that are called when the agent fails. Each returns a sentence that may
            explain the failure, or "".
    """

    def __init__(
        self,
        form: AgentForm,
        loop: asyncio.AbstractEventLoop,
        roles: Sequence[Sequence[str]],
        frozen: Mapping[str, FrozenAnswer] | None = None,
        seed: int | None = None,
    ) -> None:
        self.seed = random_seed() if seed is None else seed
        self.form = form
        self.loop = loop
        self.life = EpisodeState.RUNNING
        self.has_called = False
        self._frozen_calls: dict[asyncio.Task[None], ParkedCall] = {}
        self.inboxes: list[Inbox[Any]] = []
        self.inboxes += [Inbox(form.name, loop, self._frozen_calls, self.inboxes) for _ in roles]
        role_inboxes = zip(roles, self.inboxes, strict=True)
        self.routes = Routes(
            {name: inbox for names, inbox in role_inboxes for name in names}, frozen or {}
        )
        self.refusals = Refusals()
        self.hints: list[Callable[[], str]] = [self.routes.hint, self.refusals.hint]
        self._exit_stack: AsyncExitStack | None = None
        self._exit_lock = threading.Lock()
        self._late_calls = 0
        self._task: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._over = asyncio.Event()
        self._loop_thread = threading.get_ident()

    @cached_property
    def rng(self) -> random.Random:
        """The agent's random number generator, seeded with ``seed``."""
        return random.Random(self.seed)

    # -- life ------------------------------------------------------------------------------------

    def start(self, agent: Callable[[], Any], context: contextvars.Context) -> None:
        """Start the agent in ``context``, as a task if it is async, else in a daemon thread."""
        name = f"evert agent {self.form.name}"

        def on_done(task: "asyncio.Task[None]") -> None:
            if not self.is_over:  # cancelled before its first step
                self._on_end(AgentEnd(error=asyncio.CancelledError()))

        if self.form.is_async:
            running = self._run_in_task(agent)
            self._task = self.loop.create_task(running, name=name, context=context)
            self._task.add_done_callback(on_done)
        else:
            self._thread = threading.Thread(
                target=context.run,
                args=(self._run_in_thread, agent),
                name=name,
                daemon=True,  # don't let a hung agent keep the process alive
            )
            self._thread.start()

    async def _run_in_task(self, agent: Callable[[], Any]) -> None:
        try:
            end = AgentEnd(await agent())
        except BaseException as error:  # the Env's step handles it
            end = AgentEnd(error=error)
        # Don't defer this: a sub-agent's call in the same event loop iteration must be refused.
        self._on_end(end)

    def _run_in_thread(self, agent: Callable[[], Any]) -> None:
        try:
            end = AgentEnd(agent())
        except BaseException as error:  # the Env's step handles it
            end = AgentEnd(error=error)
        try:
            self.loop.call_soon_threadsafe(self._on_end, end)
        except RuntimeError:  # the Env's loop is closed, so no ``step`` is waiting
            self._over.set()

    def _on_end(self, end: AgentEnd) -> None:
        if self.life is EpisodeState.RUNNING:
            self.life = EpisodeState.ENDED
        if self._thread is not None:
            self._thread.join(JOINED_AT_ONCE)  # the thread scheduled ``_on_end`` as its last step
            if self._thread.is_alive():  # still running finalizers, which must not block the loop
                self.loop.call_later(20 * JOINED_AT_ONCE, self._on_end, end)
                return
        self._over.set()
        for frozen_call in self._frozen_calls:
            frozen_call.cancel()
        ended = EpisodeEndedError(
            f"This model call outlived its agent {self.form.name}, which has already returned. "
            "Await (or join) every call before the agent returns."
        )
        for inbox in self.inboxes:
            inbox.end(end, ended)

    @property
    def is_over(self) -> bool:
        """Whether the agent function has finished."""
        return self._over.is_set()

    def check_running(self) -> None:
        """Raise an error if the agent can no longer make calls. Thread-safe.

        Raises:
            EnvClosedError, EpisodeEndedError: The episode is over, or its event loop is closed.
        """
        if self.loop.is_closed():
            self.abandon()
        if self.life is not EpisodeState.RUNNING:
            raise self._refusal()

    def hold(self, release: Callable[[], Awaitable[None]]) -> None:
        """Register ``release`` to be called when the episode is over. Thread-safe.

        Raises:
            EnvClosedError, EpisodeEndedError: The episode is over.
        """
        with self._exit_lock:  # so that nothing is registered after the release
            self.check_running()
            self._exit_stack = self._exit_stack or AsyncExitStack()
            self._exit_stack.push_async_callback(release)

    async def release(self) -> None:
        """Call the functions registered with ``hold``. Calling this again has no effect."""
        with self._exit_lock:
            stack, self._exit_stack = self._exit_stack, None
        if stack is not None:
            await stack.aclose()

    async def close(self, patience: float) -> bool:
        """Abort the episode: refuse its calls, cancel the agent and let its ``finally`` blocks run.

        If the agent has already finished, only ``release`` has an effect.

        Args:
            patience: Seconds to wait for the agent to finish after it is cancelled. If the agent
                swallows the cancellation, we cancel it once more and wait again.

        Returns:
            Whether the agent finished. An agent in a thread cannot be stopped while it computes or
            sleeps, but its thread is a daemon and dies with the process.
        """
        self.abandon()
        for frozen_call in self._frozen_calls:
            frozen_call.cancel()
        for inbox in self.inboxes:
            inbox.wake()
        try:
            for _ in range(2):
                if self.is_over:
                    break
                if self._task is not None:
                    self._task.cancel()
                try:
                    await asyncio.wait_for(self._over.wait(), patience)
                except TimeoutError:
                    continue
        finally:
            await self.release()
        if self._task is not None and self._late_calls > REFUSALS_BEFORE_ABORT:
            _detach(self._task)
        return self.is_over

    def abandon(self) -> None:
        """Refuse all pending and future calls. Thread-safe."""
        if self.life is EpisodeState.RUNNING:
            self.life = EpisodeState.CLOSED
        refusal = self._refusal()
        for inbox in self.inboxes:
            inbox.abandon(refusal)
        for call in [*self._frozen_calls.values()]:
            call.refuse(refusal)

    def drop(self) -> None:
        """Refuse the agent's calls and cancel it without waiting for it to finish. Thread-safe."""
        if self.loop.is_running() and threading.get_ident() != self._loop_thread:
            self.loop.call_soon_threadsafe(self.drop)
            return
        self.abandon()
        if self._task is not None and not self.loop.is_closed():
            self._task.cancel()
        if self._exit_stack is not None and self.loop.is_running():
            releasing = self.loop.create_task(self.release(), name="evert release")
            _detached_tasks.add(releasing)  # nobody awaits it
            releasing.add_done_callback(_detached_tasks.discard)

    def _refusal(self) -> EnvClosedError | EpisodeEndedError:
        if self.life is EpisodeState.ENDED:
            return EpisodeEndedError(
                f"The agent {self.form.name} made a model call after it had ended, so the call "
                "cannot be answered. Await (or join) every call before the agent returns."
            )
        return EnvClosedError(
            f"The environment of the agent {self.form.name} was closed: this rollout is over, and "
            "further model calls are refused. Let the agent exit."
        )

    # -- the agent's calls -----------------------------------------------------------------------

    async def call(
        self, request: ChatRequest, has_reader: Callable[[], bool] = lambda: True
    ) -> Reply:
        """Submit a request and wait for the reply. Works from a task on any event loop.

        Args:
            request: The request.
            has_reader: Whether the client received the reply or is still waiting for it (see
                ``ParkedCall``).

        Raises:
            openai.BadRequestError: The Env refused the request.
            EnvClosedError, EpisodeEndedError: The episode was closed, or its agent has ended.
            AgentAborted: The agent kept making calls after ``REFUSALS_BEFORE_ABORT`` such errors.
        """
        if (
            self.life is not EpisodeState.RUNNING
        ):  # must come first: a garbage-collected agent stops at this await
            await asyncio.sleep(0)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise bad_request(
                "This async call was made without a running asyncio event loop (for example under "
                "trio), but evert only supports asyncio. Run the agent with asyncio, or use a "
                "blocking client in a thread.",
                code="no_asyncio",
            ) from None
        task = asyncio.current_task()
        caller = task.get_name() if task is not None else ""
        speaker = task or threading.current_thread()
        future = loop.create_future()
        if loop is self.loop:
            call = ParkedCall(request, caller, speaker, future, None, has_reader)
            self._arrive(call)
        else:
            caller = f"{threading.current_thread().name} {caller}"
            call = ParkedCall(request, caller, speaker, future, loop, has_reader)
            self._arrive_from_outside(call)
        try:
            reply: Reply = await future
        except asyncio.CancelledError:
            call.drop()
            raise
        except (Exception, AgentAborted) as error:
            await self.refusals.hold_back(error)
            raise
        return reply

    def call_blocking(self, request: ChatRequest) -> Reply:
        """Submit a request from a thread and block until the reply arrives (see ``call``).

        Raises:
            BlockingCallError: The call was made on the Env's own event loop, which would deadlock.
            openai.BadRequestError, EnvClosedError, EpisodeEndedError, AgentAborted: See ``call``.
        """
        if threading.get_ident() == self._loop_thread and self.loop.is_running():
            raise BlockingCallError(
                "A blocking model call on the Env's own event loop would deadlock, because that "
                "loop has to answer the call. Use `await client.chat.completions.create(...)` "
                "here, or make the blocking call in a thread (asyncio.to_thread)."
            )
        future: concurrent.futures.Future[Reply] = concurrent.futures.Future()
        thread = threading.current_thread()
        self._arrive_from_outside(ParkedCall(request, thread.name, thread, future, None))
        try:
            return future.result()
        except (Exception, AgentAborted) as error:
            self.refusals.hold_back_blocking(error)
            raise

    def _arrive_from_outside(self, call: ParkedCall) -> None:
        try:
            self.loop.call_soon_threadsafe(self._arrive, call)
        except RuntimeError:  # the Env's loop is closed, so the episode is over
            self.abandon()
            call.refuse(self._late_refusal())

    def _arrive(self, call: ParkedCall) -> None:
        if self.life is not EpisodeState.RUNNING:
            call.refuse(self._late_refusal())
            return
        try:
            target = self.routes.find(call.request.model)
        except Exception as error:  # a 400 error, or any error that a str subclass raises
            call.refuse(error)
            return
        self.has_called = True
        self.refusals.end()
        if isinstance(target, Inbox):
            target.put(call)
            return
        task = self.loop.create_task(  # use an empty context instead of the agent's
            self._answer(target, call), context=contextvars.Context(), name="evert frozen model"
        )
        self._frozen_calls[task] = call
        task.add_done_callback(self._frozen_calls.pop)

    def _late_refusal(self) -> BaseException:
        self._late_calls += 1
        if self._late_calls > REFUSALS_BEFORE_ABORT:
            return AgentAborted(
                f"The agent {self.form.name} kept calling the model, even though "
                f"{REFUSALS_BEFORE_ABORT} errors had reported that its episode was over."
            )
        return self._refusal()

    async def _answer(self, model: FrozenAnswer, call: ParkedCall) -> None:
        try:
            call.answer(await model(call.request))
        except asyncio.CancelledError:
            given_up = RuntimeError(f"The model {call.request.model!r} cancelled its own call.")
            call.refuse(given_up if self.life is EpisodeState.RUNNING else self._refusal())
        except BaseException as error:  # passed on to the agent
            call.refuse(error)


def _detach(task: "asyncio.Task[None]") -> None:
    """Unregister a hung agent's task, so that the event loop does not wait for it."""
    if not task.done():
        _detached_tasks.add(task)
        task.add_done_callback(_detached_tasks.discard)
        asyncio._unregister_task(task)
