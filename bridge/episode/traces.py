"""Traces: an episode as OpenTelemetry's spans, named by its conventions for generative AI.

    invoke_agent NAME        the episode, a trace of its own: from the agent's start to its end
        chat MODEL           a model call, from the agent's asking to its reply
        execute_tool NAME    from the reply that calls a tool to the request that brings its result
        reward               where ``client.reward`` is called, and where the episode is scored

The episode's span is the current one wherever the agent works: its task or thread, and what these
start. So what frameworks, SDKs and HTTP clients emit lies within it, and a call lies within
whichever of those spans is current when it is made, or is named in the request's ``traceparent``.
Tools run in the agent, out of sight: their spans are made of what comes back.

No text of a conversation is in a span: of models and tools there are names that were declared, of
errors the class and the code.

``Trace`` is the episode's observer that writes them.
"""

import contextvars
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from openai import OpenAIError
from opentelemetry import context as otel
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from evert.bridge.chat.reply import Reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.episode.observer import Observer, Over
from evert.bridge.episode.routes import UNKNOWN
from evert.bridge.episode.tracers import Tracing
from evert.bridge.redaction import redacted, redacted_tree

CHAT: dict[str, AttributeValue] = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "evert",
}
TOOL: dict[str, AttributeValue] = {
    "gen_ai.operation.name": "execute_tool",
    "gen_ai.tool.type": "function",
}
_OK = Status(StatusCode.UNSET)


class _Place(NamedTuple):
    context: otel.Context
    parent: SpanContext
    links: Sequence[Link] = ()


class Trace(Observer):
    """The trace of one episode."""

    def __init__(self, tracing: Tracing, agent: str, model: str) -> None:
        outside = trace.get_current_span().get_span_context()
        self._tracer = tracing.tracer
        self._span: Any = self._tracer.start_span(
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
        self.context = trace.set_span_in_context(self._span, otel.Context())
        self._place = _Place(self.context, self._span.get_span_context())
        self._is_kept = self._span.is_recording()
        self._own = tracing.own
        self._calls = 0
        self._tools: dict[str, tuple[str, int, _Place]] = {}

    def begins(self, context: contextvars.Context) -> None:
        """The agent's spans lie within the episode's."""
        context.run(otel.attach, self.context)

    def asked(
        self, request: ChatRequest, shown: Callable[[str], str], carrier: Mapping[str, str] | None
    ) -> Over:
        """A model call gets a span."""
        start = time.time_ns()
        place = self._found(carrier)
        if self._tools:  # whose results it may bring
            for call_id in [*_results(request.messages)][::-1]:
                self._tool(call_id, start)
        return partial(self._called, request, shown(request.model), place, start)

    def _called(
        self,
        request: ChatRequest,
        model: str,
        place: _Place,
        start: int,
        end: Reply | BaseException,
    ) -> None:
        """The span of a model call that is over."""
        at = time.time_ns()
        attributes = {**CHAT, "gen_ai.request.model": model}
        if isinstance(end, BaseException):
            self._add(f"chat {model}", place, attributes, start, at, SpanKind.CLIENT, end)
            return
        attributes["gen_ai.usage.input_tokens"] = end.prompt_tokens
        attributes["gen_ai.usage.output_tokens"] = end.completion_tokens
        attributes["gen_ai.response.finish_reasons"] = (end.finish_reason,)
        if not request.train:
            attributes["evert.train"] = False
        self._add(f"chat {model}", place, attributes, start, at, SpanKind.CLIENT)
        self._calls += 1
        offered = [*_names(request.tools)] if end.tool_calls else ()
        for call in end.tool_calls:  # whoever asked works on them from now on
            name = call.function.name if call.function.name in offered else UNKNOWN
            self._tools[call.id or ""] = (name, at, place)

    # -- where spans belong ----------------------------------------------------------------------

    def _found(self, carrier: Mapping[str, str] | None = None) -> _Place:
        """Where a span belongs, by its request's headers or by where it is made.

        A span of another trace is linked to: an episode is one trace.
        """
        current = otel.get_current()
        if current is self.context and carrier is None:  # no span but the episode's: most calls
            return self._place
        links: list[Link] = []
        for context in (current,) if carrier is None else (propagate.extract(carrier), current):
            found = trace.get_current_span(context).get_span_context()
            if found.trace_id == self._place.parent.trace_id:
                return _Place(context, found, links)
            if found.is_valid:
                links.append(Link(found))
        return self._place._replace(links=links)

    def carried(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function for another thread, within the span that is current here."""
        return partial(_within, otel.get_current(), function)

    def variables(self) -> dict[str, str]:
        """Environment variables by which a command's spans lie within the current one."""
        carrier: dict[str, str] = {}
        propagate.inject(carrier, self._found().context)
        return {name.upper(): value for name, value in carrier.items()}

    def _add(
        self,
        name: str,
        place: _Place,
        attributes: dict[str, AttributeValue],
        start: int,
        end: int,
        kind: SpanKind = SpanKind.INTERNAL,
        error: BaseException | None = None,
    ) -> None:
        """A span that is over; times in nanoseconds. Nothing lies within it."""
        if not self._is_kept:
            return
        name, attributes, status = redacted(name), redacted_tree(attributes), _OK
        if error is not None:
            attributes["error.type"], status = _failure(error)
        if self._own is None:
            span = self._tracer.start_span(
                name, place.context, kind, attributes, place.links, start
            )
            span.set_status(status)
            span.end(end)
            return
        # To begin a span and end it takes three times as long as to say what it was.
        parent = place.parent
        own = SpanContext(parent.trace_id, random.getrandbits(64) or 1, False, parent.trace_flags)
        self._own.on_end(
            ReadableSpan(
                name,
                own,
                parent,
                self._span.resource,
                attributes,
                links=place.links,
                kind=kind,
                status=status,
                start_time=start,
                end_time=end,
                instrumentation_scope=self._span.instrumentation_scope,
            )
        )

    def _tool(self, call_id: str, at: int) -> None:
        called = self._tools.pop(call_id, None)
        if called is not None:
            name, start, place = called
            attributes = {**TOOL, "gen_ai.tool.name": name, "gen_ai.tool.call.id": call_id}
            self._add(f"execute_tool {name}", place, attributes, start, at)

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
        at = time.time_ns()
        self._add("reward", self._found(), attributes, at, at)

    def ends(self, how: str, error: BaseException | None = None) -> None:
        """The episode's span ends, once."""
        if not self._span.is_recording():  # it has ended, or nobody keeps it
            return
        at = time.time_ns()
        for call_id in [*self._tools]:
            self._tool(call_id, at)
        self._span.set_attributes({"evert.end": how, "evert.calls": self._calls})
        if error is not None and how == "ended":
            kind, status = _failure(error)
            self._span.set_attribute("error.type", kind)
            self._span.set_status(status)
        self._span.end(at)


def _failure(error: BaseException) -> tuple[str, Status]:
    """An error's class, and as a status; its message may quote the conversation."""
    kind, code = type(error).__name__, _attribute(error, "code")
    said = f"{kind}: {code}" if isinstance(error, OpenAIError) and code else kind
    return kind, Status(StatusCode.ERROR, redacted(said))


def _names(tools: Sequence[Any] | None) -> Iterator[object]:
    for tool in tools or ():
        yield (tool.get("function") or {}).get("name") if isinstance(tool, Mapping) else None


def _results(messages: Sequence[Any]) -> Iterator[str]:
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
