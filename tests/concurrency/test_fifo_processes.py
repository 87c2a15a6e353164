"""Real processes on one FIFO queue, on the system's clock; their diaries must agree with the tables."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from concurrency.fifo_history import Claims, History, Row, fifo_rows, judge_claims
from concurrency.harness import PLACES, application_id, at_once, check_log
from concurrency.processes import SOAK_SECONDS, Workers
from lakequeue import LakeQueue
from lakequeue.storage import layout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKER = Path(__file__).with_name("fifo_worker.py")
SENDERS = 16

Events = list[dict[str, Any]]


@attrs.define
class FifoWorkers(Workers):
    """The workers of one test on a FIFO queue, and their ledger."""

    history: History = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.history = History.of(self.queue)

    def start(self, name: str, engine: str = "point", pause: float = 0) -> None:
        self.begin(name, WORKER, "work", self.place, engine, name, self.diary(name), self.stop_file, pause)

    def start_senders(self, name: str, go: Path) -> None:
        self.begin(name, WORKER, "send", self.place, "point", self.diary(name), go, SENDERS)

    def kill_again_and_again(self, seconds: float, *, through_spark: float = 0, pause: float = 0) -> None:
        """Starts workers one after another and kills each during its work, at least two."""
        chance, until = random.Random(4), time.monotonic() + seconds
        life = 0
        while time.monotonic() < until or self.killed < 2:
            life += 1
            engine = "spark" if chance.random() < through_spark else "point"
            self.start(f"mortal{life}", engine, pause)
            self.wait_until_ready(f"mortal{life}", 300)
            if life % 2 == 0 and not pause:  # beside a busy process a first answer takes seconds
                self.run(0, 60, {f"mortal{life}": 3})
                assert self.done(f"mortal{life}", 3), f"mortal{life} gets nowhere"
            time.sleep(chance.uniform(5, 15) if engine == "spark" else chance.uniform(0.3, 2))
            self.kill(f"mortal{life}")
            self.history.follow()  # the log of the ledger is kept for ten minutes only


@pytest.fixture
def workers(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[FifoWorkers]:
    root = tmp_path / "root"
    on_s3 = getattr(request, "param", "disk") == "s3"
    uri = request.getfixturevalue("s3_root") if on_s3 else None
    queue = LakeQueue(uri or str(root)).create_queue("orders.fifo", fifo=True)
    # held to the end: keeps the floor at 0, so that no row of the log is dropped before it was checked
    queue.send("test:anchor:0", group_id="anchor", dedup_id="anchor")
    assert [message.body for message in queue.receive(visibility_timeout=43_200)] == ["test:anchor:0"]
    workers = FifoWorkers(root, queue, uri=uri)
    yield workers
    workers.end()


@pytest.mark.spec(
    "FIF-1", "FIF-3", "FIF-4", "FIF-13", "SND-8", "SND-10", "DDP-1", "DDP-2", "DDP-8", "ATT-1", "ATT-3"
)
@pytest.mark.parametrize("workers", PLACES, indirect=True)
def test_two_processes_of_which_one_is_killed_again_and_again(workers: FifoWorkers) -> None:
    workers.start("steady")
    workers.wait_until_ready("steady")
    workers.kill_again_and_again(4)
    workers.stop()
    summary = judge(workers)
    print(summary, f"killed {workers.killed} times")
    assert min(summary.sent, summary.repeated, summary.received, summary.deleted) > 5, summary
    assert min(summary.by_several, summary.retries, summary.changed, summary.merges) > 0, summary


@pytest.mark.long
@pytest.mark.timeout(SOAK_SECONDS + 600)
@pytest.mark.parametrize("engine", ["point", pytest.param("spark", marks=pytest.mark.spark)])
@pytest.mark.spec(
    "FIF-1", "FIF-3", "FIF-4", "FIF-13", "SND-8", "SND-10", "DDP-1", "DDP-2", "DDP-8", "ATT-1", "ATT-3"
)
def test_ten_minutes_with_one_process_killed_again_and_again(workers: FifoWorkers, engine: str) -> None:
    if engine == "spark":
        workers.start("spark", "spark")
        workers.wait_until_ready("spark", 300)
        # a ledger that changes many times a second leaves no room for a MERGE of Spark, which takes a second
        workers.start("steady", pause=4)
        workers.kill_again_and_again(SOAK_SECONDS, through_spark=0.05, pause=1)
    else:
        workers.start("steady")
        workers.kill_again_and_again(SOAK_SECONDS)
    workers.stop()
    summary = judge(workers)
    print(summary, f"killed {workers.killed} times")
    assert workers.killed > SOAK_SECONDS * 78 / 600
    assert engine == "point" or workers.done("spark", 1)
    assert min(summary.by_several, summary.retries, summary.changed, summary.merges) > 0, summary
    assert min(summary.sent, summary.received, summary.deleted) > SOAK_SECONDS / 10, summary


@pytest.mark.spark
@pytest.mark.spec("DDP-10", "DDP-8", "SND-17")
def test_sixteen_threads_through_spark_and_a_process_beside_them_send_one_id(
    workers: FifoWorkers, spark: SparkSession
) -> None:
    queue = LakeQueue(str(workers.root), spark=spark, engine="spark").queue("orders.fifo")
    go = workers.root.parent / "go"
    workers.start_senders("beside", go)
    workers.wait_until_ready("beside")

    def send(number: int) -> tuple[str, str | None]:
        go.touch()
        result = queue.send(f"here:{number}", group_id=f"g{number}", dedup_id="one")
        return result.message_id, result.sequence_number

    answers = at_once([lambda number=number: send(number) for number in range(SENDERS)], 120)
    workers.stop()
    answers += _answers_for_one_id(workers)
    assert len(answers) == 2 * SENDERS
    assert len(set(answers)) == 1


def _answers_for_one_id(workers: FifoWorkers) -> list[tuple[str, str]]:
    """The answers to the processes, after checking that the log has the message once."""
    sent = [event for events in workers.events() for event in events if event["event"] == "sent"]
    stored = [row for row in fifo_rows(workers.queue) if row.dedup_id == "one"]
    check_log(workers.queue)
    assert [row.message_id for row in stored] == sorted({event["message_id"] for event in sent})
    return [(event["message_id"], event["sequence"]) for event in sent]


@attrs.frozen
class Summary:
    """How often each kind of event took place."""

    sent: int
    repeated: int
    """Answers that name a message of an earlier send."""
    by_several: int
    """Deduplication ids for which several processes got an answer."""
    received: int
    retries: int
    overtaken: int
    changed: int
    deleted: int
    merges: int


def judge(workers: FifoWorkers) -> Summary:
    """Drains the queue, then compares the diaries with each other and with the tables."""
    diaries = [*workers.events(), _drain(workers)]
    check_log(workers.queue)
    rows = fifo_rows(workers.queue)
    claims = judge_claims(workers.history.follow(), rows)

    acknowledged, by_several = _judge_sends(diaries, rows)
    received = sum(_judge_receives(events, rows, claims) for events in diaries)
    _judge_deletes([event for events in diaries for event in events], rows, claims)
    _judge_order(diaries, rows)

    kinds: defaultdict[str, int] = defaultdict(int)
    for event in (event for events in diaries for event in events):
        kinds[event["event"]] += event.get("done", True)
    return Summary(
        sent=len(set(acknowledged)),
        repeated=len(acknowledged) - len(set(acknowledged)),
        by_several=by_several,
        received=received,
        retries=claims.retries,
        overtaken=claims.overtaken,
        changed=kinds["changed"],
        deleted=kinds["deleted"],
        merges=application_id(workers.queue, layout.FILES_ID),
    )


def _judge_sends(diaries: list[Events], rows: list[Row]) -> tuple[list[str], int]:
    """Each id is stored once, and every process got that message as its answer."""
    attempted = {
        tuple(entry) for events in diaries for e in events if e["event"] == "send" for entry in e["entries"]
    }
    holder = {row.dedup_id: row for row in rows}
    assert len(holder) == len(rows), "a deduplication id is stored twice"
    assert {(row.body, row.dedup_id) for row in rows} <= attempted | {("test:anchor:0", "anchor")}
    acknowledged: list[str] = []
    askers: defaultdict[str, set[int]] = defaultdict(set)
    for number, events in enumerate(diaries):
        for event in (event for event in events if event["event"] == "sent"):
            for body, dedup_id, message_id, _ in event["answers"]:
                assert dedup_id in holder, f"an acknowledged send is missing: {body} {dedup_id}"
                assert message_id == holder[dedup_id].message_id, f"another message id for {body} {dedup_id}"
                acknowledged.append(dedup_id)
                askers[dedup_id].add(number)
    return acknowledged, sum(len(numbers) > 1 for numbers in askers.values())


def _judge_receives(events: Events, rows: list[Row], claims: Claims) -> int:
    """Each answer is a claim in the ledger, in order; retries returned the same claim while it was live."""
    place = {row.message_id: row for row in rows}
    attempts: dict[str, dict[str, Any]] = {}
    received = 0
    for event in (event for event in events if event["event"] == "got"):
        messages = event["messages"]
        for body, receipt, _, group, message_id, _ in messages:
            row = place[message_id]
            assert (body, group, _offset_of(receipt)) == (row.body, row.group, row.offset)
        offsets = [_offset_of(message[1]) for message in messages]
        groups = [message[3] for message in messages]
        assert all(a < b for (a, g), (b, h) in pairwise(zip(offsets, groups, strict=True)) if g == h)
        assert len(list(dict.fromkeys(groups))) == sum(a != b for a, b in pairwise([None, *groups])), (
            "mixed groups"
        )
        if messages:
            claim = claims.by_answer[_lease_of(messages[0][1]), event["received_at"]]
            assert (claim.offsets, claim.visible_at) == (frozenset(offsets), event["visible_at"])
            received += len(messages)
        before = attempts.get(event["attempt"])
        if before is not None:
            _judge_retry(before, event)
        if event["attempt"] is not None and messages:
            attempts[event["attempt"]] = event
    return received


def _judge_retry(before: dict[str, Any], event: dict[str, Any]) -> None:
    if event["messages"]:
        receipts, earlier = ([message[1] for message in one["messages"]] for one in (event, before))
        assert (receipts == earlier) == (event["received_at"] < before["visible_at"]), (before, event)
    else:
        assert event["until"] >= before["visible_at"], f"a live attempt gave nothing: {before} {event}"


def _judge_deletes(events: Events, rows: list[Row], claims: Claims) -> None:
    """Every missing message was deleted by its holder in time, and every deleted message is missing."""
    begun: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    for event in events:
        if event["event"] == "delete":
            begun[_offset_of(event["receipt"]), _lease_of(event["receipt"])].append(event["at"])
        elif event["event"] == "deleted" and event["done"]:
            assert claims.gone[_offset_of(event["receipt"])].at <= event["at"], f"not deleted: {event}"
    assert set(claims.gone) == {row.offset for row in rows} - {0}, "something is left, or the anchor gone"
    for offset, gone in claims.gone.items():
        assert any(at <= gone.at for at in begun[offset, gone.lease_id]), f"its holder kept {rows[offset]}"
        assert gone.at < gone.visible_at, f"deleted with a receipt that was over: {rows[offset]}"


def _judge_order(diaries: list[Events], rows: list[Row]) -> None:
    """Offsets, sequence numbers and each producer's numbers in a group increase together."""
    sequence: defaultdict[str, set[int]] = defaultdict(set)
    for event in (event for events in diaries for event in events):
        for _, _, message_id, number in event.get("answers", []):
            sequence[message_id].add(int(number))
        for _, _, number, _, message_id, _ in event.get("messages", []):
            sequence[message_id].add(int(number))
    numbers = [sequence[row.message_id] for row in rows if row.message_id in sequence]
    assert all(len(found) == 1 for found in numbers)
    assert all(a < b for [a], [b] in pairwise(map(list, numbers)))
    own: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for row in rows:
        name, group, number = row.body.split(":")
        assert group == row.group
        own[name, group].append(int(number))
    for producer, sent in own.items():
        assert sent == sorted(set(sent)), f"{producer} is out of order"


def _drain(workers: FifoWorkers) -> Events:
    """Receives and deletes all messages except the anchor; returns the diary."""
    events: Events = []
    deadline = time.monotonic() + 60
    while (counts := workers.queue.counts()).visible + counts.in_flight > 1:
        assert time.monotonic() < deadline, f"does not run empty: {counts}"
        messages = workers.queue.receive(max_messages=1_000, visibility_timeout=60, wait_time=1)
        if messages:
            handles = [message.receipt_handle for message in messages]
            at = time.time_ns() // 1_000
            events += [{"event": "delete", "receipt": handle, "at": at} for handle in handles]
            assert not workers.queue.delete_batch(handles).failed
    return events


def _offset_of(receipt: str) -> int:
    return int(receipt.split("-")[3])


def _lease_of(receipt: str) -> str:
    return receipt.split("-")[4]
