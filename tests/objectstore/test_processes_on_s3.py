"""Processes on S3 that are killed and stopped anywhere; a server, and the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
import typer.main
from deltalake import write_deltalake
from typer.testing import CliRunner

from command_table import COMMANDS
from concurrency.processes import SOAK_SECONDS, Workers, anchor, soak, stopped_again_and_again
from lakequeue import Consumer, LakeQueue, SendEntry
from lakequeue.cli import app
from objectstore.servers import Bucket
from serve.serving import ServerProcess, sqs

pytestmark = pytest.mark.objectstore


@pytest.fixture
def workers(s3_root: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Workers]:
    """A queue with as many shards as the test needs."""
    queue = LakeQueue(s3_root, engine="point").create_queue("orders", shards=request.param)
    anchor(queue)
    workers = Workers(tmp_path / "root", queue, uri=s3_root)
    yield workers
    workers.end()


@pytest.mark.spec("RCV-15", "QUE-33", "DLT-7")
@pytest.mark.parametrize("workers", [1, 4], indirect=True, ids=["one shard", "four shards"])
@pytest.mark.parametrize(("seconds", "kill"), [pytest.param(10, 0.3, id="short"), soak(SOAK_SECONDS, 0.1)])
def test_processes_that_are_stopped_and_killed(workers: Workers, seconds: float, kill: float) -> None:
    summary = stopped_again_and_again(workers, seconds, kill)
    print(summary, f"stopped {workers.stopped} times, killed {workers.killed} times")
    assert workers.stopped > (seconds / 6 if seconds > 60 else 0)
    assert min(summary.sent, summary.received, summary.deleted) > max(5, seconds / 10), summary


@pytest.mark.spec("SND-17", "DEL-2")
def test_a_server_keeps_what_it_said_though_it_is_killed(s3_root: str, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "root", uri=s3_root) as server:
        client = sqs(server.url)
        url = client.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "600"})["QueueUrl"]
        sent = [client.send_message(QueueUrl=url, MessageBody=body)["MessageId"] for body in "abc"]
        [first] = client.receive_message(QueueUrl=url)["Messages"]
        client.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
        server.kill()
        server.start()
        left = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
        assert {message["MessageId"] for message in [first, *left]} == set(sent)
        assert [message["Body"] for message in left] == ["b", "c"]
        assert client.list_queues()["QueueUrls"] == [url]
    assert "Traceback" not in server.errors()


def test_the_console_shows_a_queue_on_s3(s3_root: str, tmp_path: Path) -> None:
    queue = LakeQueue(s3_root).create_queue("orders", rewind_range=3_600)
    queue.send("a")
    queue.send("b")
    queue.delete(queue.receive()[0].receipt_handle)
    with ServerProcess(tmp_path / "root", uri=s3_root) as server, httpx.Client(trust_env=False) as http:

        def get(path: str) -> Any:
            answer = http.get(f"{server.url}/{path}")
            assert answer.status_code == 200, answer.text
            return answer.json()

        [row] = get("console/api/queues")["queues"]
        assert row["name"] == "orders"
        assert [message["body"] for message in get("console/api/queues/orders/messages")["messages"]] == ["b"]
        assert [message["body"] for message in get("console/api/queues/orders/history")["messages"]] == ["a"]
        assert get("console/api/queues/orders/points")["points"]
        assert http.get(f"{server.url}/health").status_code == 200
    assert "Traceback" not in server.errors()


def test_every_command_works_on_a_root_that_options_lead_to(s3_server: Bucket, tmp_path: Path) -> None:
    root = s3_server.new_root()
    options = [f"--storage-option={name}={value}" for name, value in s3_server.options.items()]
    used: set[str] = set()

    def run(verb: str, *words: str, input: str | None = None, refused: bool = False) -> Any:
        used.add(verb)
        done = CliRunner().invoke(app, ["--root", root, *options, "--json", verb, *words], input=input)
        assert (done.exit_code, done.stderr) == (0, "") or (refused and done.exit_code == 1), (verb, words, done)
        return json.loads(done.stdout) if done.stdout.strip() else None

    run("create", "dead")
    run("create", "orders", "--attribute", "rewind_range=3600")
    run("set", "orders", "--dead-letter-queue", "dead", "--max-receive-count", "1")
    run("tag", "orders", "team=a", "site=b")
    run("untag", "orders", "site")
    assert run("show", "orders")["tags"] == {"team": "a"}
    assert [queue["name"] for queue in run("list")] == ["dead", "orders"]
    (tmp_path / "lines").write_text("a\nb\nc\n")
    run("send", "orders", "--lines", str(tmp_path / "lines"))
    a, b = run("receive", "orders", "--max", "2")
    assert len(run("consumers", "orders")) == 1
    run("delete", "orders", a["receipt_handle"])
    run("change-visibility", "orders", b["receipt_handle"], "0")
    assert [message["body"] for message in run("receive", "orders", "--max", "2")] == ["c"]  # b was moved
    assert [message["body"] for message in run("peek", "dead")] == ["b"]
    run("redrive", "dead", "--yes")
    assert run("rewind", "orders", "--ago", "3000", "--yes")
    assert {message["body"] for message in run("peek", "orders")} == {"a", "b", "c"}
    assert run("counts", "orders")["visible"] == 2
    assert all(summary["failures"] == [] for summary in run("compact"))
    run("plot", "orders")
    run("watch", "orders", "--count", "1")
    assert run("export", "orders", "--out", str(tmp_path / "exported"))["messages"] == 3
    run("drain", "orders", "dead", "--yes")
    assert run("counts", "dead")["visible"] == 2
    run("pause", "dead")
    assert run("receive", "dead") == []
    run("resume", "dead")
    run("reschedule", "dead", run("peek", "dead")[0]["message_id"], "--in", "0s")
    run("schedule", "add", "nightly", "--queue", "dead", "--body", "x", "--at", "1m ago")
    assert run("schedule", "run", "--once") == {"messages": 1}
    run("cancel", "dead", run("peek", "dead")[0]["message_id"])
    run("upgrade", "--yes")
    run("check")
    run("doctor")
    run("repair", "--all", "--yes")
    run("copy", root, s3_server.new_root(), *(option.replace("--", "--to-", 1) for option in options))
    run("erase", "dead", run("peek", "dead")[0]["message_id"], "--yes")
    run("purge", "orders", "--yes")
    table = s3_server.new_root()
    write_deltalake(table, pa.table({"id": [1]}), storage_options=s3_server.options)
    assert run("relay", table, "dead", "--once", "--start", "0")
    tried = [each.format(root=root, name="x").split() for each in COMMANDS]
    for command, *words in (each for each in tried if each[0] not in {*used, "consume", "deploy-files", "-v"}):
        run(command, *(word.replace("&", " ") for word in words), refused=True)
    run("delete-queue", "orders", "--yes")
    assert [queue["name"] for queue in run("list")] == ["dead"]
    group: Any = typer.main.get_command(app)
    assert group.commands.keys() - used == {"serve", "demo", "consume", "deploy-files"}


@pytest.mark.spec("JOB-9")
def test_a_consumer_of_several_queues_works_them_all_off(lq: LakeQueue) -> None:
    queues = [lq.create_queue(name) for name in ("orders", "other")]
    for queue in queues:
        queue.send_batch([SendEntry(str(number)) for number in range(50)])
    seen: list[tuple[str, str]] = []
    handler = Consumer(queues, lambda message, context: seen.append((context.queue.name, message.body)))
    handler.run(until_empty=True)
    assert sorted(seen) == sorted((queue.name, str(number)) for queue in queues for number in range(50))
    assert [queue.counts().in_flight for queue in queues] == [0, 0]
