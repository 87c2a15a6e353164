"""What operators see of a server: health, metrics and the log."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from concurrency.harness import apart
from lakequeue import LakeQueue, SendEntry
from lakequeue.entry_verbs import prepare, report_consumer
from lakequeue.model.consumer_processes import ConsumerFile, ConsumerProcess
from lakequeue.model.log_lines import JsonLines
from lakequeue.runtime.root import Root
from lakequeue.serve import metrics as metrics_module
from lakequeue.serve import queue_metrics
from lakequeue.serve.app import Application, HealthCheck
from lakequeue.serve.logs import MAX_VALUE_LENGTH
from lakequeue.serve.queue_metrics import OTHER, QueueMetrics
from lakequeue.storage.layout import messages_path, schedules_path
from lakequeue.testing import ManualClock
from serve.serving import PATIENCE, Client, ServerProcess, client_of, serving, wait_until

Samples = dict[tuple[str, ...], float]
Accesses = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "queues"


@pytest.fixture
def served(root: Path) -> Iterator[tuple[Application, Client]]:
    with serving(LakeQueue(str(root))) as server, client_of(server.url) as client:
        yield server.application, client


@pytest.fixture
def client(served: tuple[Application, Client]) -> Client:
    return served[1]


@pytest.fixture
def unkept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every scrape reads the queues."""
    monkeypatch.setattr(queue_metrics, "READ_INTERVAL", 0.0)


