"""The rollout's API for ``lm15``, the HTTP client below DSPy's own engine.

    RouterConfig(transport=client.transport)   a router of the agent's that is given the rollout
    dspy.LM("openai/policy")                   taken over (``takeover.py``)

It is based on no other library. A transport of it has one method, ``stream(request)``; blocking
clients enter its result by ``with``, async ones by ``async with``. DSPy brings a copy of lm15 of
its own, so there may be two; whose request it is says whose response is due. Neither is imported
here, which would take DSPy's seconds: ``WhenImported`` waits until somebody else does.
"""

import sys
from collections.abc import AsyncIterator, Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from evert.bridge.clients.dialects.endpoint import Answer, Endpoint

MODULES = ("lm15.transports", "dspy._vendor.lm15.transports")
"""Where lm15's transports are: in the package itself, and in DSPy's copy."""

TRANSPORTS = ("StdlibTransport", "StdlibAsyncTransport")
"""Those that open sockets."""


class Exchange:
    """A request to a rollout, made when it is entered."""

    def __init__(self, endpoint: Endpoint, request: Any) -> None:
        self._endpoint = endpoint
        self._request = request

    def __enter__(self) -> Any:
        request = self._request
        answer = self._endpoint.answer_blocking(request.method, path_of(request), request.body)
        return _response(request, answer)

    def __exit__(self, *_: object) -> None:
        return None

    async def __aenter__(self) -> Any:
        request = self._request
        answer = await self._endpoint.answer(request.method, path_of(request), request.body)
        return _async_response(request, answer)

    async def __aexit__(self, *_: object) -> None:
        return None


class PassedOn:
    """A request to whoever else has the model; the rollout's answer if it cannot leave."""

    def __init__(self, endpoint: Endpoint, request: Any, send: Callable[[], Any]) -> None:
        self._endpoint = endpoint
        self._request = request
        self._send = send
        self._sent: Any = None

    def __enter__(self) -> Any:
        request = self._request
        try:
            self._sent = self._send()
            return self._sent.__enter__()
        except Exception as error:
            self._sent = None
            answer = self._endpoint.stranded(request.url, request.body, error)
            return _response(request, answer)

    def __exit__(self, *raised: Any) -> Any:
        return None if self._sent is None else self._sent.__exit__(*raised)

    async def __aenter__(self) -> Any:
        request = self._request
        try:
            self._sent = self._send()
            return await self._sent.__aenter__()
        except Exception as error:
            self._sent = None
            answer = self._endpoint.stranded(request.url, request.body, error)
            return _async_response(request, answer)

    async def __aexit__(self, *raised: Any) -> Any:
        return None if self._sent is None else await self._sent.__aexit__(*raised)


def path_of(request: Any) -> str:
    """The path that a request of lm15's goes to."""
    return str(urlsplit(request.url).path)


def _response(request: Any, answer: Answer) -> Any:
    chunks = iter([answer.content])
    return _library(request).TransportResponse(
        **_head(answer), chunks=chunks, release=lambda is_read: None
    )


def _async_response(request: Any, answer: Answer) -> Any:
    async def chunks() -> AsyncIterator[bytes]:
        yield answer.content

    async def release(is_read: bool) -> None:
        """Nothing is held open."""

    return _library(request).AsyncTransportResponse(
        **_head(answer), chunks=chunks(), release=release
    )


def _library(request: Any) -> Any:
    return sys.modules[type(request).__module__]


def _head(answer: Answer) -> dict[str, Any]:
    headers = [("content-type", answer.content_type)]
    return {"status": answer.status, "reason": "", "headers": headers, "http_version": "HTTP/1.1"}


class WhenImported(MetaPathFinder):
    """Has something done to lm15's transports as soon as they are imported, or at once."""

    def __init__(self, do: Callable[[ModuleType], None]) -> None:
        self._do = do

    def begin(self) -> None:
        """Do it to what was imported already, and from now on."""
        sys.meta_path.insert(0, self)
        for name in MODULES:
            if name in sys.modules:
                self._do(sys.modules[name])

    def end(self) -> None:
        """Do it no more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """How a module is loaded, which for those of ``MODULES`` ends with doing it."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname in MODULES else None
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        load = loader.exec_module

        def load_and_do(module: ModuleType) -> None:
            load(module)
            if self in sys.meta_path:  # still
                self._do(module)

        loader.exec_module = load_and_do
        return spec
