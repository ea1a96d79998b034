"""In-process transport for ``lm15``, the HTTP client built into DSPy.

    RouterConfig(transport=client.transport)   the agent passes the transport to its router
    dspy.LM("openai/policy")                   evert intercepts the calls (``takeover.py``)

lm15 does not use any other HTTP library. Its transports have one method, ``stream(request)``, which
returns a context manager. DSPy bundles a copy of lm15, so two copies may be loaded in a process. A
response is built from the classes of the copy that made the request. Importing DSPy takes seconds,
so this module does not import it. Instead, ``when_imported`` waits for other code to import it.
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
"""Modules that contain lm15's transports, in lm15 itself and in DSPy's copy."""

TRANSPORTS = ("StdlibTransport", "StdlibAsyncTransport")
"""Transports that open sockets."""


class Exchange:
    """A context manager that answers a request. ``send`` passes on requests for other models."""

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
        """Do nothing, since there are no connections."""

    return _library(request).AsyncTransportResponse(
        **_head(answer), chunks=chunks(), release=release
    )


def _library(request: Any) -> Any:
    return sys.modules[type(request).__module__]


def _head(answer: ApiResponse) -> dict[str, Any]:
    headers = [("content-type", answer.content_type)]
    return {"status": answer.status, "reason": "", "headers": headers, "http_version": "HTTP/1.1"}


def when_imported(do: Callable[[ModuleType], None]) -> None:
    """Call ``do`` with each module in ``MODULES``, now or as soon as it is imported."""
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
        """For modules in ``MODULES``, return a spec whose loader calls ``do`` after the import."""
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
