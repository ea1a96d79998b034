"""Traces: an episode as OpenTelemetry's spans, named by its conventions for generative AI.

    invoke_agent NAME        the episode, a trace of its own: from the agent's start to its end
        chat MODEL           a model call, from the agent's asking to its reply
        execute_tool NAME    from the reply that calls a tool to the request that brings its result
        reward               where ``client.reward`` is called, and where the episode is scored

The episode's span is the current one wherever the agent works: its task or thread, and what these
start. So what frameworks, SDKs and HTTP clients emit lies within it, and a call lies within
whichever of those spans is current when it is made, or is named in the request's ``traceparent``.
Tools run in the agent, out of sight: their spans are made of what comes back.

``TracedEpisode`` is an ``Episode`` that writes them; without traces there is none.
"""

import contextvars
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from opentelemetry import context as otel
from opentelemetry import propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from evert.bridge.agent import AgentForm
from evert.bridge.episode import Episode, Life
from evert.bridge.errors import text_of
from evert.bridge.inbox import AgentEnd
from evert.bridge.messages import Reply
from evert.bridge.requests import ChatRequest
from evert.bridge.secrets import redacted
from evert.bridge.tracers import tracer_for

CHAT: dict[str, AttributeValue] = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "evert",
}
TOOL: dict[str, AttributeValue] = {
    "gen_ai.operation.name": "execute_tool",
    "gen_ai.tool.type": "function",
}


class TracedEpisode(Episode):
    """An episode that writes spans; its arguments are ``Episode``'s, after where they go."""

    def __init__(self, traces: str, form: AgentForm, *made_of: Any) -> None:
        super().__init__(form, *made_of)
        self.trace = self._trace = Trace(tracer_for(traces), form.name, self.routes.names[0])

    def start(self, agent: Callable[[], Any], context: contextvars.Context | None = None) -> None:
        """Start the agent within the episode's span."""
        context = contextvars.copy_context() if context is None else context
        context.run(otel.attach, self._trace.context)
        super().start(agent, context)

    def _on_end(self, end: AgentEnd) -> None:
        super()._on_end(end)
        self._trace.end("closed" if self.life is Life.CLOSED else "ended", end.error)

    async def close(self, patience: float) -> bool:
        """Give the episode up; its span ends though the agent may not."""
        is_over = await super().close(patience)
        self._trace.end("left behind")
        return is_over

    async def call(self, request: ChatRequest, carrier: Mapping[str, str] | None = None) -> Reply:
        """As ``Episode.call``, with a span."""
        call = _Call(self._trace, request, carrier)
        try:
            reply = await super().call(request)
        except BaseException as error:
            call.failed(error)
            raise
        call.answered(reply)
        return reply

    def call_blocking(
        self, request: ChatRequest, carrier: Mapping[str, str] | None = None
    ) -> Reply:
        """As ``Episode.call_blocking``, with a span."""
        call = _Call(self._trace, request, carrier)
        try:
            reply = super().call_blocking(request)
        except BaseException as error:
            call.failed(error)
            raise
        call.answered(reply)
        return reply


