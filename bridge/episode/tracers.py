"""Where an episode's spans go: the process's own OpenTelemetry, or a collector.

    traces="otel"                     as OpenTelemetry is set up here, or by its variables
    traces="http://127.0.0.1:4318"    a collector that takes OTLP over HTTP

Whoever asks first for a collector, in a process that has set up no OpenTelemetry, sets it up: what
frameworks and SDKs emit goes there, too. Spans are handed over in a thread, some seconds later, and
at the end of the process. ``opentelemetry`` is imported here and in ``traces.py`` alone, and
neither is imported where nobody asks for traces.
"""

import atexit
import multiprocessing.util
import os
import threading
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, NamedTuple

from opentelemetry import trace

from evert.bridge.errors import MissingPackageError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

OTEL = "otel"
"""What ``traces`` is where this process, or OpenTelemetry's own variables, say where spans go."""


class Tracing(NamedTuple):
    """What makes spans."""

    tracer: trace.Tracer
    own: "SpanProcessor | None" = None


_own: dict[str, Tracing] = {}
"""By where the spans go."""
_lock = threading.Lock()


def tracing_to(traces: str) -> Tracing:
    """What makes spans that go somewhere; the same for all episodes of a process.

    Args:
        traces: ``OTEL``, or the URL of a collector, without ``/v1/traces``.

    Raises:
        MissingPackageError: OpenTelemetry's SDK or its exporter is not installed.
    """
    with _lock:
        if traces in _own:
            return _own[traces]
        present = trace.get_tracer_provider()
        is_set_up = not isinstance(present, trace.ProxyTracerProvider)
        if traces == OTEL and is_set_up:
            return Tracing(present.get_tracer("evert", _version()))
        provider, processor = _new_provider(traces)
        if not is_set_up:
            trace.set_tracer_provider(provider)
        _own[traces] = Tracing(provider.get_tracer("evert", _version()), processor)
        return _own[traces]


def flush() -> None:
    """Send what is not sent yet; blocks until it is."""
    for tracing in _own.values():
        if tracing.own is not None:
            tracing.own.force_flush()


@cache
def _version() -> str:
    return version("evert")  # looked up among files


def _new_provider(traces: str) -> "tuple[TracerProvider, SpanProcessor]":
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise MissingPackageError(
            f"traces={traces!r} needs OpenTelemetry's SDK and its exporter, which are not there "
            f"({error}). Install them: pip install opentelemetry-exporter-otlp-proto-http."
        ) from error
    name = os.environ.get("OTEL_SERVICE_NAME", "evert")
    provider = TracerProvider(
        resource=Resource.create({"service.name": name}), shutdown_on_exit=False
    )
    endpoint = None if traces == OTEL else f"{traces.rstrip('/')}/v1/traces"
    processor = BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint))
    provider.add_span_processor(processor)
    atexit.register(provider.shutdown)
    # a worker of a pool ends without atexit
    multiprocessing.util.Finalize(None, provider.shutdown, exitpriority=0)
    return provider, processor
