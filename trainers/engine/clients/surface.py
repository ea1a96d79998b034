"""The methods of the SDK's clients, in whichever version is installed.

``async_forms`` adds the ``_async`` forms of a client's methods. ``serving`` also adds methods that
only the hosted service can answer, and what a newer SDK has that evert does not know: a new method
is refused by its name, and so is a new option, unless it has its default.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from tinker import APIFuture

from evert.trainers.engine.common.errors import UnsupportedError

C = TypeVar("C", bound=type)

TESTED = "0.38"
"""The newest version of the SDK that evert was tested with."""

UNKNOWN: list[str] = []
"""What this SDK has and evert does not know, and what evert knows and this SDK does not have."""

_NEW = "this version of evert does not know it. Leave it out, or update evert."


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


def serving(sdk: type, reasons: Mapping[str, str]) -> Callable[[C], C]:
    """Add the SDK's methods in ``reasons``, which raise ``UnsupportedError``, and what is new.

    Adds the ``_async`` forms, too (``async_forms``).
    """

    def add(ours: C) -> C:
        for name, reason in reasons.items():
            if hasattr(sdk, name):
                setattr(ours, name, _refusal(getattr(sdk, name), f"{sdk.__name__}.{name}", reason))
            else:
                UNKNOWN.append(f"no {sdk.__name__}.{name}")
        return completed(sdk)(async_forms(sdk)(ours))

    return add


def completed(sdk: type) -> Callable[[C], C]:
    """Refuse the public methods and the options of the SDK's class that ours does not have."""

    def add(ours: C) -> C:
        for name in (name for name in dir(sdk) if not name.startswith("_")):
            theirs, full = inspect.getattr_static(sdk, name), f"{sdk.__name__}.{name}"
            mine = getattr(ours, name, None)
            if mine is None:
                UNKNOWN.append(full)
                setattr(ours, name, _refusal(getattr(sdk, name), full, _NEW))
            elif inspect.isfunction(theirs) and inspect.isfunction(mine):
                new = _new_options(theirs, mine)
                UNKNOWN.extend(f"{option}= of {full}" for option in new)
                if new:
                    setattr(ours, name, _taking(mine, full, new))
        return ours

    return add


def _new_options(theirs: Callable[..., Any], ours: Callable[..., Any]) -> dict[str, Any]:
    """The options that only the SDK's method has, with their defaults."""
    known = inspect.signature(ours).parameters
    wild = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    if any(option.kind is wild[0] for option in known.values()):
        return {}
    options = inspect.signature(theirs).parameters.items()
    return {
        name: option.default
        for name, option in options
        if name not in known and option.kind not in wild
    }


def _taking(ours: Callable[..., Any], name: str, new: Mapping[str, Any]) -> Any:
    @functools.wraps(ours)
    def call(*args: Any, **options: Any) -> Any:
        for option in new.keys() & options.keys():
            if (given := options.pop(option)) != new[option]:
                raise UnsupportedError(
                    f"{name} was called with {option}={given!r:.80} on evert's embedded engine: "
                    f"{_NEW}"
                )
        return ours(*args, **options)

    @functools.wraps(ours)
    async def form(*args: Any, **options: Any) -> Any:
        return await call(*args, **options)

    return form if inspect.iscoroutinefunction(ours) else call


def _refusal(theirs: Any, name: str, reason: str) -> Any:
    message = f"{name} was called on evert's embedded engine, which cannot serve it: {reason}"

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedError(message)

    if isinstance(theirs, property):
        return property(refuse, doc=theirs.__doc__)
    return functools.wraps(theirs)(refuse)
