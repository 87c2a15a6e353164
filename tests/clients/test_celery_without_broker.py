"""Celery workers, and kombu alone, whose broker is a root."""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import kombu
import pytest
from kombu.exceptions import ChannelError, OperationalError

import lakequeue.integrations.celery  # noqa: F401  # makes kombu know lakequeue://
from clients.celery_workers import application, kill, seen_with_one_rejected, start, tasks_run, worker
from lakequeue import InvalidOptions, LakeQueue, UnsupportedOperation
from serve.serving import PATIENCE, wait_until

pytestmark = pytest.mark.clients

PREFIX = "celery-jobs-"


def broker(where: Path) -> str:
    return f"lakequeue:///{where / 'root'}"


def tasks(where: Path) -> Any:
    """The queue of the tasks."""
    return LakeQueue(str(where / "root")).queue(f"{PREFIX}celery")


def is_empty(where: Path) -> bool:
    counts = tasks(where).counts()
    return counts.visible + counts.in_flight == 0


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("celery")


@pytest.fixture(scope="module")
def jobs(where: Path) -> Iterator[Any]:
    """The application, for which a worker works."""
    with application(broker(where), where, visibility=2) as jobs, worker(where, "-E"):
        yield jobs


def test_tasks_run_and_are_tried_again(jobs: Any) -> None:
    tasks_run(jobs)


def test_a_task_with_a_countdown_waits_in_the_queue_not_in_a_worker(jobs: Any, where: Path) -> None:
    sent = time.time()
    result = jobs.when.apply_async(countdown=3)
    assert tasks(where).counts().delayed == 1
    assert result.get(PATIENCE) >= sent + 3


MALFORMED = {
    "text": "käse",
    "a number": "5",
    "a list": "[]",
    "no body": {"body": None},
    "a number as body": {"body": 5},
    "a body that is not ASCII": {"body": "é"},
    "binary data": {"body": "/wD+", "content-type": "application/data"},
    "a task that is a number": {"body": "NQ=="},
    "no arguments": {"body": "W10="},
    "headers that are a list": {"headers": []},
    "no id": {"headers": {"task": "celery_jobs.add"}},
    "no properties": {"properties": None},
    "an id that is half a character": {"headers": {"task": "nothing", "id": "\ud800"}},
    "an id that is too long": {"headers": {"task": "nothing", "id": "x" * 300}},
    "the first protocol without an id": {"headers": {}, "body": "eyJ0YXNrIjogIngifQ=="},
    "a delivery_info that is a text": {"properties": {"body_encoding": "base64", "delivery_info": "x"}},
    "an unknown encoding": {"properties": {"body_encoding": "rot13", "delivery_info": {}}},
    "an eta that is none": {"headers": {"task": "celery_jobs.add", "id": "1", "eta": "soon"}},
    **{
        f"{name} {value!r}": {"headers": {"task": "celery_jobs.add", "id": "1", name: value} | more}
        for name, value in [
            ("timelimit", 5),
            ("timelimit", ["a", "b"]),
            ("shadow", [1]),
            ("stamped_headers", [5, {}]),
            ("retries", []),
        ]
        for more in ({}, {"eta": "2001-01-01T00:00:00Z"})
    },
    "an unknown compression": {"headers": {"task": "celery_jobs.add", "id": "1", "compression": "rot13"}},
}


def malformed(change: Any) -> str:
    """A message of a task with a change that no worker can read."""
    if isinstance(change, str):
        return change
    whole = {
        "body": "W1tdLCB7fSwgbnVsbF0=",
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"task": "celery_jobs.add", "id": "1"},
        "properties": {"body_encoding": "base64", "delivery_info": {}, "delivery_tag": "1"},
    }
    return json.dumps(whole | change)


def test_a_worker_goes_on_after_malformed_messages(jobs: Any, where: Path) -> None:
    assert jobs.add.delay(1, 2).get(PATIENCE) == 3  # there is a worker
    for change in MALFORMED.values():
        tasks(where).send(malformed(change))
    assert jobs.add.delay(1, 2).get(PATIENCE) == 3
    wait_until(lambda: is_empty(where))
    assert jobs.add.delay(1, 2).get(PATIENCE) == 3


