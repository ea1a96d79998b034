"""The in-process transport for ``aiohttp``, similar to ``httpx_transport.py`` for ``httpx``.

google-genai uses aiohttp for async calls if it is installed. aiohttp does not allow custom
transports, but it does allow custom connectors. ``_Connector`` opens "connections" on which the
response has already been received.
"""

import asyncio
from http.client import responses
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

from evert.bridge.clients.dialects.api import ApiResponse
from evert.bridge.clients.httpx_transport import ROOT_URL


async def response_for(answer: ApiResponse, **options: Any) -> aiohttp.ClientResponse:
    """Convert a response to aiohttp's type. It belongs to its own session, which is closed."""
    async with aiohttp.ClientSession(connector=_Connector(answer)) as session:
        return await session.post(ROOT_URL, **options)


class _Connector(aiohttp.BaseConnector):
    """Opens connections on which the response has already been received.

    aiohttp has no public API for custom transports or for accessing the protocol of a connection.
    """

    def __init__(self, answer: ApiResponse) -> None:
        super().__init__()
        self._answer = answer

    async def _create_connection(self, *_: Any, **__: Any) -> ResponseHandler:
        protocol = self._factory()
        protocol.connection_made(_Wire(protocol))
        protocol.data_received(_http_bytes(self._answer))
        return protocol


class _Wire(asyncio.Transport):
    def __init__(self, protocol: ResponseHandler) -> None:
        super().__init__()
        self._protocol = protocol
        self._is_closed = False

    def write(self, data: Any) -> None:
        """Do nothing, since the request has already been read."""

    def is_closing(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._protocol.connection_lost(None)

    abort = close


def _http_bytes(answer: ApiResponse) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status} {responses.get(answer.status, '')}",
        f"content-type: {answer.content_type}",
        f"content-length: {len(answer.content)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + answer.content
