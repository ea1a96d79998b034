"""Handles one rollout's calls over HTTP: complete responses, streams and retries.

- If the SDK marks a request as a retry (``x-stainless-retry-count``) and its body is the same as in
  an earlier call of the rollout, the request gets the reply to the earlier call, so nothing is
  sampled twice. Requests without this header are new calls.
- Streams are kept alive with pings (which SDKs ignore) while they wait for the trainer.
- If a client disconnects and does not retry within ``RETRY_PATIENCE``, its call is cancelled.
"""

import asyncio
import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

from aiohttp import web

from evert.bridge.chat.reply import Reply
from evert.bridge.clients.dialects.api import EVENTS, REFUSALS, ApiCall, ApiResponse, failure
from evert.bridge.clients.dialects.bodies import LONG_BODY
from evert.bridge.clients.dialects.endpoint import Endpoint
from evert.bridge.clients.http import connections
from evert.bridge.clients.http.connections import (
    Connection,
    being_read,
    body_of,
    connection_of,
    send,
    whole,
)
from evert.bridge.errors import AgentAborted
from evert.bridge.off_loop import off_loop

PING_EVERY = 10.0  # seconds between pings while a stream is waiting
RETRY_PATIENCE = 10.0  # seconds to wait for a retry after the client has disconnected
REMEMBERED = 8  # number of recently answered calls to keep, so that retries can be matched to them


@dataclass(slots=True, eq=False)
class _Pending:
    clients: int = 0
    is_sent: bool = False
    reply: "asyncio.Task[Reply]" = field(init=False)

    def has_reader(self) -> bool:
        return self.is_sent or self.clients > 0


class Calls:
    """One rollout's endpoint, with its idle connections and recent calls (by path and body)."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._pending: OrderedDict[bytes, _Pending] = OrderedDict()
        self._resting: OrderedDict[Connection, None] = OrderedDict()
        self._active = 0

    def end(self) -> None:
        """Cancel all calls and retire idle connections at the end of the rollout."""
        for pending in self._pending.values():
            pending.reply.cancel()
        for connection in [*self._resting]:
            connection.retire()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request that was sent with the rollout's key."""
        connection = connection_of(request)
        connection.work()
        self._active += 1
        try:
            return await self._answer(request)
        finally:
            self._active -= 1
            connection.rest(self._resting, connections.RESTING)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if len(self._pending) > REMEMBERED:
            finished = [key for key, pending in self._pending.items() if pending.reply.done()]
            for key in finished[:-REMEMBERED]:
                del self._pending[key]
        if max(self._active, len(self._pending)) > connections.AT_ONCE:
            message = f"The rollout has {connections.AT_ONCE} waiting calls. Try again later."
            busy = failure(429, message, "rate_limit_error", "too_many_calls")
            return await send(request, whole(busy, last=True))
        content = await body_of(request)
        if isinstance(content, ApiResponse):
            return await send(request, whole(content, last=True))
        api_request = self._endpoint.route(request.method, request.path, content)
        call = await self._endpoint.read_soon(api_request)
        if isinstance(call, ApiResponse):
            return await send(request, whole(call))
        if len(content) <= LONG_BODY:
            identity = _identity(request.path, content)
        else:
            identity = await off_loop(_identity, request.path, content)
        is_retry = request.headers.get("x-stainless-retry-count", "0") not in ("0", "")
        pending = self._find(call, identity, is_retry)
        pending.clients += 1
        try:
            if call.stream:
                response = await _stream(request, call, pending.reply)
            else:
                response = await send(request, whole(await _answer(call, pending.reply)))
            pending.is_sent = True
            return response
        finally:
            pending.clients -= 1
            if pending.clients == 0 and not pending.reply.done():
                loop = asyncio.get_running_loop()
                loop.call_later(RETRY_PATIENCE, _give_up, pending)

    def _find(self, call: ApiCall, identity: bytes, is_retry: bool) -> _Pending:
        earlier = self._pending.get(identity)
        if is_retry and earlier is not None and not earlier.reply.cancelled():
            return earlier
        pending = self._pending[identity] = _Pending()
        self._pending.move_to_end(identity)
        reply = self._endpoint.reply_to(call, pending.has_reader)
        pending.reply = asyncio.create_task(reply, name="http")
        pending.reply.add_done_callback(_retrieve)
        return pending


def _identity(path: str, content: bytes) -> bytes:
    digest = hashlib.sha256(path.encode(errors="surrogateescape") + b"\0")
    digest.update(content)
    return digest.digest()


def _retrieve(reply: "asyncio.Task[Reply]") -> None:
    if not reply.cancelled():
        reply.exception()  # prevents asyncio's "exception was never retrieved" log


def _give_up(pending: _Pending) -> None:
    if pending.clients == 0:
        pending.reply.cancel()


async def _answer(call: ApiCall, reply: "asyncio.Task[Reply]") -> ApiResponse:
    try:
        return await call.wait(asyncio.shield(reply))
    except AgentAborted as error:
        return call.refused(RuntimeError(str(error)))


async def _stream(
    request: web.BaseRequest, call: ApiCall, reply: "asyncio.Task[Reply]"
) -> web.StreamResponse:
    """Stream a reply. If it is ready within ``PING_EVERY``, send it whole, with its HTTP status."""
    await asyncio.wait({reply}, timeout=PING_EVERY)
    if reply.done():
        return await send(request, whole(await _answer(call, reply)))
    response = web.StreamResponse(headers={"content-type": EVENTS})
    async with being_read(request):
        await response.prepare(request)
    while not reply.done():
        async with being_read(request):
            await response.write(call.dialect.ping)
        await asyncio.wait({reply}, timeout=PING_EVERY)
    try:
        last = call.answered(reply.result()).content
    except REFUSALS as error:
        last = call.refused_late(error)
    async with being_read(request):
        await response.write(last)
        await response.write_eof()
    return response
