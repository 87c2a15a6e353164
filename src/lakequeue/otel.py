"""OpenTelemetry: spans and metrics of sends and consumers. A message carries its span in ``traceparent``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import attrs

from lakequeue.errors import MissingPackage

try:
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.context import Context
except ModuleNotFoundError as error:
    raise MissingPackage.of("lakequeue.otel", "otel", error) from None

from lakequeue.consumer import observers
from lakequeue.consumer.handler import Outcome
from lakequeue.consumer.observers import COUNTERS, HISTOGRAMS
from lakequeue.model.messages import Message, SendEntry
from lakequeue.model.validation import MAX_ATTRIBUTES, TRACE_HEADER
from lakequeue.operations import send
from lakequeue.queue import Queue

_SCOPE = "lakequeue"
_CONVENTIONS = {"received": "messaging.client.consumed.messages", "handler": "messaging.process.duration"}
_X_RAY = re.compile("Root=1-([0-9a-f]{8})-([0-9a-f]{24})")
_X_RAY_PARENT = re.compile("Parent=([0-9a-f]{16})")


def instrument(
    tracer_provider: trace.TracerProvider | None = None, meter_provider: metrics.MeterProvider | None = None
) -> None:
    """Measures the sends of this process, and consumers created later. A provider of None means the global one."""
    uninstrument()
    tracer = trace.get_tracer(_SCOPE, tracer_provider=tracer_provider)
    instruments = _Instruments(metrics.get_meter(_SCOPE, meter_provider=meter_provider))
    send.tracing = _Sends(tracer, instruments)
    observers.installed.append(lambda queue: _ConsumerObserver(queue, tracer, instruments))


def uninstrument() -> None:
    """Reverts ``instrument``, except in existing consumers."""
    send.tracing = None
    observers.installed.clear()


class _Instruments:
    def __init__(self, meter: metrics.Meter) -> None:
        def named(name: str) -> str:
            return _CONVENTIONS.get(name, f"lakequeue.consumer.{name}")

        self.sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Messages sent.")
        self.counters = {
            name: meter.create_counter(named(name), "{message}", what) for name, what in COUNTERS.items()
        }
        self.seconds = {name: meter.create_histogram(named(name), "s", what) for name, what in HISTOGRAMS.items()}


class _Sends:
    """Makes a span for every send. The sent messages carry the context of this span."""

    def __init__(self, tracer: trace.Tracer, instruments: _Instruments) -> None:
        self._tracer = tracer
        self._instruments = instruments

    @contextmanager
    def __call__(self, verb: str, queue: str, entries: Sequence[SendEntry]) -> Iterator[Sequence[SendEntry]]:
        common = _attributes(queue, verb)
        attributes = common | {"messaging.operation.type": "send"}
        if verb == "send_batch":
            attributes["messaging.batch.message_count"] = len(entries)
        kind = trace.SpanKind.PRODUCER
        error_type: dict[str, Any] = {}
        with self._tracer.start_as_current_span(f"{verb} {queue}", kind=kind, attributes=attributes) as span:
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
            try:
                yield [_carrying(entry, carrier) for entry in entries]
            except Exception as error:
                error_type = {"error.type": type(error).__qualname__}
                span.set_attributes(error_type)
                raise
            finally:
                self._instruments.sent.add(len(entries), common | error_type)


class _ConsumerObserver:
    def __init__(self, queue: Queue, tracer: trace.Tracer, instruments: _Instruments) -> None:
        self._queue = queue.name
        self._tracer = tracer
        self._instruments = instruments
        self._common = _attributes(self._queue, "process")

    def received(self, messages: Sequence[Message], now: datetime) -> None:
        self._instruments.counters["received"].add(len(messages), _attributes(self._queue, "receive"))
        for message in messages:
            seconds = max(0.0, (now - message.sent_at).total_seconds())
            self._instruments.seconds["lag"].record(seconds, self._common)

    @contextmanager
    def handling(self, message: Message) -> Iterator[None]:
        attributes = self._common | {
            "messaging.operation.type": "process",
            "messaging.message.id": message.message_id,
            "messaging.message.body.size": len(message.body.encode()),
            "lakequeue.receive_count": message.receive_count,
        }
        if message.group_id is not None:
            attributes["lakequeue.group_id"] = message.group_id
        with self._tracer.start_as_current_span(
            f"process {self._queue}", _sender(message), trace.SpanKind.CONSUMER, attributes
        ):
            yield

    def handled(self, message: Message, seconds: float, outcome: Outcome, error: BaseException | None) -> None:
        if outcome is Outcome.SUCCESS:
            self._ended("handled", seconds, self._common)
        else:
            self._error("failed", seconds, outcome, error)

    def halved(self, message: Message, seconds: float, error: BaseException | None) -> None:
        self._error("halved", seconds, Outcome.FAILED, error)

    def _error(self, name: str, seconds: float, outcome: Outcome, error: BaseException | None) -> None:
        kind, span = outcome.value if error is None else type(error).__qualname__, trace.get_current_span()
        span.set_attribute("error.type", kind)
        span.set_status(trace.StatusCode.ERROR, None if error is None else str(error))
        if error is not None:
            span.record_exception(error)
        self._ended(name, seconds, {**self._common, "error.type": kind})

    def _ended(self, name: str, seconds: float, attributes: Mapping[str, Any]) -> None:
        self._instruments.seconds["handler"].record(seconds, attributes)
        self._instruments.counters[name].add(1, attributes)

    def extended(self, count: int) -> None:
        self._instruments.counters["extended"].add(count, self._common)

    def lost(self, count: int) -> None:
        self._instruments.counters["lost"].add(count, self._common)


def _attributes(queue: str, operation: str) -> dict[str, Any]:
    return {
        "messaging.system": "lakequeue",
        "messaging.destination.name": queue,
        "messaging.operation.name": operation,
    }


def _carrying(entry: SendEntry, carrier: Mapping[str, str]) -> SendEntry:
    """Adds the span's context to the entry's attributes, unless they would then exceed the limit of ten."""
    attributes = entry.attributes or {}
    if not isinstance(attributes, Mapping):
        return entry  # The send refuses it.
    new = {name: value for name, value in carrier.items() if name not in attributes and value}
    if not new or len(attributes) + len(new) > MAX_ATTRIBUTES:
        return entry
    return attrs.evolve(entry, attributes={**attributes, **new})


def _sender(message: Message) -> Context:
    """Returns the sender's context from the attributes, or from AWS X-Ray's header."""
    texts = {name: value for name, (_, value) in message.message_attributes.items() if isinstance(value, str)}
    context = propagate.extract(texts, Context())
    header = message.system_attributes.get(TRACE_HEADER, "")
    root, parent = _X_RAY.search(header), _X_RAY_PARENT.search(header)
    if trace.get_current_span(context).get_span_context().is_valid or not (root and parent):
        return context
    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED if "Sampled=1" in header else trace.TraceFlags.DEFAULT)
    sender = trace.SpanContext(int(root[1] + root[2], 16), int(parent[1], 16), is_remote=True, trace_flags=flags)
    return trace.set_span_in_context(trace.NonRecordingSpan(sender), context)
