"""``LiveReply``: parses a reply while it is being sampled, to stream it as events.

The tokens sampled so far are parsed as if the reply had been truncated at that point. We only send
text that can't be changed by later tokens, so trailing whitespace, incomplete characters, the
start of a stop string and unclosed reasoning are held back until there are more tokens. If the
client offers tools, everything from the first character that might start a tool call is held back
until the reply is complete. Concatenating the pieces gives the reply, except for reasoning after
the start of the text, which is omitted because none of the APIs can represent it.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import openai
from aiohttp import web
from tinker_cookbook.renderers.base import Message

from evert.bridge.chat.reply import Reply, read_reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients.dialects.api import EVENTS, ApiCall
from evert.bridge.clients.dialects.events import Stream
from evert.bridge.clients.http.calls_and_retries import PING_EVERY
from evert.bridge.clients.http.connections import being_read, send, whole

SHORTEST_PAUSE = 0.02
"""Minimum time in seconds between two parses of a reply."""

SHARE = 20
"""Pause after a parse, relative to its duration. Parsing then uses at most 5% of a core."""

_MARK = re.compile(r"</?(?:[|｜]|think|tool_|function|parameter|arg_|.{0,10}$)", re.DOTALL)
"""Markup that a parser might remove from a text, including incomplete markup at the end."""

_MAY_BEGIN_A_CALL = re.compile(r"[<\[{`|\u2581-\u259f]|functools|^\s")

Read = Callable[[list[int]], Reply]


class LiveReply:
    """A reply that is being sampled.

    Args:
        request: The request that is being answered.
    """

    def __init__(self, request: ChatRequest) -> None:
        self._request = request
        self._tokens: list[int] = []
        self._arrived = asyncio.Event()
        self._has_begun = asyncio.Event()
        self._latest: Reply | None = None
        self._reader: Read | None = None
        self._reply: asyncio.Future[Reply] | None = None

    def begin(self, reader: Read, prompt_tokens: int, *, is_thought: bool) -> None:
        """Mark the prompt as accepted.

        Args:
            reader: Parses tokens as a truncated reply.
            prompt_tokens: Number of tokens in the prompt.
            is_thought: Whether the prompt opens a reasoning block that ``reader`` only recognises
                once it is closed.
        """
        self._reader, self.prompt_tokens, self._is_thought = reader, prompt_tokens, is_thought
        self._has_begun.set()

    def add(self, tokens: list[int]) -> None:
        """Set the tokens sampled so far. Must be called in the event loop."""
        self._tokens = tokens
        self._arrived.set()

    async def wait_for_begin(self, reply: "asyncio.Future[Reply]") -> bool:
        """Wait for ``begin``. Return False if ``reply`` finishes or fails first, otherwise True."""
        self._reply = reply
        reply.add_done_callback(lambda _: self._arrived.set())
        waiting = asyncio.ensure_future(self._has_begun.wait())
        tasks: list[asyncio.Future[Any]] = [waiting, reply]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        return not reply.done()

    async def thoughts(self) -> AsyncIterator[str]:
        """Yield the reply's reasoning in pieces."""
        prefix = ""
        while True:
            reply, is_over = await self._next()
            ready = (reply.reasoning or "") if reply is not None else ""
            is_closed = is_over or bool(reply is not None and self._ready_text(reply))
            if piece := (ready if is_closed else _without_open_end(ready))[len(prefix) :]:
                yield piece
                prefix += piece
            if is_closed:
                return

    async def text(self) -> AsyncIterator[str]:
        """Yield the reply's text in pieces."""
        prefix, reply, is_over = "", self._latest, self._is_over
        while True:
            if reply is not None:
                ready = reply.text if is_over else self._ready_text(reply)
                if piece := ready[len(prefix) :]:
                    yield piece
                    prefix += piece
            if is_over:
                return
            reply, is_over = await self._next()

    @property
    def _is_over(self) -> bool:
        return self._reply is not None and self._reply.done()

    async def _next(self) -> tuple[Reply | None, bool]:
        """Wait for more tokens. Return the reply so far and whether it is complete."""
        assert self._reply is not None
        assert self._reader is not None
        await self._arrived.wait()
        if not self._is_over:
            self._arrived.clear()
            start = time.perf_counter()
            self._latest = self._reader([*self._tokens])
            pause = max(SHORTEST_PAUSE, SHARE * (time.perf_counter() - start))
            await asyncio.wait({self._reply}, timeout=pause)
        if self._is_over:
            self._latest = self._reply.result()
        return self._latest, self._is_over

    def _ready_text(self, reply: Reply) -> str:
        """Return the part of a reply's text that can't be changed by later tokens."""
        text, request = reply.text, self._request
        is_unclosed = self._is_thought and reply.reasoning is None
        if request.format is not None or reply.tool_calls or is_unclosed:
            return ""
        if text.lstrip().startswith(("<", "[")):
            return ""
        if request.tools and (call := _MAY_BEGIN_A_CALL.search(text)):
            text = text[: call.start()]
        elif request.stop and reply.stop_string is None:
            text = text[: max(0, len(text) - max(map(len, request.stop)) + 1)]
        return _without_open_end(text)