def test_a_worker_goes_on_after_ids_that_its_store_of_results_does_not_take(jobs: Any, where: Path) -> None:
    assert jobs.add.delay(1, 2).get(PATIENCE) == 3
    for task in "nothing", "celery_jobs.add":
        tasks(where).send(malformed({"headers": {"task": task, "id": "../x"}}))
    wait_until(lambda: is_empty(where))
    assert jobs.add.delay(1, 2).get(PATIENCE) == 3


def test_a_worker_goes_on_after_a_message_at_which_celery_itself_fails(jobs: Any, where: Path) -> None:
    """Its id is too long a file name for the store of results, in which Celery notes that the task has expired."""
    assert jobs.add.delay(1, 2).get(PATIENCE) == 3
    expired = {"task": "celery_jobs.add", "id": "x" * 250, "expires": "2001-01-01T00:00:00Z"}
    tasks(where).send(malformed({"headers": expired}))
    assert jobs.add.delay(1, 2).get(PATIENCE) == 3
    wait_until(lambda: is_empty(where))
    log = (where / "worker.log").read_text()
    assert log.count("is tried again: Celery cannot take it: OSError") == 2
    assert "is malformed: Celery cannot take it: OSError" in log
    assert jobs.add.delay(1, 2).get(PATIENCE) == 3


def test_a_worker_with_threads_goes_on_after_tasks_that_follow_and_lack_parts(tmp_path: Path) -> None:
    """Celery's threads never settle a task that fails if the tasks that follow have no parts, or wrong ones."""
    task = {"task": "celery_jobs.add"}
    follow = [task, task | {"options": [5]}, task | {"options": {"task_id": [5]}}, task | {"kwargs": 5}]
    with application(broker(tmp_path), tmp_path, visibility=2) as jobs, worker(tmp_path, "-P", "threads"):
        assert jobs.add.delay(1, 2).get(PATIENCE) == 3  # there is a worker
        for number, each in enumerate(follow):
            body = base64.b64encode(json.dumps([[1, 2], {}, {"chain": [each]}]).encode()).decode()
            tasks(tmp_path).send(malformed({"headers": {**task, "id": str(number)}, "body": body}))
        assert jobs.add.delay(1, 2).get(PATIENCE) == 3
        wait_until(lambda: is_empty(tmp_path))


AS_A_WORKER = {"__name__": "celery.worker.of_this_test"}
exec("def drain(connection): connection.drain_events(timeout=60)", AS_A_WORKER)
drain_as_a_worker: Any = AS_A_WORKER["drain"]


@pytest.mark.parametrize("no_ack", [False, True])
def test_an_error_in_a_worker_is_of_the_message_and_in_another_program_reaches_the_caller(
    connection: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, no_ack: bool
) -> None:
    queue, lake = kombu.Queue("q"), LakeQueue(str(tmp_path / "root"))
    dead = lake.create_queue("dead")
    lake.create_queue("q", redrive_policy={"deadLetterTargetArn": dead.arn, "maxReceiveCount": 3})
    connection.Producer().publish("a", routing_key="q")
    found: list[Any] = []

    def fail(message: Any) -> None:
        found.append(message)
        raise ZeroDivisionError

    with kombu.Consumer(connection, [queue], on_message=fail, accept=["text/plain"], no_ack=no_ack) as consumer:
        with pytest.raises(ZeroDivisionError):
            connection.drain_events(timeout=PATIENCE)
        if not no_ack:
            assert lake.queue("q").counts().in_flight == 1
            found[0].requeue()
            for _ in range(2):
                drain_as_a_worker(connection)
        else:
            connection.Producer().publish("a", routing_key="q")
            drain_as_a_worker(connection)
        connection.Producer().publish("good", routing_key="q")
        consumer.on_message = found.append
        drain_as_a_worker(connection)
        assert found[-1].payload == "good" and len(found) == 3 + (not no_ack)
        if not no_ack:
            found[-1].ack()
            wait_until(lambda: dead.counts().visible == 1)
    wait_until(lambda: not lake.queue("q").counts().visible + lake.queue("q").counts().in_flight)
    assert [each for each in caplog.messages if "ZeroDivisionError" in each and "is malformed" in each]


