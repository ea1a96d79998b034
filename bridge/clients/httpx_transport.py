"""The rollout's API in process: a transport for ``httpx``, ``httpx2`` and ``lm15``, sync and async.

    openai.AsyncOpenAI(http_client=openai.DefaultAsyncHttpxClient(transport=client.transport), ...)

One duck-typed class serves them all, since none takes another's base class; the answer is a
response of whichever library the request came from. It is bound to its rollout, because
some frameworks lose context variables on the way. No socket is opened, and the HTTP client's
timeouts, which live below the transport, never fire while the trainer samples.
"""

import sys
from functools import partial
from typing import Any, Self

from evert.bridge.clients.dialects.endpoint import Answer, Endpoint, Sent
from evert.bridge.clients.lm15_transport import Exchange

ROOT_URL = "http://rollout.invalid"
"""Where SDKs believe the API is; the name can never resolve."""


class Transport:
    """Answers an SDK's requests: OpenAI's at ``base_url``, others' at ``root_url``."""

    root_url = ROOT_URL
    base_url = f"{ROOT_URL}/v1"

    def __init__(self, endpoint: Endpoint, behind: Any = None) -> None:
        self._endpoint = endpoint
        self._behind = behind  # the transport of what is not for the rollout; None: all of it is

    async def handle_async_request(self, request: Any) -> Any:
        """Answer a request of an async client."""
        send = None
        if self._behind is not None:
            send = partial(self._behind.handle_async_request, request)
            if self._endpoint.match(request.method, request.url.path) is None:
                return await send()
        sent = self._sent(request, await request.aread())
        return response_for(request, await self._endpoint.answer(sent, send))

    def handle_request(self, request: Any) -> Any:
        """Answer a request of a blocking client."""
        send = None
        if self._behind is not None:
            send = partial(self._behind.handle_request, request)
            if self._endpoint.match(request.method, request.url.path) is None:
                return send()
        sent = self._sent(request, request.read())
        return response_for(request, self._endpoint.answer_blocking(sent, send))

    def _sent(self, request: Any, content: bytes) -> Sent | Answer:
        url = request.url
        return self._endpoint.sent(request.method, url.path, content, str(url))

    def stream(self, request: Any) -> Exchange:
        """Answer a request of an ``lm15`` client, blocking or async, as it is entered."""
        return Exchange(self._endpoint, request)

    def close(self) -> None:
        """Nothing is held open."""

    async def aclose(self) -> None:
        """Nothing is held open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


def response_for(request: Any, answer: Any) -> Any:
    """The answer as a response of ``request``'s library; what is a response stays as it is."""
    if not isinstance(answer, Answer):
        return answer
    library = sys.modules[type(request).__module__.partition(".")[0]]
    headers = {"content-type": answer.content_type}
    return library.Response(answer.status, headers=headers, content=answer.content, request=request)
