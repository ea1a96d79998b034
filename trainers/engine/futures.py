"""Futures in the shapes the SDK's callers use: awaited, ``.result()``, or already the thing itself.

``submit`` puts a call on a worker and returns the SDK's own ``AwaitableConcurrentFuture``.
``Ready`` lets a finished client stand in for the future of a client that the SDK's methods return.
"""

from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future, InvalidStateError
from contextlib import suppress
from typing import Any, Self, TypeVar

from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture

T = TypeVar("T")
S = TypeVar("S")


def submit(
    worker: Executor, call: Callable[..., T], *args: Any, **kwargs: Any
) -> AwaitableConcurrentFuture[T]:
    """Run ``call`` on ``worker``, after what was submitted to it before."""
    return AwaitableConcurrentFuture(worker.submit(call, *args, **kwargs))


def finished(value: T) -> AwaitableConcurrentFuture[T]:
    """A future that has its result."""
    future: Future[T] = Future()
    future.set_result(value)
    return AwaitableConcurrentFuture(future)


def chain(first: "Future[S]", then: Callable[[S], "Future[T]"]) -> "Future[T]":
    """A future of ``then(first's result)``'s result; cancelling it cancels the second stage."""
    outer: Future[T] = Future()

    def start(done: "Future[S]") -> None:
        try:
            inner = then(done.result())
        except Exception as error:
            with suppress(InvalidStateError):
                outer.set_exception(error)
            return
        outer.add_done_callback(lambda _: inner.cancel())
        inner.add_done_callback(lambda _: _copy(inner, outer))

    first.add_done_callback(start)
    return outer


def _copy(inner: "Future[T]", outer: "Future[T]") -> None:
    if inner.cancelled() or outer.cancelled() or not outer.set_running_or_notify_cancel():
        return
    error = inner.exception()
    if error is not None:
        outer.set_exception(error)
    else:
        outer.set_result(inner.result())


class Ready:
    """A client that is also the finished future of itself.

    The SDK returns futures of clients; the Cookbook uses some of them as the client, without
    waiting. Both work here.
    """

    def result(self, timeout: float | None = None) -> Self:
        """The client."""
        return self

    async def result_async(self, timeout: float | None = None) -> Self:  # noqa: ASYNC109
        """The client."""
        return self

    def future(self) -> "Future[Self]":
        """A finished future of the client."""
        return finished(self).future()

    def __await__(self) -> Generator[Any, None, Self]:
        """The client."""
        return self.result_async().__await__()
