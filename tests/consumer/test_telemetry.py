"""What a consumer tells OpenTelemetry and Prometheus."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from consumer.harness import Harness, raises, scrape, sleeper
from lakequeue import (
    Consumer,
    Context,
    InvalidParameterValue,
    LakeQueue,
    Message,
    NoRenewal,
    Outcome,
    QueueClientError,
    SendEntry,
    otel,
)
from lakequeue.errors import RowsRefused
from lakequeue.testing import ManualClock
from serve.serving import free_port


class Telemetry:
    """Spans and metrics in memory."""

    def __init__(self) -> None:
        self._spans, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.meters = MeterProvider([self._reader])

    def spans(self, name: str) -> list[Any]:
        return [span for span in self._spans.get_finished_spans() if span.name == name]

    def clear(self) -> None:
        self._spans.clear()

    def points(self, name: str) -> list[Any]:
        data = self._reader.get_metrics_data()
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
        return [
            point
            for scope in scopes
            for each in scope.metrics
            if each.name == name
            for point in each.data.data_points
        ]

    def total(self, name: str) -> float:
        return sum(getattr(point, "value", None) or getattr(point, "sum", 0) for point in self.points(name))


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    telemetry = Telemetry()
    otel.instrument(telemetry.tracers, telemetry.meters)
    yield telemetry
    otel.uninstrument()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_trace_goes_from_the_send_to_the_handler(
    harness: Harness, telemetry: Telemetry, asynchronous: bool
) -> None:
    tracer = telemetry.tracers.get_tracer("application")
    with tracer.start_as_current_span("request") as request:
        sent = harness.other.send("A", attributes={"colour": "red"})
    inside = []

    def handle(message: Message, context: Context) -> None:
        inside.append(trace.get_current_span().get_span_context().span_id)
        assert message.message_attributes["colour"].value == "red"

    async def handle_async(message: Message, context: Context) -> None:
        handle(message, context)

    harness.consumer(handle_async if asynchronous else handle).run(until_empty=True)
    [send], [process] = telemetry.spans("send orders"), telemetry.spans("process orders")
    assert send.parent.span_id == request.get_span_context().span_id
    assert process.parent.span_id == send.context.span_id
    assert process.context.trace_id == request.get_span_context().trace_id
    assert inside == [process.context.span_id]
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert send.attributes == {
        "messaging.system": "lakequeue",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
    }
    assert process.attributes == {
        "messaging.system": "lakequeue",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": sent.message_id,
        "messaging.message.body.size": 1,
        "lakequeue.receive_count": 1,
    }


def test_each_message_has_a_span_and_those_of_a_batch_have_one_parent(
    harness: Harness, telemetry: Telemetry
) -> None:
    harness.send("A", "B", "C")
    harness.consumer(sleeper(0)).run(until_empty=True)
    [send] = telemetry.spans("send_batch orders")
    assert send.attributes["messaging.batch.message_count"] == 3
    assert [span.parent.span_id for span in telemetry.spans("process orders")] == [send.context.span_id] * 3


def test_a_failure_marks_its_span(harness: Harness, telemetry: Telemetry) -> None:
    harness.send("raises", "fails")
    fails = raises(ValueError("by a handler"), "raises")
    harness.consumer(harness.handler(answer=lambda message: fails(message) or Outcome.FAILED)).run(
        until_empty=True
    )
    spans = sorted(telemetry.spans("process orders"), key=lambda span: span.attributes["error.type"])
    assert [span.attributes["error.type"] for span in spans] == ["ValueError", "failed"]
    assert [span.status.status_code for span in spans] == [StatusCode.ERROR] * 2
    assert [event.name for event in spans[0].events] == ["exception"] and not spans[1].events
    with pytest.raises(InvalidParameterValue):
        harness.other.send("A", delay=-1)
    [refused] = telemetry.spans("send orders")
    assert refused.attributes["error.type"] == "InvalidParameterValue"
    assert refused.status.status_code is StatusCode.ERROR


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_delivery_marks_the_span_of_each_message_that_failed(
    tmp_path: Path, telemetry: Telemetry, asynchronous: bool
) -> None:
    """Observers heard of a delivery only after its spans had ended."""
    inside = []

    def handle(messages: list[Message], contexts: list[Context]) -> Any:
        inside.append(trace.get_current_span().attributes["messaging.message.id"] == messages[0].message_id)
        if messages[0].body == "raises":
            consumer.stop()
            raise ValueError("by a handler")
        outcomes = [Outcome.FAILED if message.body == "fails" else None for message in messages]
        return [{"id": "x" if message.body == "refused" else 1} for message in messages], outcomes

    async def handle_async(messages: list[Message], contexts: list[Context]) -> Any:
        return handle(messages, contexts)

    def spans_after(*bodies: str) -> list[tuple[StatusCode, object, list[str]]]:
        telemetry.clear()
        queue.send_batch([SendEntry(body) for body in bodies])
        consumer.run(until_empty=True)
        return [
            (span.status.status_code, span.attributes.get("error.type"), [event.name for event in span.events])
            for span in telemetry.spans("process orders")
        ]

    clock = ManualClock()
    with LakeQueue(str(tmp_path / "root"), clock=clock) as lake:
        queue = lake.create_queue("orders", table=str(tmp_path / "table"))
        chosen = handle_async if asynchronous else handle
        consumer = Consumer(queue, chosen, batch=10, concurrency=1, renewal=NoRenewal())
        good, failed = (StatusCode.UNSET, None, []), (StatusCode.ERROR, "failed", [])
        assert spans_after("good", "fails", "good") == [good, failed, good]
        assert telemetry.total("lakequeue.consumer.handled") == 2
        clock.advance(1)
        queue.delete_batch(queue.receive(10))
        assert spans_after("raises", "good") == [(StatusCode.ERROR, "ValueError", ["exception"])] * 2
        queue.delete_batch(queue.receive(10))
        refused = (StatusCode.ERROR, RowsRefused.__name__, ["exception"])
        # the halves of a refused batch are handled again, in spans of their own
        assert spans_after("good", "refused") == [refused, refused, good, refused]
    assert inside == [True] * 5
    assert telemetry.total("lakequeue.consumer.handled") == 3
    assert telemetry.total("lakequeue.consumer.failed") == 2  # alone
    assert telemetry.total("lakequeue.consumer.halved") == 4


@pytest.mark.spec("SND-15")
def test_a_trace_header_of_x_ray_is_continued(harness: Harness, telemetry: Telemetry) -> None:
    header = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
    otel.uninstrument()
    harness.other.send("A", system_attributes={"AWSTraceHeader": header})
    harness.other.send("B", system_attributes={"AWSTraceHeader": "Root=nonsense"})
    otel.instrument(telemetry.tracers, telemetry.meters)
    harness.consumer(sleeper(0)).run(until_empty=True)
    continued, own = sorted(telemetry.spans("process orders"), key=lambda span: span.parent is None)
    assert continued.context.trace_id == 0x5759E988BD862E3FE1BE46A994272793
    assert continued.parent.span_id == 0x53995C3F42CD8AD8
    assert own.parent is None


def test_a_message_with_ten_attributes_is_sent_without_the_context(harness: Harness, telemetry: Telemetry) -> None:
    ten = {f"a{number}": "x" for number in range(10)}
    harness.other.send("A", attributes=ten)
    harness.other.send_batch([SendEntry("B", attributes={"traceparent": "mine"})])
    found = {message.body: message.message_attributes for message in harness.other.receive(2)}
    assert found["A"].keys() == ten.keys()
    assert found["B"]["traceparent"].value == "mine"


def test_without_asking_nothing_is_added_to_messages(harness: Harness) -> None:
    harness.other.send("A")
    [message] = harness.other.receive()
    assert message.message_attributes == {}


@contextmanager
def one_of_each(harness: Harness, **options: Any) -> Iterator[None]:
    """Handles a message, fails one, extends one and loses one; the consumer is paused at 29."""
    harness.send("good", "bad", "lost")
    harness.clock.advance(7)

    def handle(message: Message, context: Context) -> Outcome:
        if message.body == "bad":
            context.sleep(1)  # before that the consumer is full, and does not take the lost one itself
            return Outcome.FAILED
        if message.body == "lost":
            harness.other.change_visibility(message.receipt_handle, 0)
            harness.other.receive(visibility_timeout=1_000)
        context.sleep(40)
        context.raise_if_lost()
        return Outcome.SUCCESS

    consumer = harness.consumer(handle, concurrency=3, **options)
    with harness.running(consumer):
        harness.clock.advance(29)
        consumer.pause()
        harness.clock.advance(5)
        yield


def test_the_metrics_of_opentelemetry(harness: Harness, telemetry: Telemetry) -> None:
    with one_of_each(harness):
        harness.clock.advance(20)
    totals = {
        "messaging.client.sent.messages": 3,
        "messaging.client.consumed.messages": 3,
        "messaging.process.duration": 66,
        "lakequeue.consumer.handled": 1,
        "lakequeue.consumer.failed": 2,
        "lakequeue.consumer.extended": 1,
        "lakequeue.consumer.lost": 1,
        "lakequeue.consumer.lag": 21,
    }
    assert {name: telemetry.total(name) for name in totals} == totals
    [point] = telemetry.points("lakequeue.consumer.extended")
    assert point.attributes["messaging.destination.name"] == "orders"
    errors = [point.attributes.get("error.type", "") for point in telemetry.points("messaging.process.duration")]
    assert sorted(errors) == ["", "LeaseLost", "failed"]


def test_the_metrics_of_prometheus(harness: Harness) -> None:
    port = free_port()
    with one_of_each(harness, metrics_port=port):
        early = scrape(port)
        harness.clock.advance(20)
        found = scrape(port)
    assert {early[f"lakequeue_consumer_{name}"] for name in ("active_messages", "begun_messages", "paused")} == {1}
    told = {
        name.removeprefix("lakequeue_consumer_"): value
        for name, value in found.items()
        if "bucket" not in name and "shard" not in name
    }
    assert 0 < told.pop("round_seconds") < 30
    shard = '{queue="orders",shard="0"}'
    assert found[f"lakequeue_consumer_commits_total{shard}"] >= 3
    assert found[f"lakequeue_consumer_lost_races_total{shard}"] == 0
    assert {name: value for name, value in told.items() if "created" not in name} == {
        "received_total": 3,
        "handled_total": 1,
        "failed_total": 2,
        'errors_total{error="LeaseLost",queue="orders"}': 1,
        'errors_total{error="Outcome.FAILED",queue="orders"}': 1,
        "halved_total": 0,
        "extended_total": 1,
        "lost_total": 1,
        "handler_seconds_count": 3,
        "handler_seconds_sum": 66,
        "lag_seconds_count": 3,
        "lag_seconds_sum": 21,
        "active_messages": 0,
        "begun_messages": 0,
        "paused": 1,
        "up": 1,
    }
    with pytest.raises(OSError):
        scrape(port)  # it ends with the run


def test_the_dashboard_and_the_guide_name_what_the_endpoint_serves(harness: Harness) -> None:
    port = free_port()
    with one_of_each(harness, metrics_port=port):
        harness.clock.advance(20)
        served = {re.sub(r"\{.*", "", name) for name in scrape(port)}
    home = Path(__file__).parents[2]
    dashboard = json.loads((home / "conf" / "grafana" / "lakequeue-consumers.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    shown = {name for text in expressions for name in re.findall(r"lakequeue_\w+", text)}
    assert shown <= served and len(shown) >= 9
    assert {name for text in expressions for name in re.findall(r"(\w+)=~", text)} == {"queue"}
    guide = (home / "docs" / "guides" / "running-consumers.md").read_text()
    told = set(re.findall(r"^\| `(lakequeue_\w+)`", guide, re.MULTILINE))
    samples = {re.sub("_(bucket|count|sum|created)$", "", name) for name in served}
    assert told == {name for name in samples if f"{name}_total" not in samples}


def test_an_outage_shows_in_the_metrics(harness: Harness) -> None:
    port = free_port()
    harness.fails(QueueClientError("no network"), until=1_000)
    with harness.running(harness.consumer(sleeper(0), metrics_port=port)):
        harness.clock.advance(1)
        assert scrape(port)["lakequeue_consumer_up"] == 0


def test_a_port_in_use_is_refused(harness: Harness) -> None:
    port = free_port()
    with (
        harness.running(harness.consumer(sleeper(0), metrics_port=port)),
        pytest.raises(OSError, match=rf"^cannot listen at 127\.0\.0\.1, port {port}: Address already in use$"),
    ):
        harness.consumer(sleeper(0), metrics_port=port).run()


def test_without_its_package_one_line_says_what_to_install(tmp_path: Path) -> None:
    script = f"""
import sys
from lakequeue import Consumer, LakeQueue
q = LakeQueue({str(tmp_path / "root")!r}).create_queue("orders")
Consumer(q, lambda m, c: None).run(until_empty=True)
assert not [name for name in sys.modules if name.startswith(("opentelemetry", "prometheus_client"))]
sys.modules["opentelemetry"] = sys.modules["prometheus_client"] = None
try:
    Consumer(q, lambda m, c: None, metrics_port=0)
except Exception as error:
    print(error)
try:
    import lakequeue.otel
except Exception as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    told = done.stdout.splitlines()
    assert [line.partition(" pip ")[2] for line in told] == [
        "install 'prometheus-client>=0.20'",
        "install 'opentelemetry-api>=1.25'",
    ], done.stderr


def test_silent_clients_of_the_metrics_do_not_stay(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    """Each took a thread for ever."""
    monkeypatch.setattr("lakequeue.consumer.prometheus.REQUEST_SECONDS", 0.05)
    port = free_port()
    with harness.running(harness.consumer(sleeper(0), metrics_port=port)):
        with socket.create_connection(("127.0.0.1", port), 30) as silent:
            assert silent.recv(1) == b""
        assert scrape(port)
    assert "Traceback" not in capfd.readouterr().err
