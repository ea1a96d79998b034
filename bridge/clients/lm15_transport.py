"""The rollout's API for ``lm15``, the HTTP client of DSPy's own engine.

    RouterConfig(transport=client.transport)   a router to which the agent gives the transport
    dspy.LM("openai/policy")                   taken over (``takeover.py``)

lm15 uses no other HTTP library. Its transports have one method, ``stream(request)``, which returns
a context manager. DSPy contains a copy of lm15, so a process may have two copies; the response's
class is from the request's copy. This file does not import them, since importing DSPy takes
seconds: ``when_imported`` waits until other code imports them.
"""

import sys
from collections.abc import AsyncIterator, Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from evert.bridge.clients.dialects.api import ApiRequest, ApiResponse
from evert.bridge.clients.dialects.endpoint import Endpoint

MODULES = ("lm15.transports", "dspy._vendor.lm15.transports")
"""The modules with lm15's transports: in the package itself, and in DSPy's copy."""

TRANSPORTS = ("StdlibTransport", "StdlibAsyncTransport")
"""The transports that open sockets."""


class Exchange:
    """A context manager that answers a request; ``send`` forwards calls to other models."""

    def __init__(
        self, endpoint: Endpoint, request: Any, send: Callable[[], Any] | None = None
    ) -> None:
        self._endpoint, self._request = endpoint, request
        self._send: Any = send
        self._exchange: Any = None

    def _route(self) -> ApiRequest | ApiResponse:
        request = self._request
        return self._endpoint.route(request.method, path_of(request), request.body, url=request.url)

    def __enter__(self) -> Any:
        send = None if self._send is None else self._enter
        answer = self._endpoint.answer_blocking(self._route(), send)
        return _response(self._request, answer) if isinstance(answer, ApiResponse) else answer

    def _enter(self) -> Any:
        exchange = self._send()
        response, self._exchange = exchange.__enter__(), exchange
        return response

    def __exit__(self, *raised: Any) -> Any:
        return None if self._exchange is None else self._exchange.__exit__(*raised)

    async def __aenter__(self) -> Any:
        send = None if self._send is None else self._aenter
        answer = await self._endpoint.answer(self._route(), send)
        return _async_response(self._request, answer) if isinstance(answer, ApiResponse) else answer

    async def _aenter(self) -> Any:
        exchange = self._send()
        response, self._exchange = await exchange.__aenter__(), exchange
        return response

    async def __aexit__(self, *raised: Any) -> Any:
        return None if self._exchange is None else await self._exchange.__aexit__(*raised)


def path_of(request: Any) -> str:
    """Return the path of an lm15 request's URL."""
    return str(urlsplit(request.url).path)


def _response(request: Any, answer: ApiResponse) -> Any:
    chunks = iter([answer.content])
    return _library(request).TransportResponse(
        **_head(answer), chunks=chunks, release=lambda is_read: None
    )


def _async_response(request: Any, answer: ApiResponse) -> Any:
    async def chunks() -> AsyncIterator[bytes]:
        yield answer.content

    async def release(is_read: bool) -> None:
        """Do nothing: no connection is open."""

    return _library(request).AsyncTransportResponse(
        **_head(answer), chunks=chunks(), release=release
    )


def _library(request: Any) -> Any:
    return sys.modules[type(request).__module__]


def _head(answer: ApiResponse) -> dict[str, Any]:
    headers = [("content-type", answer.content_type)]
    return {"status": answer.status, "reason": "", "headers": headers, "http_version": "HTTP/1.1"}


def when_imported(do: Callable[[ModuleType], None]) -> None:
    """Call ``do`` with each module of ``MODULES``, now or when it is imported."""
    sys.meta_path.insert(0, _Finder(do))
    for name in MODULES:
        if name in sys.modules:
            do(sys.modules[name])


class _Finder(MetaPathFinder):
    def __init__(self, do: Callable[[ModuleType], None]) -> None:
        self._do = do

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """For a module in ``MODULES``, return a spec with a loader that calls ``do`` at the end."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname in MODULES else None
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        load = loader.exec_module

        def load_and_do(module: ModuleType) -> None:
            load(module)
            self._do(module)

        loader.exec_module = load_and_do
        return spec
