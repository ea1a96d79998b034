"""Futures that callers can use in the same ways as the SDK's futures.

Callers await a future, call its ``.result()``, or use the future as if it were the result.

``settled_future`` runs a call immediately and returns the SDK's ``AwaitableConcurrentFuture``.
``AcceptedCall`` is the future of a call that always runs to completion, even if nobody waits for
it. ``ReadyClient`` is a client that is also its own future, and ``client_future`` wraps a client in
the future type that the installed SDK would return. ``AnyFuture`` is both an SDK future and a
standard library future.
"""

import asyncio
import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Self, TypeVar

import tinker
from tinker import APIFuture
from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture

T = TypeVar("T")
S = TypeVar("S")


class AcceptedCall(Future[T]):
    """The future of a call that always runs to completion: cancelling the future has no effect.

    This way, a client makes the same calls even if a task that awaits one of them is cancelled.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_read = False
        self.set_running_or_notify_cancel()

    def follow(self, call: "Future[T]") -> None:
        """Copy the result or error of ``call`` once it is done."""
        call.add_done_callback(self._copy)

    def _copy(self, call: "Future[T]") -> None:
        error = call.exception()
        if error is None:
            self.set_result(call.result())
        else:
            self.set_exception(error)

    def result(self, timeout: float | None = None) -> T:
        """Like ``Future.result``."""
        try:
            return super().result(timeout)
        finally:
            self._is_read = self.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Like ``Future.exception``."""
        try:
            return super().exception(timeout)
        finally:
            self._is_read = self.done()

    @property
    def unread_error(self) -> BaseException | None:
        """The call's error, if it failed and nobody has read the outcome yet; otherwise, None."""
        return super().exception() if self.done() and not self._is_read else None


def settled_future(call: Callable[..., T], *args: Any) -> AwaitableConcurrentFuture[T]:
    """Run ``call`` now and return a future with its result or error."""
    future: Future[T] = Future()
    _settle(future, functools.partial(call, *args))
    return AwaitableConcurrentFuture(future)


def finished_future(value: T) -> AwaitableConcurrentFuture[T]:
    """Return a future that already has the result ``value``."""
    return settled_future(lambda: value)


def chain(first: "Future[S]", then: Callable[[S], "Future[T]"]) -> "Future[T]":
    """Return a future for the result of the future that ``then(first.result())`` returns.

    Cancelling the returned future also cancels the future that ``then`` returned.
    """
    outer: Future[T] = Future()

    def start(future: "Future[S]") -> None:
        try:
            inner = then(future.result())
        except Exception as error:
            with suppress(InvalidStateError):
                outer.set_exception(error)
            return
        outer.add_done_callback(lambda _: inner.cancel())
        inner.add_done_callback(lambda _: _settle(outer, inner.result))

    first.add_done_callback(start)
    return outer


def gather_futures(futures: "Sequence[Future[T]]") -> "Future[list[T]]":
    """Return a future of all results in order. It raises the first error in that order, if any."""
    outer: Future[list[T]] = Future()
    remaining, lock = len(futures), threading.Lock()

    def count_down(_: "Future[T]") -> None:
        nonlocal remaining
        with lock:
            remaining -= 1
            last = remaining == 0
        if last:
            _settle(outer, lambda: [future.result() for future in futures])

    outer.add_done_callback(lambda _: [future.cancel() for future in futures])
    for future in futures:
        future.add_done_callback(count_down)
    return outer if futures else finished_future(list[T]()).future()


def _settle(outer: "Future[T]", call: Callable[[], T]) -> None:
    with suppress(InvalidStateError):  # it was cancelled
        try:
            result = call()
        except Exception as error:
            outer.set_exception(error)
        else:
            outer.set_result(result)


class AnyFuture(Future[T], APIFuture[T]):
    """An SDK future that is also a standard library future, as older SDKs' ``sample`` returned."""

    def __init__(self, future: "Future[T]") -> None:
        super().__init__()
        self._future = future
        future.add_done_callback(self._mirror)

    def _mirror(self, future: "Future[T]") -> None:
        if future.cancelled():
            if super().cancel():
                self.set_running_or_notify_cancel()
        else:
            _settle(self, future.result)

    def result(self, timeout: float | None = None) -> T:
        """Like ``Future.result``."""
        return self._future.result(timeout)

    async def result_async(self, timeout: float | None = None) -> T:  # noqa: ASYNC109
        """Like ``result``, for async code."""
        async with asyncio.timeout(timeout):
            return await asyncio.wrap_future(self._future)

    def future(self) -> "Future[T]":
        """Return the standard library future."""
        return self._future

    def cancel(self) -> bool:
        """Like ``Future.cancel``."""
        return self._future.cancel()


def client_future(kind: str, client: APIFuture[Any]) -> Any:
    """Wrap the future of a "Training" or "Sampling" client in the SDK's class for such futures.

    If the SDK has no such class, return the client itself. The client is a ``ReadyClient``, which
    works whether callers expect a client or a future.
    """
    wrapper = getattr(tinker, f"Backcompat{kind}ClientFuture", None)
    return client.result() if wrapper is None else wrapper(client)


class ReadyClient(APIFuture[Any]):
    """A client that is also its own finished future. The Cookbook uses some clients as both."""

    def result(self, timeout: float | None = None) -> Self:
        """Return the client."""
        return self

    async def result_async(self, timeout: float | None = None) -> Self:  # noqa: ASYNC109
        """Return the client."""
        return self

    def future(self) -> "Future[Self]":
        """Return a finished future whose result is the client."""
        return finished_future(self).future()

    def get_telemetry(self) -> None:
        """Return None: the engine sends no telemetry."""
