"""The rollout's API in process: a transport for ``httpx``, ``httpx2`` and ``lm15``, sync and async.

    openai.AsyncOpenAI(http_client=openai.DefaultAsyncHttpxClient(transport=client.transport), ...)

One duck-typed class serves them all, since none takes another's base class; the answer is a
response of whichever library the request came from. It is bound to its rollout, because
some frameworks lose context variables on the way. No socket is opened, and the HTTP client's
timeouts, which live below the transport, never fire while the trainer samples.
"""

import sys
from typing import Any, Self

from evert.bridge.clients.dialects.endpoint import Answer, Endpoint
from evert.bridge.clients.lm15_transport import Exchange

ROOT_URL = "http://rollout.invalid"
"""Where SDKs believe the API is; the name can never resolve."""


class Transport:
    """Answers an SDK's requests: OpenAI's at ``base_url``, others' at ``root_url``."""

    root_url = ROOT_URL
    base_url = f"{ROOT_URL}/v1"

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def handle_async_request(self, request: Any) -> Any:
        """Answer a request of an async client."""
        content = await request.aread()
        answer = await self._endpoint.answer(
            request.method, request.url.path, content, request.headers
        )
        return response_for(request, answer)

    def handle_request(self, request: Any) -> Any:
        """Answer a request of a blocking client."""
        content = request.read()
        answer = self._endpoint.answer_blocking(
            request.method, request.url.path, content, request.headers
        )
        return response_for(request, answer)

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