def test_a_compressed_task_is_not_malformed(jobs: Any) -> None:
    assert jobs.add.apply_async((1, 2), compression="gzip").get(PATIENCE) == 3


@pytest.mark.parametrize("change", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_message_is_deleted_with_one_line_or_becomes_a_dead_letter(
    connection: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Any
) -> None:
    lake = LakeQueue(str(tmp_path / "root"))
    dead = lake.create_queue("dead")
    policy = {"deadLetterTargetArn": dead.arn, "maxReceiveCount": 1}
    for queue in (lake.create_queue("plain"), lake.create_queue("kept", redrive_policy=policy)):
        queue.send(malformed(change))
        channel = connection.channel()
        while queue.counts().visible:
            assert channel.basic_get(queue.name) is None
        assert queue.counts().in_flight == 0
    assert [message.body for message in dead.receive(10, wait_time=0)] == [malformed(change)]
    told = [record.getMessage() for record in caplog.records if "malformed" in record.getMessage()]
    assert [line.split("; ")[-1] for line in told] == ["it is deleted", "it goes to the dead-letter queue"]


@pytest.mark.spec("VIS-4")
def test_a_task_whose_process_dies_comes_again_and_the_process_in_its_place_can_send(
    jobs: Any, tmp_path: Path
) -> None:
    """That one was forked from a worker that uses the queues; lakequeue itself does not survive that."""
    assert jobs.die_once.delay(str(tmp_path / "died")).get(PATIENCE) == "once more"
    for _ in range(4):  # both processes
        assert jobs.persist.delay("again").get(PATIENCE)["retries"] == 2


@pytest.mark.spec("HBN-4")
def test_a_task_that_outlives_its_visibility_timeout_runs_once(jobs: Any, where: Path, tmp_path: Path) -> None:
    jobs.note.delay(str(tmp_path / "ran"), "once", seconds=7).get(PATIENCE)
    wait_until(lambda: is_empty(where))
    assert lines(tmp_path / "ran") == ["once"]


def test_workers_answer_remote_control(jobs: Any) -> None:
    control = jobs.app.control
    assert jobs.add.delay(1, 2).get(PATIENCE) == 3  # there is a worker
    [answers] = control.inspect(timeout=PATIENCE, limit=1).stats().values()
    assert answers["pool"]["max-concurrency"] == 2
    assert control.add_consumer("more", reply=True, timeout=PATIENCE, limit=1)
    assert jobs.add.apply_async((1, 2), queue="more").get(PATIENCE) == 3
    assert control.cancel_consumer("more", reply=True, timeout=PATIENCE, limit=1)
    revoked = jobs.add.apply_async((1, 2), countdown=3)
    assert control.revoke(revoked.id, reply=True, timeout=PATIENCE, limit=1)
    assert jobs.add.delay(1, 2).get(PATIENCE) == 3


def test_events_of_workers_are_seen(jobs: Any) -> None:
    seen: list[str] = []
    with jobs.app.connection_for_read() as connection:
        receiver = jobs.app.events.Receiver(connection, handlers={"*": lambda event: seen.append(event["type"])})
        with receiver.consumer_context(wakeup=False) as (own, _, _):
            time.sleep(1.5)  # workers use what they read of bindings for a second
            jobs.add.delay(1, 2).get(PATIENCE)

            def succeeded() -> bool:
                with suppress(TimeoutError):
                    own.drain_events(timeout=0.2)
                return "task-succeeded" in seen

            wait_until(succeeded)
    assert {"task-received", "task-started"} <= set(seen)


def test_a_root_on_an_object_store_is_a_broker_too(s3_root: str, tmp_path: Path) -> None:
    address = f"lakequeue://{s3_root.replace('://', '/')}"
    with application(address, tmp_path, visibility=10) as jobs, worker(tmp_path):
        tasks_run(jobs)


def test_a_priority_is_refused_by_a_queue_without_priorities(jobs: Any) -> None:
    with pytest.raises(OperationalError, match="priority: queue celery was created without priorities"):
        jobs.add.apply_async((1, 2), priority=3)


@pytest.mark.spec("JOB-5")
@pytest.mark.parametrize("top", [2, 10])
def test_urgent_tasks_overtake(tmp_path: Path, top: int) -> None:
    declared = kombu.Queue("urgent", kombu.Exchange("urgent"), "urgent", max_priority=top)
    with kombu.Connection(broker(tmp_path), transport_options={"queue_name_prefix": PREFIX}) as connection:
        with connection.Producer() as producer:
            for priority in (None, 1, 99, 0, 2):
                producer.publish(
                    priority, routing_key="urgent", exchange="urgent", declare=[declared], priority=priority
                )
        queue = LakeQueue(str(tmp_path / "root")).queue(f"{PREFIX}urgent")
        assert queue.attributes(["priorities"]) == {"priorities": min(top + 1, 10)}
        queue.set_attributes(priorities_strict=True)
        received = [queue.receive()[0].priority for _ in range(5)]
    assert received == [min(top, 9), 2, 1, 0, 0]


def test_a_worker_that_acknowledges_early_lets_go_of_a_task_when_it_begins(tmp_path: Path) -> None:
    with application(broker(tmp_path), tmp_path, visibility=5, EARLY="1") as jobs, worker(tmp_path):
        running = jobs.note.delay(str(tmp_path / "ran"), "here", seconds=5)
        wait_until(lambda: lines(tmp_path / "ran") and is_empty(tmp_path))
        assert not running.ready()
        running.get(PATIENCE)


def test_a_stopped_worker_finishes_running_tasks_and_hands_back_the_others(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    with application(broker(tmp_path), tmp_path, visibility=600) as jobs:
        with worker(tmp_path, "-c", "1", "--prefetch-multiplier", "4") as process:
            results = [jobs.note.delay(str(ran), number, seconds=3) for number in range(4)]
            wait_until(lambda: lines(ran))
        assert process.returncode == 0
        done = sum(result.ready() for result in results)
        assert 1 <= done <= 3 and len(lines(ran)) == done
    counts = tasks(tmp_path).counts()
    assert (counts.visible, counts.in_flight) == (4 - done, 0)


@pytest.mark.parametrize("seconds", [5, pytest.param(60, marks=pytest.mark.long)])
def test_a_worker_waits_while_storage_is_away(tmp_path: Path, seconds: float) -> None:
    root, away, ran = tmp_path / "root", tmp_path / "away", tmp_path / "ran"
    with (
        application(broker(tmp_path), tmp_path, visibility=2 * seconds) as jobs,
        worker(tmp_path) as process,
    ):
        assert jobs.add.delay(1, 2).get(PATIENCE) == 3
        across = jobs.note.delay(str(ran), "across", seconds=seconds / 2)
        wait_until(lambda: lines(ran))
        root.rename(away)
        time.sleep(seconds)
        assert not root.exists()
        away.rename(root)
        assert jobs.add.delay(2, 3).get(PATIENCE) == 5
        across.get(PATIENCE)
        wait_until(lambda: is_empty(tmp_path))
        assert process.poll() is None
    assert lines(ran) == ["across"]


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(1200)])])
def test_workers_that_are_killed_lose_no_task(tmp_path: Path, kills: int) -> None:
    """Two workers, of which one or the other is killed while tasks run, and tasks arrive meanwhile."""
    ran, rng = tmp_path / "ran", random.Random(kills)
    sent: list[str] = []
    with application(broker(tmp_path), tmp_path, visibility=3) as jobs:
        workers = [start(tmp_path, "-n", f"w{number}@here") for number in range(2)]
        stop = threading.Event()

        def send() -> None:
            while not stop.wait(0.05):
                jobs.note.delay(str(ran), f"t{len(sent)}", seconds=0.1)
                sent.append(f"t{len(sent)}")

        sending = threading.Thread(target=send)
        sending.start()
        try:
            for number in range(kills):
                before = len(lines(ran))
                wait_until(lambda before=before: len(lines(ran)) > before + 10)
                time.sleep(rng.uniform(0, 1))
                one = rng.randrange(2)
                kill(workers[one])
                workers[one] = start(tmp_path, "-n", f"w{one}x{number}@here")
            stop.set()
            sending.join()
            wait_until(lambda: set(lines(ran)) >= set(sent) and is_empty(tmp_path))
        finally:
            stop.set()
            for process in workers:
                kill(process)
    again = sum(times - 1 for times in Counter(lines(ran)).values())
    print(f"{len(sent)} tasks, {kills} kills, {again} runs more than once")
    assert set(lines(ran)) == set(sent)


