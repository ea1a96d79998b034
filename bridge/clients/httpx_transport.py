"""The rollout's in-process API: a transport for ``httpx``, ``httpx2`` and ``lm15``, sync and async.

    openai.AsyncOpenAI(http_client=openai.DefaultAsyncHttpxClient(transport=client.transport), ...)

One duck-typed class serves all three, since no library accepts another library's base class. The
answer has the response type of the request's library. The transport is bound to its rollout,
because some frameworks lose context variables. It opens no socket. The HTTP client's timeouts never
fire while the trainer samples, because the transport that it replaces implements them.
"""

import logging
import sys
from functools import partial
from typing import Any, Self

from evert.bridge.clients.dialects.api import ApiRequest, ApiResponse
from evert.bridge.clients.dialects.endpoint import Endpoint
from evert.bridge.clients.lm15_transport import Exchange

IN_PROCESS = "in-process"
"""The HTTP version of evert's responses, by which the log filter recognises them."""

ROOT_URL = "http://rollout.invalid"
"""The API's URL for SDKs; the host name never resolves."""


class Transport:
    """Answers an SDK's requests: OpenAI's SDK uses ``base_url``, other SDKs ``root_url``."""

    root_url = ROOT_URL
    base_url = f"{ROOT_URL}/v1"

    def __init__(self, endpoint: Endpoint, behind: Any = None) -> None:
        self._endpoint = endpoint
        self._behind = behind  # transport for all other requests; None: the rollout answers all

    async def handle_async_request(self, request: Any) -> Any:
        """Answer a request of an async client."""
        send = None
        if self._behind is not None:
            send = partial(self._behind.handle_async_request, request)
            if self._endpoint.match(request.method, request.url.path) is None:
                return await send()
        api_request = self._route(request, await request.aread())
        return response_for(request, await self._endpoint.answer(api_request, send))

    def handle_request(self, request: Any) -> Any:
        """Answer a request of a blocking client."""
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
        """Return an exchange that answers an ``lm15`` client's request when it is entered."""
        return Exchange(self._endpoint, request)

    def close(self) -> None:
        """Do nothing: no connection is open."""

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


def response_for(request: Any, answer: Any) -> Any:
    """Return an ``ApiResponse`` as a response of ``request``'s library; else ``answer`` itself."""
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
    """Whether a log record of ``httpx`` is about a request that left this process.

    Log records about in-process requests would name a host that was never called.
    """
    return not isinstance(record.args, tuple) or IN_PROCESS not in record.args
