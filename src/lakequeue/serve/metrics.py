"""``/metrics`` for Prometheus: number and latency of requests, and metrics of the queues."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from lakequeue.client import LakeQueue
from lakequeue.entry_verbs import store_requests
from lakequeue.serve.combining import SingleFlight
from lakequeue.serve.instrumentation import RequestRecord
from lakequeue.serve.queue_metrics import QUEUES, QueueMetrics, readable

SCAN_TIMEOUT = 8.0
"""Maximum seconds that a scrape reads queues; Prometheus gives up after 10. A slower scrape omits the queues."""
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0)
"""Upper bounds of the latencies in a histogram, in seconds. The last bound exceeds the longest long poll."""

_log = logging.getLogger("lakequeue.serve")


class Metrics:
    """Counts requests, and answers scrapes. At most ``queues`` queues have labels of their own."""

    def __init__(self, lake: LakeQueue, waiting: Callable[[], int], queues: int = QUEUES) -> None:
        self._registry = registry = CollectorRegistry()
        of_call, latency = (
            ["action", "code"],
            "Time to the answer of SQS clients; includes the wait of long polls.",
        )
        self._requests = Counter(
            "lakequeue_requests", "Requests of SQS clients answered.", of_call, registry=registry
        )
        self._console = Counter(
            "lakequeue_console_requests", "Requests of the console answered.", of_call, registry=registry
        )
        self._seconds = Histogram(
            "lakequeue_request_seconds", latency, ["action"], buckets=BUCKETS, registry=registry
        )
        self._bytes_in = Counter("lakequeue_request_bytes", "Bytes of request bodies.", registry=registry)
        self._bytes_out = Counter("lakequeue_response_bytes", "Bytes of response bodies.", registry=registry)
        self._in_progress = Gauge("lakequeue_requests_in_progress", "Requests in progress.", registry=registry)
        polls = Gauge("lakequeue_long_polls_waiting", "Long polls in progress.", registry=registry)
        polls.set_function(waiting)
        ProcessCollector(registry=registry)
        registry.register(_StoreRequests(lake))
        self._queues = SingleFlight(QueueMetrics(lake, queues).collect)

    def begun(self) -> None:
        self._in_progress.inc()

    def ended(self, record: RequestRecord) -> None:
        self._in_progress.dec()
        if record.call is None:
            return
        self._bytes_in.inc(record.bytes_in)
        self._bytes_out.inc(record.bytes_out)
        if record.call.by_console:
            self._console.labels(record.call.action, record.call.code).inc()
            return
        self._requests.labels(record.call.action, record.call.code).inc()
        self._seconds.labels(record.call.action).observe(record.seconds)

    async def answer(self, http: Request) -> Response:
        """Answers a scrape of Prometheus. Concurrent scrapes share one scan of the queues."""
        try:
            queues = await asyncio.wait_for(self._queues.result(), SCAN_TIMEOUT)
        except asyncio.TimeoutError:  # the metrics of requests need no storage
            _log.warning("a scrape leaves all queues out: storage did not answer within %g s", SCAN_TIMEOUT)
            queues = [readable(0)]
        found = _Collected([*self._registry.collect(), *queues])
        encode, content_type = choose_encoder(http.headers.get("accept", ""))
        content = await run_in_threadpool(encode, found)
        return Response(content, headers={"content-type": content_type})


class _StoreRequests(Collector):
    def __init__(self, lake: LakeQueue) -> None:
        self._lake = lake

    def collect(self) -> Iterator[Metric]:
        what = "Requests to the object store; a listing counts once."
        family = CounterMetricFamily("lakequeue_store_requests", what, labels=["kind"])
        for kind, number in sorted(store_requests(self._lake).items()):
            family.add_metric([kind], number)
        yield family


class _Collected(CollectorRegistry):
    def __init__(self, metrics: list[Metric]) -> None:
        super().__init__()
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)