# --- kombu alone


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Any]:
    with kombu.Connection(broker(tmp_path)) as connection:
        yield connection


def received(connection: Any, *queues: Any, number: int, **options: Any) -> list[Any]:
    """The bodies of messages that come from queues."""
    found: list[Any] = []

    def keep(body: Any, message: Any) -> None:
        found.append(body)
        message.ack()

    with kombu.Consumer(connection, list(queues), callbacks=[keep], **options):
        while len(found) < number:
            connection.drain_events(timeout=PATIENCE)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.2)
    return found


def test_kombu_delivers_what_is_acknowledged_once_and_what_is_rejected_again(connection: Any) -> None:
    queue = connection.SimpleQueue("a queue.of@any-name")
    rejected, *seen = seen_with_one_rejected(queue)
    for message in seen:
        assert message.delivery_info["redelivered"] == (message.payload == rejected.payload)
    wait_until(lambda: queue.qsize() == 0)
    queue.close()


@pytest.mark.parametrize(
    ("kind", "keys", "arrive"),
    [("direct", ["a", "b"], [1, 1]), ("topic", ["a.*", "#"], [1, 2]), ("fanout", ["", ""], [2, 2])],
)
def test_exchanges_of_other_processes_are_known(
    connection: Any, kind: str, keys: list[str], arrive: list[int]
) -> None:
    exchange = kombu.Exchange(f"of-{kind}", type=kind)
    queues = [kombu.Queue(f"{kind}-{key}-{place}", exchange, key) for place, key in enumerate(keys)]
    for queue in queues:
        queue(connection.default_channel).declare()
    with connection.clone() as other:  # which has not declared the queues
        producer = other.Producer(exchange=exchange)
        for key in ("a.x", "b.x") if kind == "topic" else ("a", "b"):
            producer.publish({"key": key}, routing_key=key)
    assert [len(received(connection, queue, number=n)) for queue, n in zip(queues, arrive, strict=True)] == arrive


