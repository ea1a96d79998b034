"""An OTLP collector in process: takes what the exporter sends over HTTP, and reads its protobuf."""

import gzip
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Sent


@dataclass(eq=False)
class Seen:
    """A span as the collector got it."""

    sent: Sent
    service: str
    scope: str
    parent: "Seen | None" = None
    children: "list[Seen]" = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.sent.name

    @property
    def trace(self) -> bytes:
        return self.sent.trace_id

    @property
    def attributes(self) -> dict[str, Any]:
        return {one.key: _value(one.value) for one in self.sent.attributes}

    @property
    def tree(self) -> Any:
        """Its name, or with those of the spans within it, in the order of their beginnings."""
        inner = [child.tree for child in self.children]
        return (self.name, *inner) if inner else self.name


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)


@dataclass
class Collector:
    """What was received; ``url`` is where."""

    url: str
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        if request.headers.get("content-encoding") == "gzip" and body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        self.requests.append(ExportTraceServiceRequest.FromString(body))
        answer = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=answer, content_type="application/x-protobuf")

    def spans(self) -> list[Seen]:
        """Every span, by its beginning, each with its parent and children."""
        found = sorted(self._received(), key=lambda one: one.sent.start_time_unix_nano)
        known = {one.sent.span_id: one for one in found}
        for one in found:
            if parent := one.sent.parent_span_id:
                one.parent = known[parent]  # a span within nothing that was sent is an error
                one.parent.children.append(one)
        return found

    def _received(self) -> Iterator[Seen]:
        for request in self.requests:
            for resource in request.resource_spans:
                named = {one.key: _value(one.value) for one in resource.resource.attributes}
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        yield Seen(span, named["service.name"], scope.scope.name)


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """A collector that listens on a port of its own."""
    collector = Collector("")
    app = web.Application()
    app.router.add_post("/v1/traces", collector.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    [(host, port)] = [address[:2] for address in runner.addresses]
    collector.url = f"http://{host}:{port}"
    try:
        yield collector
    finally:
        await runner.cleanup()
