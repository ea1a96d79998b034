"""Gives the engine's clients the same methods as the installed SDK's clients.

``async_forms`` adds the ``_async`` variants of a client's methods. If an SDK method needs the
hosted service or exists only in a newer SDK, ``refuse_hosted`` adds a method that raises
``UnsupportedError``. If an option exists only in a newer SDK, callers may pass its default value,
but any other value raises an error.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from tinker import APIFuture

from evert.trainers.engine.common.errors import UnsupportedError

C = TypeVar("C", bound=type)

TESTED = "0.38"
"""The newest SDK version that evert has been tested with."""

UNKNOWN: list[str] = []
"""Differences: methods and options that only the installed SDK has, or that only evert knows."""

_NEW = "this version of evert doesn't support it. Leave it out, or update evert."


def async_forms(sdk: type, keep: type | tuple[()] = ()) -> Callable[[C], C]:
    """Add an ``_async`` variant of each method that has one in the SDK's class.

    If a method returns a future of type ``keep``, so does its variant. Other futures are awaited.
    """

    def add(client: C) -> C:
        for name in dir(sdk):
            plain = getattr(client, name.removesuffix("_async"), None)
            if name.endswith("_async") and plain is not None and not hasattr(client, name):
                setattr(client, name, _async_form(name, plain, keep))
        return client

    return add


def _async_form(name: str, plain: Callable[..., Any], keep: type | tuple[()]) -> Any:
    @functools.wraps(plain)
    async def form(*args: Any, **kwargs: Any) -> Any:
        answer = plain(*args, **kwargs)
        wait = isinstance(answer, APIFuture) and not isinstance(answer, keep)
        return await answer if wait else answer

    form.__name__ = name
    return form


def refuse_hosted(sdk: type, reasons: Mapping[str, str]) -> Callable[[C], C]:
    """Make the SDK methods listed in ``reasons`` raise ``UnsupportedError``.

    This also applies ``async_forms`` and ``refuse_unknown``.
    """

    def add(client: C) -> C:
        for name, reason in reasons.items():
            if hasattr(sdk, name):
                setattr(
                    client, name, _refusal(getattr(sdk, name), f"{sdk.__name__}.{name}", reason)
                )
            else:
                UNKNOWN.append(f"no {sdk.__name__}.{name}")
        return refuse_unknown(sdk)(async_forms(sdk)(client))

    return add


def refuse_unknown(sdk: type) -> Callable[[C], C]:
    """Make the client raise errors for public methods and options that only the SDK has."""

    def add(client: C) -> C:
        for name in (name for name in dir(sdk) if not name.startswith("_")):
            sdk_member, full = inspect.getattr_static(sdk, name), f"{sdk.__name__}.{name}"
            member = getattr(client, name, None)
            if member is None:
                UNKNOWN.append(full)
                setattr(client, name, _refusal(getattr(sdk, name), full, _NEW))
            elif inspect.isfunction(sdk_member) and inspect.isfunction(member):
                new = _new_options(sdk_member, member)
                UNKNOWN.extend(f"{option}= of {full}" for option in new)
                if new:
                    setattr(client, name, _refuse_options(member, full, new))
        return client

    return add


def _new_options(sdk_method: Callable[..., Any], method: Callable[..., Any]) -> dict[str, Any]:
    """Return the options that exist only in the SDK's method, with their defaults."""
    parameters = inspect.signature(method).parameters
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    if any(option.kind is variadic[0] for option in parameters.values()):
        return {}
    options = inspect.signature(sdk_method).parameters.items()
    return {
        name: option.default
        for name, option in options
        if name not in parameters and option.kind not in variadic
    }


def _refuse_options(method: Callable[..., Any], name: str, new: Mapping[str, Any]) -> Any:
    @functools.wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        for option in new.keys() & options.keys():
            if (value := options.pop(option)) != new[option]:
                raise UnsupportedError(
                    f"{name} was called with {option}={value!r:.80} on evert's embedded engine: "
                    f"{_NEW}"
                )
        return method(*args, **options)

    @functools.wraps(method)
    async def form(*args: Any, **options: Any) -> Any:
        return await call(*args, **options)

    return form if inspect.iscoroutinefunction(method) else call


def _refusal(sdk_member: Any, name: str, reason: str) -> Any:
    message = f"{name} is not available with evert's embedded engine: {reason}"

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedError(message)

    if isinstance(sdk_member, property):
        return property(refuse, doc=sdk_member.__doc__)
    return functools.wraps(sdk_member)(refuse)