def test_what_is_acknowledged_in_one_queue_stays_in_another(connection: Any, tmp_path: Path) -> None:
    exchange = kombu.Exchange("all", type="fanout")
    queues = [kombu.Queue(name, exchange) for name in ("one", "two")]
    found: dict[str, Any] = {}
    consumers = [
        kombu.Consumer(connection, [queue], accept=["json"], on_message=partial(found.__setitem__, queue.name))
        for queue in queues
    ]
    with consumers[0], consumers[1]:
        connection.Producer(exchange=exchange).publish("to both")
        while len(found) < 2:
            connection.drain_events(timeout=PATIENCE)
        found["two"].ack()
        lake = LakeQueue(str(tmp_path / "root"))
        wait_until(lambda: lake.queue("two").counts().in_flight == 0)
        assert lake.queue("one").counts().in_flight == 1
    connection.release()
    assert lake.queue("one").counts().visible == 1


def test_no_more_is_held_than_the_prefetch_count(connection: Any, tmp_path: Path) -> None:
    queue = kombu.Queue("q")
    producer = connection.Producer()
    for number in range(10):
        producer.publish(number, routing_key="q", declare=[queue])
    held: list[Any] = []
    lake = LakeQueue(str(tmp_path / "root")).queue("q")
    with kombu.Consumer(
        connection, [queue], on_message=held.append, prefetch_count=3, accept=["json"]
    ) as consumer:
        for number in (3, 5):
            consumer.qos(prefetch_count=number)
            while len(held) < number:
                connection.drain_events(timeout=PATIENCE)
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=0.3)
            assert lake.counts().in_flight == number
    connection.release()
    assert lake.counts().visible == 10