async def stream_reply(
    request: web.BaseRequest,
    call: ApiCall,
    reply_to: Callable[[ApiCall, LiveReply], Awaitable[Reply]],
) -> web.StreamResponse:
    """Stream a reply while it is sampled. Errors before the first token set the HTTP status."""
    live = LiveReply(call.request)
    reply = asyncio.ensure_future(reply_to(call, live))
    try:
        if not await live.wait_for_begin(reply):
            return await send(request, whole(await call.wait(reply)))
        response = web.StreamResponse(headers={"content-type": EVENTS})
        async with being_read(request):
            await response.prepare(request)
        async for data in _with_pings(_encode_events(call, live, reply), call.dialect.ping):
            async with being_read(request):
                await response.write(data)
        async with being_read(request):
            await response.write_eof()
        return response
    finally:
        reply.cancel()  # in case the client has disconnected


async def _encode_events(
    call: ApiCall, live: LiveReply, reply: "asyncio.Future[Reply]"
) -> AsyncIterator[bytes]:
    empty = read_reply(
        Message(role="assistant", content=""),
        truncated=False,
        call_ids="",
        prompt_tokens=live.prompt_tokens,
        completion_tokens=0,
    )
    body = {**call.body, "store": False}  # only store the complete reply, not this empty one
    head = call.dialect.write(empty, call.request, call.number, body)

    async def text() -> AsyncIterator[str]:
        async for piece in live.text():
            yield piece
        stream.answer = call.written(reply.result())

    stream, number = Stream(head, live.thoughts(), text(), head), 0
    try:
        async for event in call.dialect.events(stream, call.body):
            number += 1
            yield call.dialect.framed([event])
        yield call.dialect.ending
    except openai.APIStatusError as error:
        yield call.refused_late(error, number)


async def _with_pings(pieces: AsyncIterator[bytes], ping: bytes) -> AsyncIterator[bytes]:
    """Yield the pieces, with a ping after every ``PING_EVERY`` seconds without a piece."""
    while True:
        piece = asyncio.ensure_future(anext(pieces, None))
        try:
            while not piece.done():
                await asyncio.wait({piece}, timeout=PING_EVERY)
                if not piece.done():
                    yield ping
        finally:
            piece.cancel()
        data = piece.result()
        if data is None:
            return
        if data:
            yield data


def _without_open_end(text: str) -> str:
    """Strip the end of a text if it may be incomplete markup or an incomplete character."""
    mark = _MARK.search(text)
    return (text if mark is None else text[: mark.start()]).rstrip("\ufffd").rstrip()
