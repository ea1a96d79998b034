"""An instrumented agent emits the same spans with evert as with an ordinary server.

evert first plays each agent, which records its replies. The agent then runs without evert, against
a local server that gives the same replies to the same requests.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import openai
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer
from tests.kit import calling, play, tool, user

MODEL, ADD = "policy", tool("add")
WAYS = ("taken over", "taken over, async", "client.openai_sync", "client.openai, async")
Replies = dict[str, Any]
"""Maps each request to its response: a completion or the chunks of a stream."""


def key(body: Mapping[str, Any]) -> str:
    return json.dumps([body["messages"], bool(body.get("stream"))])


def reply(prompt: str) -> str:
    """Return the policy's reply to a prompt."""
    return calling("add", a=1) if "1 + 1?" in prompt and "response" not in prompt else "Two."


# -- the agents ------------------------------------------------------------------------------------


def blocking(sdk: openai.OpenAI, tracer: Tracer, replies: Replies) -> None:
    """Make a tool call, send its result in a separate span, then stream a reply."""
    with tracer.start_as_current_span("agent"):
        asked: list[Any] = [user("1 + 1?")]
        first = sdk.chat.completions.create(model=MODEL, messages=asked, tools=[ADD])
        replies[key({"messages": asked})] = first.model_dump(mode="json", exclude_unset=True)
        message = first.choices[0].message.model_dump(mode="json", exclude_none=True)
        called = message["tool_calls"][0]["id"]
        asked = [*asked, message, {"role": "tool", "tool_call_id": called, "content": "2"}]
        with tracer.start_as_current_span("second"):
            second = sdk.chat.completions.create(
                model=MODEL, messages=asked, tools=[ADD], temperature=1.0, max_tokens=64
            )
        replies[key({"messages": asked})] = second.model_dump(mode="json", exclude_unset=True)
        asked = [user("Count.")]
        with sdk.chat.completions.create(
            model=MODEL, messages=asked, stream=True, stream_options={"include_usage": True}
        ) as stream:
            chunks = [chunk.model_dump(mode="json", exclude_unset=True) for chunk in stream]
        replies[key({"messages": asked, "stream": True})] = chunks


async def concurrent(sdk: openai.AsyncOpenAI, tracer: Tracer, replies: Replies) -> None:
    """Make two concurrent calls, each in its own span, then stream a reply."""

    async def ask(word: str) -> None:
        with tracer.start_as_current_span(word):
            asked = [user(word)]
            completion = await sdk.chat.completions.create(model=MODEL, messages=asked)
            told = completion.model_dump(mode="json", exclude_unset=True)
            replies[key({"messages": asked})] = told

    with tracer.start_as_current_span("agent"):
        await asyncio.gather(ask("One."), ask("Two."))
        asked = [user("Count.")]
        stream = await sdk.chat.completions.create(model=MODEL, messages=asked, stream=True)
        chunks = [chunk.model_dump(mode="json", exclude_unset=True) async for chunk in stream]
        replies[key({"messages": asked, "stream": True})] = chunks


def by_evert(way: str, url: str, tracer: Tracer, replies: Replies) -> None:
    """Play an agent that uses its own client or evert's."""

    def builds_its_client() -> float:
        blocking(openai.OpenAI(base_url=url, api_key="none"), tracer, replies)
        return 1.0

    async def builds_its_async_client() -> float:
        await concurrent(openai.AsyncOpenAI(base_url=url, api_key="none"), tracer, replies)
        return 1.0

    def takes_the_handles(client: Any) -> float:
        blocking(client.openai_sync, tracer, replies)
        return 1.0

    async def takes_the_handles_async(client: Any) -> float:
        await concurrent(client.openai, tracer, replies)
        return 1.0

    agents = (
        builds_its_client,
        builds_its_async_client,
        takes_the_handles,
        takes_the_handles_async,
    )
    played = asyncio.run(play(dict(zip(WAYS, agents, strict=True))[way], reply))
    assert len(played.transitions) == 3


def without_evert(way: str, url: str, tracer: Tracer) -> None:
    if way.endswith("async"):
        asyncio.run(concurrent(openai.AsyncOpenAI(base_url=url, api_key="none"), tracer, {}))
    else:
        blocking(openai.OpenAI(base_url=url, api_key="none"), tracer, {})