@pytest.mark.parametrize("end", ["close", "cancel"])
def test_what_was_received_but_not_delivered_is_handed_back_and_delivered_once(
    connection: Any, tmp_path: Path, end: str
) -> None:
    """Two channels of a connection, of which the first ends what it consumes when it has one message of five."""
    queue = kombu.Queue("q")
    for number in range(5):
        connection.Producer().publish(number, routing_key="q", declare=[queue])
    lake = LakeQueue(str(tmp_path / "root")).queue("q")
    held: list[Any] = []
    first = connection.channel()
    consumer = kombu.Consumer(first, [queue], on_message=held.append, prefetch_count=5, accept=["json"])
    consumer.consume()
    connection.drain_events(timeout=PATIENCE)
    wait_until(lambda: lake.counts().in_flight == 5)
    consumer.cancel() if end == "cancel" else first.close()
    wait_until(lambda: lake.counts().visible == (4 if end == "cancel" else 5))
    if end == "cancel":
        held[0].ack()
    bodies = received(connection, queue, number=4 if end == "cancel" else 5)
    assert sorted([held[0].payload, *bodies] if end == "cancel" else bodies) == [0, 1, 2, 3, 4]
    wait_until(lambda: lake.counts().visible + lake.counts().in_flight == 0)


def test_two_channels_of_a_connection_consume_from_a_queue(connection: Any, tmp_path: Path) -> None:
    queue, found = kombu.Queue("q"), []
    channels = [connection.channel() for _ in range(2)]
    with (
        kombu.Consumer(channels[0], [queue], on_message=found.append, prefetch_count=2, accept=["json"]),
        kombu.Consumer(channels[1], [queue], on_message=found.append, prefetch_count=2, accept=["json"]) as other,
    ):
        for number in range(4):
            connection.Producer().publish(number, routing_key="q")
        while len(found) < 4:
            connection.drain_events(timeout=PATIENCE)
        assert [message.channel for message in found].count(channels[0]) == 2
        other.cancel()
        for message in found:
            message.ack()
        lake = LakeQueue(str(tmp_path / "root")).queue("q")
        wait_until(lambda: lake.counts().in_flight == 0)
    assert lake.counts().visible == 0


def test_a_queue_that_was_deleted_and_made_again_is_read(connection: Any, tmp_path: Path) -> None:
    queue = kombu.Queue("q")(connection.default_channel)
    queue.declare()
    assert queue.get() is None
    lake = LakeQueue(str(tmp_path / "root"))
    lake.delete_queue("q")
    lake.create_queue("q")
    assert queue.get() is None
    connection.Producer().publish("a", routing_key="q")
    assert queue.get().payload == "a"


def test_a_root_that_another_process_makes_is_seen(connection: Any, tmp_path: Path) -> None:
    queue = kombu.Queue("q")(connection.default_channel)
    LakeQueue(str(tmp_path / "root")).create_queue("q")
    assert queue.queue_declare(passive=True).queue == "q"


def test_a_message_is_sent_while_another_queue_is_deleted(connection: Any, tmp_path: Path) -> None:
    exchange, root = kombu.Exchange("e", type="topic"), str(tmp_path / "root")
    queue = kombu.Queue("q", exchange, "#")(connection.default_channel)
    queue.declare()
    LakeQueue(root).create_queue("going")
    broker = connection.transport.broker
    queues = broker._lake.list_queues()
    LakeQueue(root).delete_queue("going")
    with pytest.MonkeyPatch.context() as patch:  # they are listed before one goes
        patch.setattr(broker._lake, "list_queues", lambda *_: queues)
        connection.Producer(exchange=exchange).publish("a", routing_key="a", retry=False)
    assert queue.get().payload == "a"


@pytest.mark.parametrize("length", [105, 106, 255])
def test_an_exchange_may_have_a_long_name(connection: Any, length: int) -> None:
    exchanges = [kombu.Exchange("e" * (length - 1) + last) for last in "xy"]
    queues = [kombu.Queue(exchange.name[-1], exchange, "k")(connection.default_channel) for exchange in exchanges]
    for queue in queues:
        queue.declare()
    connection.Producer(exchange=exchanges[1]).publish("a", routing_key="k")
    assert [queue.get() is None for queue in queues] == [True, False]


