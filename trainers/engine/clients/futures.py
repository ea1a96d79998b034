"""Futures as the SDK's callers use them: awaited, by ``.result()``, or as the result itself.

``settled`` runs a call at once and returns the SDK's ``AwaitableConcurrentFuture``. ``Accepted`` is
the future of a call that runs to its end, whoever waits for it. ``Ready`` makes a finished client
usable as the future that the SDK's methods return for a client. ``async_forms`` and ``refusing``
add methods of the SDK's class: the ``_async`` forms, and those that only the hosted service can
answer.
"""

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, NoReturn, Self, TypeVar

from tinker.lib.public_interfaces.api_future import APIFuture, AwaitableConcurrentFuture

from evert.trainers.engine.common.errors import UnsupportedError

T = TypeVar("T")
S = TypeVar("S")
C = TypeVar("C", bound=type)


class Accepted(Future[T]):
    """The future of a call that runs to its end: cancelling it has no effect.

    So the order of a client's calls stays whole if a task that awaits one of them is cancelled.
    """

    def __init__(self) -> None:
        super().__init__()
        self._read = False
        self.set_running_or_notify_cancel()

    def follow(self, call: "Future[T]") -> None:
        """Take over the outcome of ``call``."""
        call.add_done_callback(self._copy)

    def _copy(self, call: "Future[T]") -> None:
        error = call.exception()
        if error is None:
            self.set_result(call.result())
        else:
            self.set_exception(error)

    def result(self, timeout: float | None = None) -> T:
        """As ``Future.result``."""
        try:
            return super().result(timeout)
        finally:
            self._read = self.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As ``Future.exception``."""
        try:
            return super().exception(timeout)
        finally:
            self._read = self.done()

    @property
    def unread_error(self) -> BaseException | None:
        """The error of a call that failed, if nobody has asked for its outcome; else None."""
        return super().exception() if self.done() and not self._read else None


def settled(call: Callable[..., T], *args: Any) -> AwaitableConcurrentFuture[T]:
    """Run ``call`` now; the future has its result or its error."""
    future: Future[T] = Future()
    _settle(future, functools.partial(call, *args))
    return AwaitableConcurrentFuture(future)


def finished(value: T) -> AwaitableConcurrentFuture[T]:
    """A future that already has the result ``value``."""
    return settled(lambda: value)


def chain(first: "Future[S]", then: Callable[[S], "Future[T]"]) -> "Future[T]":
    """A future of ``then(first.result())``'s result; cancelling it cancels ``then``'s future."""
    outer: Future[T] = Future()

    def start(done: "Future[S]") -> None:
        try:
            inner = then(done.result())
        except Exception as error:
            with suppress(InvalidStateError):
                outer.set_exception(error)
            return
        outer.add_done_callback(lambda _: inner.cancel())
        inner.add_done_callback(lambda _: _settle(outer, inner.result))

    first.add_done_callback(start)
    return outer


def together(futures: "Sequence[Future[T]]") -> "Future[list[T]]":
    """A future of all results, in order; if any fail, it has the error of the first of these."""
    outer: Future[list[T]] = Future()
    left, lock = len(futures), threading.Lock()

    def count_down(_: "Future[T]") -> None:
        nonlocal left
        with lock:
            left -= 1
            last = left == 0
        if last:
            _settle(outer, lambda: [future.result() for future in futures])

    outer.add_done_callback(lambda _: [future.cancel() for future in futures])
    for future in futures:
        future.add_done_callback(count_down)
    return outer if futures else finished(list[T]()).future()


def _settle(outer: "Future[T]", call: Callable[[], T]) -> None:
    with suppress(InvalidStateError):  # it was cancelled
        try:
            result = call()
        except Exception as error:
            outer.set_exception(error)
        else:
            outer.set_result(result)


class Ready(APIFuture[Any]):
    """A client that is also a finished future of itself: the Cookbook uses some clients as both."""

    def result(self, timeout: float | None = None) -> Self:
        """The client."""
        return self

    async def result_async(self, timeout: float | None = None) -> Self:  # noqa: ASYNC109
        """The client."""
        return self

    def future(self) -> "Future[Self]":
        """A finished future of the client."""
        return finished(self).future()

    def get_telemetry(self) -> None:
        """None: nothing is reported to anybody."""


def async_forms(sdk: type, keep: type | tuple[()] = ()) -> Callable[[C], C]:
    """Add the ``_async`` form of each method that has one in the SDK's class.

    Answers of type ``keep`` are returned as they are; other futures are awaited.
    """

    def add(ours: C) -> C:
        for name in dir(sdk):
            plain = getattr(ours, name.removesuffix("_async"), None)
            if name.endswith("_async") and plain is not None and not hasattr(ours, name):
                setattr(ours, name, _async_form(name, plain, keep))
        return ours

    return add


def _async_form(name: str, plain: Callable[..., Any], keep: type | tuple[()]) -> Any:
    @functools.wraps(plain)
    async def form(*args: Any, **kwargs: Any) -> Any:
        answer = plain(*args, **kwargs)
        wait = isinstance(answer, APIFuture) and not isinstance(answer, keep)
        return await answer if wait else answer

    form.__name__ = name
    return form


def refusing(sdk: type, reasons: Mapping[str, str]) -> Callable[[C], C]:
    """Add the SDK's methods in ``reasons``, which raise ``UnsupportedError``.

    Adds the ``_async`` forms, too (``async_forms``).
    """

    def add(ours: C) -> C:
        for name, reason in reasons.items():
            setattr(ours, name, _refusal(getattr(sdk, name), f"{sdk.__name__}.{name}", reason))
        return async_forms(sdk)(ours)

    return add


def _refusal(theirs: Any, name: str, reason: str) -> Any:
    message = f"{name} was called on evert's embedded engine, which cannot serve it: {reason}"

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedError(message)

    if isinstance(theirs, property):
        return property(refuse, doc=theirs.__doc__)
    return functools.wraps(theirs)(refuse)