@contextmanager
def served(replies: Replies, bodies: list[Any]) -> Iterator[str]:
    """Serve these replies and yield the URL. Request bodies are appended to ``bodies``."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bodies.append(body)
            answer, is_stream = replies[key(body)], bool(body.get("stream"))
            self.send_response(200)
            self.send_header(
                "Content-Type", "text/event-stream" if is_stream else "application/json"
            )
            self.end_headers()
            events = [*map(json.dumps, answer), "[DONE]"] if is_stream else []
            text = "".join(f"data: {event}\n\n" for event in events) or json.dumps(answer)
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


# -- the instrumentations --------------------------------------------------------------------------

Instrumented = Callable[[InMemorySpanExporter], Any]


def of_opentelemetry(module: str, name: str = "OpenAIInstrumentor") -> Instrumented:
    """Return an instrumentor with OpenTelemetry's interface."""

    @contextmanager
    def instrumented(exporter: InMemorySpanExporter) -> Iterator[Tracer]:
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        instrumentor = getattr(pytest.importorskip(module), name)()
        instrumentor.instrument(tracer_provider=provider)
        try:
            yield provider.get_tracer("agent")
        finally:
            instrumentor.uninstrument()

    return instrumented


@contextmanager
def of_logfire(exporter: InMemorySpanExporter) -> Iterator[Tracer]:
    import logfire

    own = logfire.configure(
        local=True, send_to_logfire=False, console=False, inspect_arguments=False,
        additional_span_processors=[SimpleSpanProcessor(exporter)],
    )  # fmt: skip
    with own.instrument_openai():
        yield own.config.get_tracer_provider().get_tracer("agent")


INSTRUMENTATIONS: dict[str, Instrumented] = {
    "openinference": of_opentelemetry("openinference.instrumentation.openai"),
    "opentelemetry-v2": of_opentelemetry("opentelemetry.instrumentation.openai_v2"),
    "opentelemetry": of_opentelemetry("opentelemetry.instrumentation.openai"),
    "agentops": of_opentelemetry("agentops.instrumentation.providers.openai", "OpenaiInstrumentor"),
    "logfire": of_logfire,
}

TIMES = ("time", "duration", "timestamp")
TOOK = r"took [\d.]+s"
PLACES = ("server.", "url", "api_base", "base_url")
"""Substrings of the names of attributes that depend on the time or on the server's address."""

GROWING = {"opentelemetry": ("gen_ai.output.messages",)}
"""Attributes that repeat texts from earlier streams in the same process, even without evert."""


def tree(spans: tuple[ReadableSpan, ...], without: tuple[str, ...]) -> list[Any]:
    """Return the name, parents' names, kind, status, attributes and events of each span."""
    by_id = {span.context.span_id: span for span in spans}

    def kept(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
        own = dict(attributes or {})
        values = {k: v for k, v in own.items() if not any(part in k for part in without)}
        return {k: re.sub(TOOK, "", v) if isinstance(v, str) else v for k, v in values.items()}

    def parents(span: ReadableSpan) -> list[str]:
        before = by_id.get(span.parent.span_id) if span.parent else None
        return [] if before is None else [before.name, *parents(before)]

    rows = [
        (span.name, parents(span), span.kind.name, span.status.status_code.name,
         kept(span.attributes), [(event.name, kept(event.attributes)) for event in span.events])
        for span in spans
    ]  # fmt: skip
    return sorted(rows, key=lambda row: json.dumps(row, default=str))


@pytest.fixture(scope="module", params=INSTRUMENTATIONS)
def instrumented(
    request: pytest.FixtureRequest,
) -> Iterator[tuple[str, InMemorySpanExporter, Tracer]]:
    """Install an instrumentation once for all its tests, because some leave wrappers behind."""
    exporter = InMemorySpanExporter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
        with INSTRUMENTATIONS[request.param](exporter) as tracer:
            yield request.param, exporter, tracer


@pytest.mark.parametrize("way", WAYS)
def test_the_spans_with_evert_equal_those_without_it(
    way: str, instrumented: tuple[str, InMemorySpanExporter, Tracer]
) -> None:
    name, exporter, tracer = instrumented
    replies, bodies = Replies(), list[Any]()
    without = TIMES + PLACES * way.startswith("client") + GROWING.get(name, ())
    with served(replies, bodies) as url:
        exporter.clear()
        by_evert(way, url, tracer, replies)
        under = tree(exporter.get_finished_spans(), without)
        assert not bodies  # the policy answered
        exporter.clear()
        without_evert(way, url, tracer)
    assert len(bodies) == 3
    assert under == tree(exporter.get_finished_spans(), without)
    assert [row for row in under if MODEL in json.dumps(row, default=str)]
    assert len(under) >= 5