def test_a_binding_beyond_the_limits_is_refused(connection: Any, tmp_path: Path) -> None:
    exchange, channel = kombu.Exchange("ex"), connection.default_channel
    with pytest.raises(UnsupportedOperation, match=r"exchange 'ex' with routing key 'k{300}'.* 256 characters"):
        kombu.Queue("q", exchange, "k" * 300)(channel).declare()
    LakeQueue(str(tmp_path / "root")).queue("q").set_tags({str(number): "" for number in range(50)})
    with pytest.raises(UnsupportedOperation, match=r"queue q .* exchange 'ex' with routing key 'k'.* at most 50"):
        kombu.Queue("q", exchange, "k")(channel).declare()


def test_queues_are_declared_purged_and_deleted(connection: Any) -> None:
    queue = kombu.Queue("q", durable=False)(connection.default_channel)
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        queue.queue_declare(passive=True)
    assert queue.declare() == "q"
    connection.Producer().publish("a", routing_key="q")
    assert queue.queue_declare(passive=True).message_count == 1
    assert queue.purge() == 1
    assert queue.get() is None
    connection.Producer().publish("b", routing_key="q")
    queue.get().requeue()
    assert queue.get().payload == "b"
    queue.delete()
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        queue.queue_declare(passive=True)


def test_a_task_beyond_the_longest_delay_is_delayed_as_long_as_can_be(connection: Any, tmp_path: Path) -> None:
    connection.Producer().publish(
        "a", routing_key="q", declare=[kombu.Queue("q")], headers={"task": "t", "eta": "2999-01-01T00:00:00+00:00"}
    )
    counts = LakeQueue(str(tmp_path / "root")).queue("q").counts()
    assert (counts.visible, counts.delayed) == (0, 1)


def test_a_queue_that_its_owner_declared_and_left_is_gone(connection: Any, tmp_path: Path) -> None:
    with connection.clone() as owner:
        received(owner, kombu.Queue("replies", auto_delete=True), number=0)
        assert LakeQueue(str(tmp_path / "root")).list_queues()
    assert not LakeQueue(str(tmp_path / "root")).list_queues()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"visibilty_timeout": 5}, "visibilty_timeout is unknown; did you mean visibility_timeout?"),
        ({"visibility_timeout": -1}, "visibility_timeout"),
        ({"visibility_timeout": "soon"}, "visibility_timeout"),
        ({"storage_options": {"AWS_REGION": 5}}, "storage_options"),
        ({"durability": "none"}, "durability"),
        ({"queue_attributes": {"shard": 2}}, "queue_attributes"),
    ],
)
def test_a_wrong_option_is_named(tmp_path: Path, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidOptions) as refused:
        kombu.Connection(broker(tmp_path), transport_options=options).connect()
    assert problem in str(refused.value)
    assert not (tmp_path / "root").exists()


def test_an_address_without_a_root_is_refused() -> None:
    with pytest.raises(InvalidOptions, match="broker_url: lakequeue:// names no root"):
        kombu.Connection("lakequeue://").connect()


def test_storage_options_are_not_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    options = {"storage_options": {"AWS_SECRET_ACCESS_KEY": "not-to-be-shown"}}
    with kombu.Connection(broker(tmp_path), transport_options=options) as connection:
        connection.SimpleQueue("q").put("a")
        shown = [
            repr(connection),
            connection.as_uri(),
            repr(connection.transport),
            repr(connection.transport.broker),
        ]
    assert "not-to-be-shown" not in "".join([*shown, caplog.text])


FORKS = """
import os, sys
import kombu
import lakequeue.integrations.celery

def connected():
    return kombu.Connection(sys.argv[1])

with connected() as connection, kombu.Consumer(connection, [kombu.Queue("q")], on_message=print):
    child = os.fork()
    if child:
        sys.exit(os.waitpid(child, 0)[1])
    with connected() as other:
        queue = other.SimpleQueue("q")
        for receive in (lambda: queue.get(block=False), queue.consumer.consume):
            try:
                receive()
            except lakequeue.errors.UnsupportedOperation as error:
                print(error, flush=True)
    os._exit(0)
"""


def test_a_forked_process_says_that_it_cannot_receive(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKS, broker(tmp_path)]
    done = subprocess.run(command, text=True, capture_output=True, timeout=PATIENCE)
    assert done.stdout.count("a process that was forked from a worker can send, but not receive") == 2, done