class Trace:
    """The trace of one episode.

    Args:
        tracer: Makes the spans.
        agent: The agent's name.
        model: Of its policy.

    Attributes:
        context: The one whose current span is the episode's.
    """

    def __init__(self, tracer: trace.Tracer, agent: str, model: str) -> None:
        outside = trace.get_current_span().get_span_context()
        self.tracer = tracer
        self.span: Span = tracer.start_span(
            f"invoke_agent {agent}",
            context=otel.Context(),  # a trace of its own, wherever the trainer is
            attributes={
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.provider.name": "evert",
                "gen_ai.agent.name": agent,
                "gen_ai.request.model": model,
            },
            links=[Link(outside)] if outside.is_valid else (),
        )
        self.id = self.span.get_span_context().trace_id
        self.context = trace.set_span_in_context(self.span, otel.Context())
        self._calls = 0
        self._tools: dict[str, tuple[str, int, otel.Context]] = {}
        self._ending = threading.Lock()
        self._is_over = False

    # -- where spans belong ----------------------------------------------------------------------

    def parent(self, carrier: Mapping[str, str] | None) -> tuple[otel.Context, list[Link]]:
        """What a span lies within, by its request's headers or by where it is made.

        A span of another trace is linked to: an episode is one trace.
        """
        links: list[Link] = []
        current = otel.get_current()
        for context in (current,) if carrier is None else (propagate.extract(carrier), current):
            found = trace.get_current_span(context).get_span_context()
            if found.trace_id == self.id:
                return context, links
            if found.is_valid:
                links.append(Link(found))
        return self.context, links

    def carried(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function for another thread, within the span that is current here."""
        return partial(_within, otel.get_current(), function)

    def variables(self) -> dict[str, str]:
        """Environment variables by which a command's spans lie within the current one."""
        carrier: dict[str, str] = {}
        propagate.inject(carrier, self.parent(None)[0])
        return {name.upper(): value for name, value in carrier.items()}

    # -- tools -----------------------------------------------------------------------------------

    def tools_called(self, reply: Reply, at: int, context: otel.Context) -> None:
        """A reply calls tools: whoever asked works on them from now on."""
        self._calls += 1
        for call in reply.tool_calls:
            self._tools[call.id or ""] = (call.function.name, at, context)

    def tools_done(self, request: ChatRequest, at: int) -> None:
        """A request may bring the results of tools, after the reply that called them."""
        if self._tools:
            for call_id in [*_results(request.messages)][::-1]:
                self._tool(call_id, at)

    def _tool(self, call_id: str, at: int) -> None:
        called = self._tools.pop(call_id, None)
        if called is None:
            return
        name, start, context = called
        attributes = {**TOOL, "gen_ai.tool.name": name, "gen_ai.tool.call.id": call_id}
        self.tracer.start_span(
            f"execute_tool {name}", context, start_time=start, attributes=attributes
        ).end(at)

    # -- rewards, and the end --------------------------------------------------------------------

    def rewarded(self, role: str, reward: float, why: str = "") -> None:
        """A reward was given, to the policy or a seat of this name; ``why`` is the stop reason."""
        attributes: dict[str, AttributeValue] = {
            "gen_ai.evaluation.name": "reward",
            "gen_ai.evaluation.score.value": reward,
            "gen_ai.request.model": role,
        }
        if why:
            attributes["gen_ai.evaluation.score.label"] = str(why)
        self.tracer.start_span("reward", self.parent(None)[0], attributes=attributes).end()

    def end(self, how: str, error: BaseException | None = None) -> None:
        """The episode is over; told again to no effect."""
        with self._ending:
            if self._is_over:
                return
            self._is_over = True
        at = time.time_ns()
        for call_id in [*self._tools]:
            self._tool(call_id, at)
        self.span.set_attributes({"evert.end": how, "evert.calls": self._calls})
        if error is not None and how == "ended":
            _fail(self.span, error)
        self.span.end(at)


class _Call:
    """A model call that has begun. Its span is made when it is over: nothing lies within it."""

    __slots__ = ("_context", "_links", "_request", "_start", "_trace")

    def __init__(
        self, trace: Trace, request: ChatRequest, carrier: Mapping[str, str] | None
    ) -> None:
        self._trace, self._request = trace, request
        self._start = time.time_ns()
        self._context, self._links = trace.parent(carrier)
        trace.tools_done(request, self._start)

    def answered(self, reply: Reply) -> None:
        """The reply is there."""
        at = time.time_ns()
        request = self._request
        attributes = {
            **CHAT,
            "gen_ai.request.model": request.model,
            "gen_ai.usage.input_tokens": reply.prompt_tokens,
            "gen_ai.usage.output_tokens": reply.completion_tokens,
            "gen_ai.response.finish_reasons": (reply.finish_reason,),
        }
        if not request.train:
            attributes["evert.train"] = False
        self._span(attributes).end(at)
        self._trace.tools_called(reply, at, self._context)

    def failed(self, error: BaseException) -> None:
        """It was refused, or whoever asked waits no more."""
        span = self._span({**CHAT, "gen_ai.request.model": self._request.model})
        _fail(span, error)
        span.end()

    def _span(self, attributes: Mapping[str, AttributeValue]) -> Span:
        return self._trace.tracer.start_span(
            f"chat {self._request.model}",
            self._context,
            SpanKind.CLIENT,
            attributes,
            self._links,
            self._start,
        )


def _results(messages: Sequence[Any]) -> Iterator[str]:
    """The ids of the calls whose results a request ends with."""
    for message in reversed(messages):
        get = message.get if isinstance(message, Mapping) else partial(_attribute, message)
        if get("role") == "assistant":
            return
        if isinstance(found := get("tool_call_id"), str):
            yield found


def _attribute(message: object, name: str) -> object:
    try:
        return getattr(message, name, None)
    except Exception:  # an agent's own object may do anything
        return None


def _within(context: otel.Context, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    token = otel.attach(context)
    try:
        return function(*args, **kwargs)
    finally:
        otel.detach(token)


def _fail(span: Span, error: BaseException) -> None:
    span.set_attribute("error.type", type(error).__name__)
    span.set_status(Status(StatusCode.ERROR, redacted(text_of(error))))