def samples(client: Client) -> Samples:
    """Values of the metrics by their name and the values of their labels."""
    answer = client.http.get(f"{client.url}/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def health(client: Client) -> tuple[int, dict[str, str]]:
    answer = client.http.get(f"{client.url}/health")
    return answer.status_code, answer.json()


def test_health_is_good_while_the_catalog_can_be_read(client: Client, root: Path) -> None:
    assert health(client) == (200, {"status": "ok"})
    aside = root.with_name("aside")
    root.rename(aside)
    assert health(client) == (
        503,
        {"status": "failing", "reason": "The storage of the queues cannot be read."},
    )
    aside.rename(root)
    assert health(client) == (200, {"status": "ok"})


class Slow(LakeQueue):
    """Storage that does not answer before a gate is opened."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.gate = threading.Event()
        self.looks = 0
        self._runtime.check = self.slow_check  # type: ignore[method-assign]

    def slow_check(self) -> None:
        self.looks += 1
        self.gate.wait()
        Root.check(self._runtime)


def ask(lake: Slow, answer: Callable[[Request], Awaitable[Response]], when_closed: Callable[[str], bool]) -> None:
    """Asks three times while storage is slow, and then until the answer is another one."""
    app = Starlette(routes=[Route("/", answer)])

    async def asking() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as http:
            for _ in range(3):
                assert when_closed((await http.get("/")).text)
            assert lake.looks == 1
            lake.gate.set()
            while when_closed((await http.get("/")).text):
                pass

    prepare(lake)
    try:
        asyncio.run(asyncio.wait_for(asking(), PATIENCE))
    finally:
        lake.gate.set()


def test_health_waits_for_storage_only_so_long_and_with_one_thread(root: Path) -> None:
    lake = Slow(root)
    health = HealthCheck(lake, lambda: False, timeout=0.01)
    ask(lake, health.answer, lambda text: "The storage of the queues did not answer within 0.01 s." in text)


def test_metrics_of_requests_are_served_while_storage_hangs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "SCAN_TIMEOUT", 0.01)
    lake = Slow(root)
    metrics = metrics_module.Metrics(lake, lambda: 7)

    def without_queues(text: str) -> bool:
        assert "lakequeue_long_polls_waiting 7.0" in text
        return "lakequeue_storage_readable 0.0" in text

    ask(lake, metrics.answer, without_queues)


def test_health_is_bad_once_the_server_stops(served: tuple[Application, Client]) -> None:
    application, client = served
    application.endpoint.receives.stop()
    assert health(client) == (503, {"status": "failing", "reason": "The server is stopping."})


def test_a_queue_may_be_called_health(client: Client) -> None:
    for name in "health", "metrics":
        client("CreateQueue", QueueName=name)
        form = {"Action": "SendMessage", "MessageBody": "A"}
        assert client.http.post(f"{client.url}/{name}", data=form).status_code == 200
        assert client("ReceiveMessage", QueueUrl=client.queue_url(name))["Messages"][0]["Body"] == "A"


def test_metrics_count_requests_by_action_and_code(client: Client) -> None:
    client("CreateQueue", QueueName="orders")
    orders = client.queue_url("orders")
    for _ in range(2):
        client("SendMessage", QueueUrl=orders, MessageBody="A")
    assert client.post("SendMessage", QueueUrl=client.queue_url("none"), MessageBody="A").status_code == 400
    for wrong in "Nonsense", "Other\nwise":
        assert client.http.post(client.url, data={"Action": wrong}).status_code == 400
    assert client.post("Nonsense").status_code == 400

    found = samples(client)
    requests = {key[1:]: value for key, value in found.items() if key[0] == "lakequeue_requests_total"}
    assert requests == {
        ("CreateQueue", "OK"): 1,
        ("SendMessage", "OK"): 2,
        ("SendMessage", "QueueDoesNotExist"): 1,
        ("-", "InvalidAction"): 3,
    }
    assert found["lakequeue_request_seconds_count", "SendMessage"] == 3
    assert found["lakequeue_request_seconds_bucket", "SendMessage", "+Inf"] == 3
    assert found["lakequeue_request_seconds_sum", "SendMessage"] > 0
    assert found["lakequeue_request_bytes_total",] > 3 * len(orders)
    assert found["lakequeue_response_bytes_total",] > 0
    assert found["lakequeue_requests_in_progress",] == 1, "the scrape itself"
    assert found["lakequeue_long_polls_waiting",] == 0
    assert "process_resident_memory_bytes" in {name for name, *_ in found}


@pytest.mark.usefixtures("unkept")
def test_metrics_show_the_depths_of_queues_at_the_scrape(tmp_path: Path) -> None:
    clock = ManualClock()
    lake = LakeQueue(str(tmp_path / "queues"), clock=clock)
    orders, other = lake.create_queue("orders"), lake.create_queue("other.fifo", fifo=True)
    lake.create_queue("gone").send("A")
    lake.delete_queue("gone")
    for delay in None, None, None, 60:
        orders.send("A", delay=delay)
    orders.receive()
    clock.advance(7)
    with serving(lake) as server, client_of(server.url) as client:
        found = samples(client)
        queues = {
            key: value
            for key, value in found.items()
            if key[0].startswith("lakequeue_queue_") and (value or "total" not in key[0])
        }
        other.send("B", group_id="g", dedup_id="1")
        for each in *apart(lake.root, clock, 1), lake:
            each.queue("orders").receive()
        later = samples(client)
    assert queues == {
        ("lakequeue_queue_messages", "orders", "visible"): 2,
        ("lakequeue_queue_messages", "orders", "in_flight"): 1,
        ("lakequeue_queue_messages", "orders", "delayed"): 1,
        ("lakequeue_queue_messages", "orders", "held"): 0,
        ("lakequeue_queue_messages", "orders", "undecided"): 0,
        ("lakequeue_queue_consumers", "orders"): 1,
        ("lakequeue_queue_consumers", "other.fifo"): 0,
        ("lakequeue_queue_dead_letter_sources", "orders"): 0,
        ("lakequeue_queue_dead_letter_sources", "other.fifo"): 0,
        ("lakequeue_queue_visibility_timeout_seconds", "orders"): 30,
        ("lakequeue_queue_visibility_timeout_seconds", "other.fifo"): 30,
        ("lakequeue_queue_retention_seconds", "orders"): 4 * 24 * 3600,
        ("lakequeue_queue_retention_seconds", "other.fifo"): 4 * 24 * 3600,
        ("lakequeue_queue_paused", "orders"): 0,
        ("lakequeue_queue_paused", "other.fifo"): 0,
        ("lakequeue_queue_paused_timestamp_seconds", "orders"): 0,
        ("lakequeue_queue_paused_timestamp_seconds", "other.fifo"): 0,
        ("lakequeue_queue_oldest_receive_age_seconds", "orders"): 7,
        ("lakequeue_queue_oldest_receive_age_seconds", "other.fifo"): 0,
        ("lakequeue_queue_unreceived_seconds", "orders"): 7,
        ("lakequeue_queue_unreceived_seconds", "other.fifo"): 0,
        ("lakequeue_queue_rewindable_messages", "orders"): 0,
        ("lakequeue_queue_oldest_message_age_seconds", "orders"): 7,
        ("lakequeue_queue_appended_total", "orders"): 4,
        ("lakequeue_queue_sent_total", "orders"): 4,
        ("lakequeue_queue_sent_bytes_total", "orders"): 4,
        ("lakequeue_queue_received_total", "orders"): 1,
        ("lakequeue_queue_received_bytes_total", "orders"): 1,
        ("lakequeue_queue_sent_total", OTHER): 1,
        ("lakequeue_queue_sent_bytes_total", OTHER): 1,
        ("lakequeue_queue_messages", "other.fifo", "visible"): 0,
        ("lakequeue_queue_messages", "other.fifo", "in_flight"): 0,
        ("lakequeue_queue_messages", "other.fifo", "delayed"): 0,
        ("lakequeue_queue_messages", "other.fifo", "held"): 0,
        ("lakequeue_queue_messages", "other.fifo", "undecided"): 0,
        ("lakequeue_queue_rewindable_messages", "other.fifo"): 0,
        ("lakequeue_queue_oldest_message_age_seconds", "other.fifo"): 0,
        ("lakequeue_queue_shard_messages", "orders", "0"): 4,
        ("lakequeue_queue_shard_messages", "other.fifo", "0"): 0,
        ("lakequeue_queue_shard_commits_total", "orders", "0"): 5,
    }
    assert found["lakequeue_queue_shard_lost_races_total", "orders", "0"] == 0
    assert later["lakequeue_queue_shard_lost_races_total", "orders", "0"] == 1
    assert later["lakequeue_queue_messages", "other.fifo", "visible"] == 1
    assert later["lakequeue_storage_readable",] == 1 and later["lakequeue_queues_left_out",] == 0
    assert later["lakequeue_last_compaction_timestamp_seconds",] == 0


def test_a_message_of_a_running_consumer_is_no_sign_that_nobody_receives(
    lake: LakeQueue, clock: ManualClock
) -> None:
    for name in "busy", "gone", "idle", "paused":
        queue = lake.create_queue(name, visibility_timeout=3600)
        queue.send("a")
        if name == "paused":
            queue.pause("late")
        elif name != "idle":
            queue.send("b")
            queue.receive(1, consumer=name)
    clock.advance(1000)
    process = ConsumerProcess("worker-1", 4711, clock.now(), clock.now(), 1, None)
    report_consumer(lake.queue("busy"), "1", ConsumerFile("busy", [lake.queue("busy").key], process))
    [family] = [each for each in QueueMetrics(lake).collect() if each.name == "lakequeue_queue_unreceived_seconds"]
    found = {sample.labels["queue"]: sample.value for sample in family.samples}
    assert found == {"busy": 0, "gone": 1000, "idle": 1000, "paused": 0}


@pytest.mark.usefixtures("unkept")
def test_the_start_of_a_pause_is_a_metric(client: Client, root: Path) -> None:
    queue = LakeQueue(str(root)).create_queue("orders")
    queue.pause("late", "acme")
    assert samples(client)["lakequeue_queue_paused_timestamp_seconds", "orders"] == 0, "only a group is paused"
    began = time.time()
    queue.pause("the bank is down")
    found = samples(client)
    assert found["lakequeue_queue_paused", "orders"] == 1
    assert began - 1 <= found["lakequeue_queue_paused_timestamp_seconds", "orders"] <= time.time()


@pytest.mark.usefixtures("unkept")
def test_the_last_compaction_is_a_metric(client: Client, root: Path) -> None:
    lake = LakeQueue(str(root))
    lake.create_queue("orders")
    began = time.time()
    lake.compact()
    assert began <= samples(client)["lakequeue_last_compaction_timestamp_seconds",] <= time.time()


@pytest.mark.spec("JOB-7")
@pytest.mark.usefixtures("unkept")
def test_schedules_that_fail_or_are_overdue_are_metrics(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock, names = ManualClock(), ("lakequeue_schedules_failing", "lakequeue_schedules_overdue")
    lake = LakeQueue(str(tmp_path / "root"), clock=clock)
    metrics = QueueMetrics(lake)

    def counted() -> list[float | None]:
        found = values(metrics)
        return [found.get((name,)) for name in names]

    for name in "gone", "late", "later", "paused":
        lake.create_queue(name)
        lake.schedules.add(name, name, "x", cron="0 * * * *")
    assert counted() == [0, 0]
    lake.delete_queue("gone")
    clock.advance(3600)
    lake.schedules.run_due()
    assert counted() == [1, 0]
    lake.schedules.pause("paused")
    clock.advance(3600 + 300)
    assert counted() == [1, 0], "not overdue yet"
    clock.advance(1)
    assert counted() == [1, 2]
    lake.create_queue("gone")
    lake.schedules.run_due()
    assert counted() == [0, 0]
    clock.advance(3600)
    lake.delete_queue("gone")
    lake.schedules.run_due()
    lake.schedules.pause("gone")
    assert counted() == [0, 0], "what is paused is not tried"

    other = LakeQueue(str(tmp_path / "torn"), clock=clock)
    other.create_queue("orders")
    other.schedules.add("nightly", "orders", "x", cron="0 * * * *")
    for file in Path(schedules_path(other.root)).glob("*.parquet"):
        file.write_bytes(b"torn")
    metrics = QueueMetrics(LakeQueue(other.root, clock=clock))
    assert counted() == [None, None] and "a scrape leaves the schedules out: " in caplog.text


@pytest.mark.usefixtures("unkept")
def test_metrics_leave_out_what_cannot_be_read(client: Client, root: Path) -> None:
    lake = LakeQueue(str(root))
    broken, whole = lake.create_queue("broken"), lake.create_queue("whole")
    whole.send("A")
    shutil.rmtree(messages_path(str(root), broken.key, 0))
    found = samples(client)
    assert found["lakequeue_queues_left_out",] == 1
    assert found["lakequeue_queue_messages", "whole", "visible"] == 1
    assert ("lakequeue_queue_messages", "broken", "visible") not in found

    root.rename(root.with_name("aside"))
    found = samples(client)
    assert found["lakequeue_storage_readable",] == 0
    assert not [key for key in found if key[0] == "lakequeue_queue_messages"]
    assert ("lakequeue_queue_sent_total", "whole") in found, "totals need no storage"
    root.with_name("aside").rename(root)
    assert samples(client)["lakequeue_storage_readable",] == 1


def test_a_scrape_leaves_out_what_it_has_no_time_for(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client("CreateQueue", QueueName="orders")
    monkeypatch.setattr(queue_metrics, "SCAN_SECONDS", -1.0)
    assert samples(client)["lakequeue_queues_left_out",] == 1


def values(metrics: QueueMetrics) -> Samples:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in metrics.collect()
        for sample in family.samples
    }


def test_totals_count_what_happened_to_messages(tmp_path: Path) -> None:
    clock = ManualClock()
    lake = LakeQueue(str(tmp_path / "queues"), clock=clock)
    letters = lake.create_queue("letters")
    policy = {"deadLetterTargetArn": "letters", "maxReceiveCount": 1}
    orders = lake.create_queue("orders", visibility_timeout=30, redrive_policy=policy, rewind_range=3600)
    orders.send_batch([SendEntry(body) for body in ("Zürich", "B", "C")])
    first, second = orders.receive(2)
    orders.change_visibility(first.receipt_handle, 60)
    orders.change_visibility(second.receipt_handle, 0)
    orders.delete(first.receipt_handle)
    for _ in range(2):
        orders.delete_batch([first.receipt_handle])  # nothing is left to delete
    assert orders.receive()[0].body == "C"  # and the second one, received once, is a dead letter now
    assert orders.receive() == []
    letters.redrive()
    orders.peek()
    found = values(QueueMetrics(lake))
    totals = {key[0]: value for key, value in found.items() if key[1:] == ("orders",) and "total" in key[0]}
    assert totals == {
        "lakequeue_queue_sent_total": 3,
        "lakequeue_queue_sent_bytes_total": len("ZürichBC".encode()),
        "lakequeue_queue_received_total": 3,
        "lakequeue_queue_received_bytes_total": len("ZürichBC".encode()),
        "lakequeue_queue_empty_receives_total": 1,
        "lakequeue_queue_deleted_total": 1,
        "lakequeue_queue_extended_total": 1,
        "lakequeue_queue_dead_lettered_total": 1,
        "lakequeue_queue_appended_total": 4,
    }
    assert found["lakequeue_queue_rewindable_messages", "orders"] == 1
    assert found["lakequeue_queue_dead_lettered_total", "letters"] == 0, "a redrive makes no dead letters"
    assert found["lakequeue_queue_dead_letter_sources", "letters"] == 1
    assert found["lakequeue_queue_dead_letter_sources", "orders"] == 0
    another = values(QueueMetrics(LakeQueue(lake.root, clock=clock)))
    assert another["lakequeue_queue_appended_total", "letters"] == 1, "whoever moved the dead letter"


def test_the_space_of_the_disk_is_served_even_if_the_catalog_cannot_be_read(tmp_path: Path) -> None:
    lake = LakeQueue(str(tmp_path / "queues"))
    lake.create_queue("orders")
    shutil.rmtree(tmp_path / "queues" / "queues")
    found = values(QueueMetrics(LakeQueue(lake.root)))
    assert found["lakequeue_storage_readable",] == 0
    assert 0 < found["lakequeue_storage_free_bytes",] < found["lakequeue_storage_size_bytes",]
    status = os.statvfs(tmp_path)
    for name in "size_files", "free_files":
        assert ((f"lakequeue_storage_{name}",) in found) == (status.f_files > 0)


def test_only_so_many_queues_have_labels_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    lake = LakeQueue(str(tmp_path / "queues"), clock=clock)
    queues = []
    for name in "z", "b", "a":
        queues.append(lake.create_queue(name))
        clock.advance(1)
    read: list[str] = []
    depth = queue_metrics.depth
    monkeypatch.setattr(queue_metrics, "depth", lambda queue: read.append(queue.name) or depth(queue))
    monkeypatch.setattr(queue_metrics, "READ_INTERVAL", 0.0)
    metrics = QueueMetrics(lake, queues=2)
    sent = "lakequeue_queue_sent_total"
    for queue in queues:
        queue.send("A")
    found = values(metrics)
    assert read == ["z", "b"], "the oldest queues; nothing is read of the rest"
    by_label = {key[1]: value for key, value in found.items() if key[0] == sent}
    assert by_label == {"z": 1, "b": 1, OTHER: 1}
    assert found["lakequeue_queues",] == 3 and found["lakequeue_queues_summed",] == 1
    lake.delete_queue("z")
    queues[2].send("B")
    found = values(metrics)
    by_label = {key[1]: value for key, value in found.items() if key[0] == sent}
    assert by_label == {"b": 1, "a": 1, OTHER: 1}, "sent before and after it had a label: neither total falls"
    assert not values(QueueMetrics(lake, queues=0)).keys() & {(sent, "a"), (sent, "b")}


def test_scrapes_in_quick_succession_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = LakeQueue(str(tmp_path / "queues"), clock=ManualClock())
    orders = lake.create_queue("orders")
    now = 0.0
    metrics = QueueMetrics(lake, now=lambda: now)
    read: list[str] = []
    depth = queue_metrics.depth
    monkeypatch.setattr(queue_metrics, "depth", lambda queue: read.append(queue.name) or depth(queue))
    values(metrics)
    orders.send("A")
    now = queue_metrics.READ_INTERVAL - 0.1
    found = values(metrics)
    assert found["lakequeue_queue_messages", "orders", "visible"] == 0 and len(read) == 1
    assert found["lakequeue_queue_sent_total", "orders"] == 1, "totals need no reading"
    now = queue_metrics.READ_INTERVAL
    assert values(metrics)["lakequeue_queue_messages", "orders", "visible"] == 1 and len(read) == 2


def test_looks_of_the_console_are_not_those_of_clients(client: Client) -> None:
    client("CreateQueue", QueueName="orders")
    client("SendMessage", QueueUrl=client.queue_url("orders"), MessageBody="A")
    console = f"{client.url}/console/api/queues/orders/messages"
    assert client.http.get(console).json()["messages"][0]["body"] == "A"
    assert client.http.get(f"{console}?state=none").status_code == 400
    found = samples(client)
    assert not [key for key in found if key[0].startswith("lakequeue_request") and "ReceiveMessage" in key]
    looks = {key[1:]: value for key, value in found.items() if key[0] == "lakequeue_console_requests_total"}
    assert looks == {("ReceiveMessage", "OK"): 1, ("ReceiveMessage", "InvalidParameterValue"): 1}
    for total in "received", "empty_receives":
        assert found[f"lakequeue_queue_{total}_total", "orders"] == 0


def test_each_request_is_a_line_of_json(root: Path) -> None:
    with ServerProcess(root) as server, client_of(server.url) as client:
        client("CreateQueue", QueueName="orders")
        sent = client.post("SendMessage", QueueUrl=client.queue_url("orders"), MessageBody="Zürich\n")
        client.http.get(f"{client.url}/health?secret=1")
        wait_until(lambda: len(server.lines()) == 3, "three lines")
        _, send, look = server.lines()
        assert send.pop("at").startswith("20") and send.pop("milliseconds") > 0
        assert send.pop("client").startswith("127.0.0.1:")
        assert send == {
            "request_id": sent.headers["x-amzn-RequestId"],
            "request": "POST /",
            "caller": "-",
            "action": "SendMessage",
            "queue": "orders",
            "status": 200,
            "code": "OK",
            "bytes_in": len(sent.request.content),
            "bytes_out": len(sent.content),
        }
        assert (look["request"], look["action"], look["request_id"]) == ("GET /health", "-", None)


def test_refused_requests_are_logged_and_counted_as_refused(client: Client, accesses: Accesses) -> None:
    assert client.http.post(client.url, headers={"Origin": "http://evil.example"}).status_code == 403
    assert client.http.post(client.url, headers={"Host": "evil.example"}).status_code == 403
    assert client.http.post(f"{client.url}/health").status_code == 415
    wait_until(lambda: len(accesses()) == 3, "three lines")
    codes = ["AccessDeniedException", "InvalidHost", "UnsupportedMediaType"]
    assert [line["code"] for line in accesses()] == codes
    found = samples(client)
    assert [found["lakequeue_requests_total", "-", code] for code in codes] == [1, 1, 1]


def test_nothing_of_a_request_breaks_a_line_of_the_log(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    name = 'x\n{"status": 200}\r\x1b[31m\u2028é' + "y" * 100_000
    with caplog.at_level(logging.INFO, "lakequeue.access"):
        assert client.post("GetQueueUrl", QueueName=name).status_code == 400
        assert client.http.post(f"{client.url}/a%0Ab{'z' * 10_000}").status_code == 415
        assert client.post(name[:40].replace("\n", "").replace("\r", "").encode().hex()).status_code == 400
        wait_until(lambda: len(caplog.records) >= 3, "three lines")
    lines = [record.getMessage() for record in caplog.records if record.name == "lakequeue.access"]
    assert [json.loads(line)["status"] for line in lines] == [400, 415, 400]
    assert all(len(line) < 10 * MAX_VALUE_LENGTH and line.isascii() and line.isprintable() for line in lines)
    named = json.loads(lines[0])
    assert named["queue"] == name[: MAX_VALUE_LENGTH - 3] + "..." and named["action"] == "GetQueueUrl"


def test_without_access_log_only_failures_are_logged_with_their_stack_if_asked_for(root: Path) -> None:
    with ServerProcess(root, "--no-access-log", before=("-v",)) as server, client_of(server.url) as client:
        client("CreateQueue", QueueName="orders")
        shutil.rmtree(root)
        answer = client.post("SendMessage", QueueUrl=client.queue_url("orders"), MessageBody="A")
        assert answer.status_code == 503 and str(root) not in answer.text
        wait_until(server.lines, "a line")
        [line] = server.lines()
        assert (line["level"], line["logger"]) == ("error", "lakequeue.serve")
        assert "SendMessage" in line["message"] and "Traceback" in line["stack"]


def test_an_exception_becomes_one_line() -> None:
    clock = ManualClock()
    try:
        raise ValueError("several\nlines é")
    except ValueError:
        record = logging.getLogger("lakequeue.serve").makeRecord(
            "lakequeue.serve", logging.ERROR, __file__, 1, "%s failed", ("SendMessage",), sys.exc_info()
        )
    text = JsonLines(clock).format(record)
    assert "\n" not in text and text.isascii()
    assert json.loads(text) == {
        "at": "2026-01-01T00:00:00.000+00:00",
        "level": "error",
        "logger": "lakequeue.serve",
        "message": "SendMessage failed",
        "error": "ValueError: several\nlines é",
    }
    stack = JsonLines(clock, stacks=True).format(record)
    assert "\n" not in stack and "Traceback" in json.loads(stack)["stack"]
