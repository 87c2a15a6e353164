"""``metrics_port=``: what a consumer does, for Prometheus. The only module that needs its client."""

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
from lakequeue.consumer.observers import COUNTERS, HISTOGRAMS
from lakequeue.consumer.outages import Health
from lakequeue.model.messages import Message

REQUEST_SECONDS = 5.0
"""Seconds that a client of the metrics endpoint has to send its request."""
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3_600)
"""Bounds of the histograms: handlers may take an hour, and messages may wait for longer."""


ShardRaces = Mapping[int, tuple[int, int]]


class Endpoint:
    """Counts what becomes of a consumer's messages, and answers scrapes while the consumer runs.

    Args:
        queue: name of the queue, the label of every metric.
        health: how the consumer is now.
        races: commits and lost races of this process by shard.
    """

    def __init__(
        self, host: str, port: int, queue: str, health: Callable[[], Health], races: Callable[[], ShardRaces]
    ) -> None:
        self._address = port, host
        self._registry = registry = CollectorRegistry()

        def made(kind: Callable[..., Any], name: str, what: str, **options: Any) -> Any:
            return kind(f"lakequeue_consumer_{name}", what, ["queue"], registry=registry, **options).labels(queue)

        def gauge(name: str, what: str, value: Callable[[], float]) -> None:
            made(Gauge, name, what).set_function(value)

        self._queue = queue
        self._errors = Counter(
            "lakequeue_consumer_errors",
            "Failed handlers by class of error.",
            ["queue", "error"],
            registry=registry,
        )
        self._counters = {name: made(Counter, name, what) for name, what in COUNTERS.items()}
        self._seconds = {
            name: made(Histogram, f"{name}_seconds", what, buckets=SECONDS) for name, what in HISTOGRAMS.items()
        }
        gauge("active_messages", "Messages received and not settled yet.", lambda: health().active)
        gauge("begun_messages", "Messages in a handler.", lambda: health().begun)
        gauge(
            "round_seconds",
            "The longest of the last rounds.",
            lambda: health().round_seconds,
        )
        gauge("paused", "1 while the consumer is paused.", lambda: health().paused)
        gauge("up", "1 while storage works, 0 in an outage.", lambda: health().outage_since is None)
        ProcessCollector(registry=registry)
        registry.register(_Races(queue, races))

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Answers scrapes during the block.

        Raises:
            OSError: the port is in use, or the address is not one of this machine.
        """
        port, host = self._address
        server, thread = start_http_server(port, host, self._registry)
        server.RequestHandlerClass = _impatient(server.RequestHandlerClass)
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

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

    def extended(self, count: int) -> None:
        self._counters["extended"].inc(count)

    def lost(self, count: int) -> None:
        self._counters["lost"].inc(count)


class _Races(Collector):
    def __init__(self, queue: str, races: Callable[[], ShardRaces]) -> None:
        self._queue = queue
        self._races = races

    def collect(self) -> Iterator[Metric]:
        commits, lost = (
            CounterMetricFamily(f"lakequeue_consumer_{name}", what, labels=["queue", "shard"])
            for name, what in (
                ("commits", "Commits of this process by shard."),
                ("lost_races", "Times that this process decided again, as others had committed."),
            )
        )
        for shard, numbers in self._races().items():
            for family, number in zip((commits, lost), numbers, strict=True):
                family.add_metric([self._queue, str(shard)], number)
        yield from (commits, lost)


def _impatient(handler: Any) -> Any:
    """A handler of requests that gives up on silent clients, each of which takes a thread."""

    class Handler(handler):
        timeout = REQUEST_SECONDS

        def handle(self) -> None:
            with suppress(TimeoutError):
                super().handle()

    return Handler
