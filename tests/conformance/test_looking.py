"""Peeks with a condition, through any number of messages; previews; messages that are chosen so."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest
from deltalake import DeltaTable

from conformance.harness import Harness, every_engine
from hostile import SLOW, SLOW_BODY
from insides import messages_of, receipts_of, shard_of
from lakequeue import MessageNotInflight, PeekedMessage, Queue, SendEntry, errors
from lakequeue.conditions import sandbox
from lakequeue.model.states import MessageState
from lakequeue.operations import browse, chosen_messages
from lakequeue.operations.depth import depth
from lakequeue.runtime.shard_reader import ShardReader
from lakequeue.testing import ManualClock


def peeked_bodies(queue: Queue, where: str, limit: int = 100) -> list[str]:
    return [message.body for message in queue.peek(where, limit)]


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browse, "ROWS", 3)


@every_engine
@pytest.mark.spec("DLT-5")
def test_the_history_of_the_tables_names_the_verbs_with_their_numbers_of_messages(harness: Harness) -> None:
    def change_counts(path: str) -> list[dict[str, int]]:
        found = [json.loads(each["userMetadata"]) for each in DeltaTable(path).history()[-2::-1]]
        assert all(each.pop("lost_races") == 0 and len(each.pop("commit")) == 32 for each in found)
        return found

    other = harness.create("dead")
    queue = harness.create(dead_letter_queue="dead", max_receive_count=2)
    queue.send_batch([SendEntry(body) for body in "abc"])
    received = queue.receive(2)
    queue.receive(5, visibility_timeout=0)
    queue.delete_batch([*(message.receipt_handle for message in received), received[0].receipt_handle])
    assert queue.receive(visibility_timeout=0) and queue.receive() == []
    queue.purge()
    assert change_counts(messages_of(queue)) == [{"send": 3}]
    assert change_counts(messages_of(other)) == [{"deliver": 1}]
    received_and_deleted = [{"claim": 2}, {"claim": 1}, {"delete": 2}, {"claim": 1}]
    assert change_counts(receipts_of(queue)) == [*received_and_deleted, {"claim": 0}, {"moved": 1}, {"purge": 1}]


@pytest.mark.spec("QUE-23", "STA-6", "DLT-3")
def test_a_condition_and_a_peek_see_the_same_columns(harness: Harness, clock: ManualClock):
    queue = harness.create(delay=5)
    queue.send("received", delay=0, attributes={"customer": "Ada", "price": 12.5})
    clock.advance(2)
    queue.send("waiting", delay=0, attributes={"customer": "Grace", "key": b"\x00\xff"}, group_id="tag")
    queue.send("delayed")
    queue.receive()
    before = harness.versions()
    other = harness.queue()
    for where, bodies in {
        "state = 'in_flight' AND receive_count = 1": ["received"],
        "state = 'visible' AND receive_count = 0": ["waiting"],
        "state = 'delayed' AND visible_at = '2026-01-01 00:00:07'": ["delayed"],
        "visible_at = sent_at": ["waiting"],
        "first_received_at = '2026-01-01 00:00:02'": ["received"],
        "delay_seconds > 0 AND sequence_number IS NULL": ["delayed"],
        "shard = 0 AND log_offset = 1 AND queue IS NOT NULL AND region = 'local'": ["waiting"],
        "visible_at = '2026-01-01T00:00:32Z'": ["received"],
        "sent_at <= '2026-01-01 00:00:01'": ["received"],
        "age >= 2": ["received"],
        "age = 0": ["waiting", "delayed"],
        "message_attributes['customer'] = 'Ada'": ["received"],
        "message_attributes['price']::DOUBLE > 12": ["received"],
        "message_attributes['key'] = 'AP8='": ["waiting"],
        "message_attributes['customer'] IS NULL": ["delayed"],
        "group_id = 'tag' AND dedup_id IS NULL": ["waiting"],
        "body LIKE '%e%'": ["received", "delayed"],
        "false": [],
        "true": ["received", "waiting", "delayed"],
    }.items():
        assert (where, peeked_bodies(other, where)) == (where, bodies)
    [message] = other.peek(f"message_id = '{other.peek()[1].message_id}'")
    assert message == other.peek()[1]
    assert harness.versions() == before


def test_all_messages_are_gone_through_and_no_further_than_needed(
    harness: Harness, clock, small_batches, monkeypatch
):
    queue = harness.create()
    queue.send_batch([SendEntry(str(number), delay=60 if number % 4 == 2 else None) for number in range(30)])
    received = queue.receive(12)
    queue.delete_batch([message.receipt_handle for message in received[::2]])
    queue.send("30")
    left = [str(n) for n in range(31) if str(n) not in {m.body for m in received[::2]}]
    assert peeked_bodies(harness.queue(), "true") == [m.body for m in harness.queue().peek(limit=100)] == left
    assert peeked_bodies(harness.queue(), "body::INT % 7 = 6") == ["6", "20", "27"]
    assert peeked_bodies(harness.queue(), "state = 'delayed'", 3) == ["2", "6", "10"]
    assert peeked_bodies(harness.queue(), "state = 'in_flight'") == [message.body for message in received[1::2]]
    read: list[int] = []
    rows = ShardReader.rows
    monkeypatch.setattr(
        ShardReader, "rows", lambda self, first, last: read.append(last) or rows(self, first, last)
    )
    assert peeked_bodies(harness.queue(), "body::INT >= 6", 1) == ["6"]
    assert max(read) < 10


def test_a_batch_holds_a_bounded_number_of_bytes(harness: Harness, monkeypatch):
    monkeypatch.setattr(browse, "BYTES", 2_000)
    queue = harness.create()
    for number in range(6):
        queue.send(f"{number}" * 1_000)
    sizes = [len(batch.offsets) for batch in browse.batches(queue._runtime, shard_of(queue), browse.ROWS)]
    assert sum(sizes) == 6 and max(sizes) <= 2
    assert [body[0] for body in peeked_bodies(queue, "length(body) = 1000")] == list("012345")


def test_messages_of_all_shards_come_oldest_first(harness: Harness, clock: ManualClock, small_batches):
    queue = harness.create(shards=3)
    for number in range(12):
        queue.send(str(number))
        clock.advance(1)
    assert peeked_bodies(harness.queue(), "body::INT % 2 = 0") == ["0", "2", "4", "6", "8", "10"]
    assert peeked_bodies(harness.queue(), "age <= 6", 3) == ["6", "7", "8"]
    assert [message.body for message in harness.queue().peek(limit=5)] == ["0", "1", "2", "3", "4"]


@pytest.mark.spec("RET-9", "STA-5")
def test_what_expires_or_is_dropped_meanwhile_is_passed_over(harness: Harness, clock: ManualClock, small_batches):
    queue = harness.create(message_retention_period=60)
    for number in range(8):
        queue.send(str(number))
        clock.advance(10)
    assert peeked_bodies(harness.queue(), "true") == ["3", "4", "5", "6", "7"]
    batches = browse.batches(queue._runtime, shard_of(queue), 3)
    assert [message["body"] for message in next(batches).rows.to_pylist()] == ["3", "4", "5"]
    clock.advance(100)
    assert list(batches) == []


def test_a_part_of_the_log_that_is_dropped_between_two_readings_is_no_error(harness: Harness):
    queue = harness.create()
    queue.send_batch([SendEntry(text) for text in "abcd"])
    other = harness.queue()
    queue.purge()
    queue.compact()
    shard = shard_of(other)
    first, rows = shard.reader.rows(0, 3)
    assert (first, len(rows)) == (4, 0)
    with pytest.raises(errors.QueueClientError, match="lacks offset 7"):
        shard.reader.rows(7, 8)
    assert DeltaTable(messages_of(queue)).to_pyarrow_table().num_rows == 0


@pytest.mark.spec("RWD-4")
def test_rates_follow_from_the_counts_of_two_looks(harness: Harness, clock: ManualClock):
    queue = harness.create(shards=2, rewind_range=3600)
    queue.send("before")
    first = depth(queue._runtime)
    assert depth(queue._runtime).rates_since(first) == (None, None)
    for number in range(6):
        queue.send(str(number))
    queue.delete_batch([message.receipt_handle for message in queue.receive(4)])
    clock.advance(2)
    second = depth(harness.queue()._runtime)
    assert (second.sent, second.stored, second.counts) == (7, 3, queue.counts())
    assert second.rates_since(first) == (3.0, 2.0)
    queue.rewind(clock.now() - timedelta(seconds=2))
    clock.advance(1)
    assert depth(harness.queue()._runtime).rates_since(second) == (0.0, -4.0)


@pytest.mark.spec("STA-6")
def test_a_condition_that_is_too_slow_ends_a_peek_and_changes_nothing(harness: Harness, monkeypatch):
    monkeypatch.setattr(sandbox, "SECONDS", 2.0)
    queue = harness.create()
    queue.send_batch([SendEntry("x"), SendEntry(SLOW_BODY)])
    before = harness.versions()
    with pytest.raises(
        errors.InvalidParameterValue, match="too slow: evaluating it for 2 messages took more than 2 s"
    ):
        queue.peek(SLOW)
    assert harness.versions() == before
    assert [len(message.body) for message in queue.peek("length(body) > 1")] == [len(SLOW_BODY)]


# --- previews of rewinds and redrives, and peeks at deleted messages


def consumed(harness: Harness, clock: ManualClock, count: int = 6, **attributes: object) -> Queue:
    """A queue with messages sent a second apart; those with even numbers are deleted."""
    queue = harness.create(**{"rewind_range": True} | attributes)
    for number in range(count):
        queue.send(str(number))
        clock.advance(1)
    while batch := queue.receive(10, visibility_timeout=3600):
        queue.delete_batch([message.receipt_handle for message in batch if int(message.body) % 2 == 0])
    return queue


def past(queue: Queue, since: datetime, where: str | None = None, limit: int = 10) -> list[PeekedMessage]:
    search = browse.Search(queue._runtime, browse.predicate(where), limit, since=since, history=True)
    return browse.page(search, list)


@pytest.mark.spec("RWD-4", "RWD-9", "RWD-19")
def test_deleted_messages_are_looked_at_and_counted_as_a_rewind_would_find_them(
    harness: Harness, clock: ManualClock
):
    begin = clock.now()
    consumed(harness, clock)
    before = harness.versions()
    queue = harness.queue()
    shown = past(queue, begin)
    assert [(message.body, message.state, message.receive_count) for message in shown] == [
        ("0", "deleted", 1),
        ("2", "deleted", 1),
        ("4", "deleted", 1),
    ]
    for seconds, count in ((0, 3), (2, 2), (2.5, 1), (4, 1), (5, 0), (6, 0)):
        assert (seconds, queue.rewindable(begin + timedelta(seconds=seconds))) == (seconds, count)
    assert harness.versions() == before
    assert queue.rewind(begin + timedelta(seconds=2)) == 2
    assert harness.queue().rewindable(begin) == 1
    found = past(harness.queue(), begin)
    assert [message.body for message in found] == ["0"]


def test_deleted_messages_of_all_shards_are_found_by_instant_and_condition(
    harness: Harness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(browse, "ROWS", 2)
    begin = clock.now()
    queue = consumed(harness, clock, 20, shards=3)

    def bodies(seconds: int, where: str | None, limit: int = 100) -> list[int]:
        return [int(message.body) for message in past(queue, begin + timedelta(seconds=seconds), where, limit)]

    assert bodies(0, None) == list(range(0, 20, 2))
    assert bodies(11, None) == [12, 14, 16, 18]
    assert bodies(11, None, 2) == [12, 14]
    assert bodies(3, "body::INT % 3 = 0") == [6, 12, 18]
    assert bodies(3, "state <> 'deleted'") == []
    assert queue.rewindable(begin + timedelta(seconds=11)) == 4


@pytest.mark.spec("RWD-6", "RWD-11", "RWD-15")
def test_what_a_rewind_refuses_is_refused_before_it(harness: Harness, clock: ManualClock):
    queue = consumed(harness, clock, rewind_range=60)
    for instant in (clock.now() + timedelta(seconds=1), clock.now() - timedelta(seconds=61)):
        with pytest.raises(errors.InvalidParameterValue, match="for parameter to is invalid"):
            queue.rewindable(instant)
    clock.advance(60)
    assert queue.rewindable(clock.now() - timedelta(seconds=60)) == 0
    assert past(queue, clock.now() - timedelta(hours=1)) == []
    with pytest.raises(errors.UnsupportedOperation):
        harness.create("plain").rewindable(clock.now())


@pytest.mark.spec("DLQ-8")
def test_a_redrive_says_beforehand_how_much_it_takes_where(harness: Harness, clock: ManualClock):
    harness.create("letters")
    for name in ("orders", "mails", "gone"):
        source = harness.create(name, visibility_timeout=0)
        source.set_attributes(redrive_policy={"deadLetterTargetArn": "letters", "maxReceiveCount": 1})
        source.send_batch([SendEntry(f"{name} {number}") for number in range(3 if name == "mails" else 2)])
        source.receive(10)
        source.receive(10)
    harness.queue("letters").send("no dead letter")
    harness.open().delete_queue("gone")
    letters = harness.queue("letters")
    before = harness.versions()
    assert letters.redrivable() == {"orders": 2, "mails": 3}
    assert letters.redrivable("body LIKE '% 1'") == {"orders": 1, "mails": 1}
    assert letters.redrivable("body LIKE 'gone%'") == {}
    with pytest.raises(errors.InvalidParameterValue, match="where"):
        letters.redrivable("nonsense(")
    assert harness.versions() == before
    letters.receive(1, visibility_timeout=60)
    assert sum(letters.redrivable().values()) == letters.redrive() == 4


# --- chosen messages, deleted or made visible without receipts


DELAYED, IN_FLIGHT, VISIBLE = MessageState.DELAYED, MessageState.IN_FLIGHT, MessageState.VISIBLE


def ids(queue: Queue) -> dict[str, str]:
    return {message.body: message.message_id for message in queue.peek(limit=100)}


def bodies(queue: Queue) -> list[str]:
    return [message.body for message in queue.peek(limit=100)]


@pytest.mark.spec("DEL-3", "RWD-4")
def test_visible_messages_are_deleted_and_the_others_stay(harness: Harness, clock: ManualClock):
    queue = harness.create(rewind_range=3600)
    begin = clock.now()
    for body in "held", "a", "b", "c":
        queue.send(body)
    queue.send("delayed", delay=60)
    [taken] = queue.receive(visibility_timeout=30)
    known = ids(queue)
    asked = [known[body] for body in ("held", "b", "delayed")] + ["nobody"]
    outcome = chosen_messages.delete(harness.queue()._runtime, asked)
    assert outcome == chosen_messages.ChosenCounts(1, {IN_FLIGHT: 1, DELAYED: 1}, 1)
    assert bodies(queue) == ["held", "a", "c", "delayed"]
    before = harness.versions()
    assert chosen_messages.delete(queue._runtime, asked).done == 0
    assert harness.versions() == before, "nothing to delete, nothing to commit"
    queue.delete(taken.receipt_handle)  # its receipt was not touched
    clock.advance(1)
    assert queue.rewind(begin) == 2
    assert bodies(queue) == ["held", "a", "b", "c", "delayed"]


@pytest.mark.spec("VIS-4", "DLY-1", "RCP-6")
def test_delayed_messages_become_visible_and_those_in_flight_only_if_asked(harness: Harness, clock: ManualClock):
    queue = harness.create()
    queue.send_batch([SendEntry("a"), SendEntry("b", delay=60), SendEntry("c", delay=60)])
    [taken] = queue.receive(visibility_timeout=30)
    known = ids(queue)
    outcome = chosen_messages.make_visible(queue._runtime, [known["a"], known["b"]])
    assert outcome == chosen_messages.ChosenCounts(1, {IN_FLIGHT: 1}, 0)
    assert [message.body for message in harness.queue().receive(10, visibility_timeout=1)] == ["b"]
    outcome = chosen_messages.make_visible(harness.queue()._runtime, [known["a"]], in_flight=True)
    assert outcome == chosen_messages.ChosenCounts(1, {}, 0)
    with pytest.raises(MessageNotInflight):
        queue.change_visibility(taken.receipt_handle, 60)
    [again] = queue.receive()
    assert (again.body, again.receive_count) == ("a", 2)
    assert queue.delete_batch([taken.receipt_handle]).successful  # an older handle, which does nothing
    assert queue.counts().in_flight == 2
    assert queue.counts().delayed == 1


@pytest.mark.spec("FIF-1", "DEL-5")
def test_a_group_goes_on_behind_a_deleted_message(harness: Harness, clock: ManualClock):
    lake = harness.open(engine="point")
    lake.create_queue("orders.fifo", fifo=True, content_based_deduplication=True)
    queue = harness.open().queue("orders.fifo")
    for body in "a1", "a2", "b1", "a3":
        queue.send(body, group_id=body[0])
    clock.advance(1)
    known = ids(queue)
    assert chosen_messages.delete(queue._runtime, [known["a1"], known["a3"]]).done == 2
    assert [message.body for message in queue.receive(10)] == ["b1", "a2"]


def test_chosen_messages_are_found_in_all_shards_and_batches(
    harness: Harness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(browse, "ROWS", 2)
    queue = harness.create(shards=3)
    for number in range(20):
        queue.send(str(number))
    known = ids(queue)
    chosen = [known[str(number)] for number in range(0, 20, 3)]
    assert chosen_messages.delete(queue._runtime, chosen) == chosen_messages.ChosenCounts(7, {}, 0)
    assert {*bodies(queue)} == {str(number) for number in range(20) if number % 3}
    assert queue.counts().oldest_age is not None and timedelta(seconds=queue.counts().oldest_age) < timedelta(1)
