"""In-process transport for ``httpx``, ``httpx2`` and ``lm15`` clients, both sync and async.

    openai.AsyncOpenAI(http_client=openai.DefaultAsyncHttpxClient(transport=client.transport), ...)

A single duck-typed class works for all three, because none of the libraries accepts another one's
base class. Responses use the type of the library that made the request. The transport is bound to
its rollout, because some frameworks lose context variables. It does not open any sockets. The HTTP
client's timeouts do not apply while the trainer samples, because they are implemented by the
transport that this one replaces.
"""

import logging
import sys
from functools import partial
from typing import Any, Self

from evert.bridge.clients.dialects.api import ApiRequest, ApiResponse
from evert.bridge.clients.dialects.endpoint import Endpoint
from evert.bridge.clients.lm15_transport import Exchange

IN_PROCESS = "in-process"
"""The HTTP version reported by evert's responses, which the log filter looks for."""

ROOT_URL = "http://rollout.invalid"
"""The URL to use in SDKs. The host name never resolves."""


class Transport:
    """Answers requests from an SDK. Use ``base_url`` for OpenAI, and ``root_url`` for the rest."""

    root_url = ROOT_URL
    base_url = f"{ROOT_URL}/v1"

    def __init__(self, endpoint: Endpoint, behind: Any = None) -> None:
        self._endpoint = endpoint
        self._behind = behind  # transport for other requests (None: evert answers every request)

    async def handle_async_request(self, request: Any) -> Any:
        """Answer a request from an async client."""
        send = None
        if self._behind is not None:
            send = partial(self._behind.handle_async_request, request)
            if self._endpoint.match(request.method, request.url.path) is None:
                return await send()
        api_request = self._route(request, await request.aread())
        return response_for(request, await self._endpoint.answer(api_request, send))

    def handle_request(self, request: Any) -> Any:
        """Answer a request from a blocking client."""
        send = None
        if self._behind is not None:
            send = partial(self._behind.handle_request, request)
            if self._endpoint.match(request.method, request.url.path) is None:
                return send()
        api_request = self._route(request, request.read())
        return response_for(request, self._endpoint.answer_blocking(api_request, send))

    def _route(self, request: Any, content: bytes) -> ApiRequest | ApiResponse:
        url = request.url
        return self._endpoint.route(request.method, url.path, content, str(url))

    def stream(self, request: Any) -> Exchange:
        """Return a context manager that answers a request from an ``lm15`` client."""
        return Exchange(self._endpoint, request)

    def close(self) -> None:
        """Do nothing, since there are no connections."""

    async def aclose(self) -> None:
        """Do nothing, since there are no connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


def response_for(request: Any, answer: Any) -> Any:
    """Convert an ``ApiResponse`` to the response type of the library that made the request.

    Any other ``answer`` is returned unchanged.
    """
    if not isinstance(answer, ApiResponse):
        return answer
    library = sys.modules[type(request).__module__.partition(".")[0]]
    return library.Response(
        answer.status,
        headers={"content-type": answer.content_type},
        content=answer.content,
        request=request,
        extensions={"http_version": IN_PROCESS.encode()},
    )


def was_sent(record: logging.LogRecord) -> bool:
    """Return whether an ``httpx`` log record is about a request that left this process.

    Records about in-process requests are misleading, as they mention a host that was not called.
    """
    return not isinstance(record.args, tuple) or IN_PROCESS not in record.args
