"""``metrics_port=``: metrics of a consumer for Prometheus. Only this module needs Prometheus's client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from lakequeue.consumer.handler import Outcome
from lakequeue.consumer.observers import COUNTERS, HISTOGRAMS, Observer
from lakequeue.consumer.outages import Health
from lakequeue.errors import cannot_listen
from lakequeue.model.messages import Message

REQUEST_SECONDS = 5.0
"""Seconds that a client of the metrics endpoint has to send its request."""
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3_600)
"""Bounds of the histograms' buckets, in seconds. Handlers may take an hour, and messages may wait for longer."""


_GAUGES: Sequence[tuple[str, str, Callable[[Health], float]]] = (
    ("active_messages", "Messages received and not settled yet.", lambda health: health.active),
    ("begun_messages", "Messages in a handler.", lambda health: health.begun),
    ("round_seconds", "The longest of the last rounds.", lambda health: health.round_seconds),
    ("paused", "1 while the consumer is paused.", lambda health: health.paused),
    ("up", "1 while storage and delivery table work, 0 in an outage.", lambda health: health.outage_since is None),
)

ShardRaces = Mapping[int, tuple[int, int]]


class Endpoint:
    """Counts the events of a consumer's messages, and answers scrapes while the consumer runs."""

    def __init__(self, host: str, port: int) -> None:
        self._address = port, host
        self._registry = registry = CollectorRegistry()

        def made(kind: Callable[..., Any], name: str, what: str, *labels: str, **options: Any) -> Any:
            return kind(f"lakequeue_consumer_{name}", what, ["queue", *labels], registry=registry, **options)

        self._families = {name: made(Counter, name, what) for name, what in COUNTERS.items()}
        self._families["errors"] = made(Counter, "errors", "Failed handlers by class of error.", "error")
        for name, what in HISTOGRAMS.items():
            self._families[name] = made(Histogram, f"{name}_seconds", what, buckets=SECONDS)
        self._gauges = [(made(Gauge, name, what), value) for name, what, value in _GAUGES]
        self._races: dict[str, Callable[[], ShardRaces]] = {}
        ProcessCollector(registry=registry)
        registry.register(_Races(self._races))

    def observer(self, queue: str, health: Callable[[], Health], races: Callable[[], ShardRaces]) -> Observer:
        """Returns an observer that counts the events of one queue's messages, with the queue's name as a label."""
        for family, value in self._gauges:
            family.labels(queue).set_function(lambda value=value: value(health()))
        self._races[queue] = races
        return _Counts(queue, self._families)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Answers scrapes during the block. Raises OSError if the port or address cannot be used."""
        port, host = self._address
        try:
            server, thread = start_http_server(port, host, self._registry)
        except OSError as error:
            raise cannot_listen(host, port, error) from None
        server.RequestHandlerClass = _impatient(server.RequestHandlerClass)
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class _Counts:
    def __init__(self, queue: str, families: Mapping[str, Any]) -> None:
        self._queue = queue
        self._errors = families["errors"]
        self._counters = {name: families[name].labels(queue) for name in COUNTERS}
        self._seconds = {name: families[name].labels(queue) for name in HISTOGRAMS}

    def received(self, messages: Sequence[Message], now: datetime) -> None:
        self._counters["received"].inc(len(messages))
        for message in messages:
            self._seconds["lag"].observe(max(0.0, (now - message.sent_at).total_seconds()))

    @contextmanager
    def handling(self, message: Message) -> Iterator[None]:
        yield

    def handled(self, message: Message, seconds: float, outcome: Outcome, error: BaseException | None) -> None:
        self._seconds["handler"].observe(seconds)
        self._counters["handled" if outcome is Outcome.SUCCESS else "failed"].inc()
        if outcome is not Outcome.SUCCESS:
            self._errors.labels(self._queue, "Outcome.FAILED" if error is None else type(error).__name__).inc()

    def halved(self, message: Message, seconds: float, error: BaseException | None) -> None:
        self._seconds["handler"].observe(seconds)
        self._counters["halved"].inc()

    def extended(self, count: int) -> None:
        self._counters["extended"].inc(count)

    def lost(self, count: int) -> None:
        self._counters["lost"].inc(count)


class _Races(Collector):
    def __init__(self, races: Mapping[str, Callable[[], ShardRaces]]) -> None:
        self._races = races

    def collect(self) -> Iterator[Metric]:
        commits, lost = (
            CounterMetricFamily(f"lakequeue_consumer_{name}", what, labels=["queue", "shard"])
            for name, what in (
                ("commits", "Commits of this process by shard."),
                ("lost_races", "Times that this process decided again, as others had committed."),
            )
        )
        for queue, races in self._races.items():
            for shard, numbers in races().items():
                for family, number in zip((commits, lost), numbers, strict=True):
                    family.add_metric([queue, str(shard)], number)
        yield from (commits, lost)


def _impatient(handler: Any) -> Any:
    """Returns a handler of requests that drops silent clients, because each client takes a thread."""

    class Handler(handler):
        timeout = REQUEST_SECONDS

        def handle(self) -> None:
            with suppress(TimeoutError):
                super().handle()

    return Handler
