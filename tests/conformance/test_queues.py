"""Queues are created, changed, purged, listed and deleted, with one shard and with several."""

from __future__ import annotations

import pytest

from concurrency.harness import keep_to
from conformance.harness import Harness, batch, bodies, handles, long_on_s3
from lakequeue import LakeQueue, SendEntry, errors
from lakequeue.runtime.root import Root
from lakequeue.storage import catalog


@pytest.mark.spec("QUE-36", "DLQ-2")
def test_a_program_begins_with_the_queue_as_it_wants_it(lq: LakeQueue, clock):
    lq.create_queue("dead")
    given = {"dead_letter_queue": "dead", "max_receive_count": 3, "rate_limit": "5/s", "tags": {"team": "blue"}}
    made = lq.create_queue("orders", update=True, delay=5, **given)
    before = made.attributes(wire=True)
    clock.advance(1)
    again = lq.create_queue("orders", update=True, delay=5, **given)
    assert (again.key, again.attributes(wire=True)) == (made.key, before)
    paced = {"rate_limit": "5/s", "rate_burst": 25}
    changed = lq.create_queue(
        "orders", update=True, visibility_timeout=60, tags={"team": "red", "a": "b"}, **paced
    )
    wire = changed.attributes(wire=True)
    assert (changed.key, wire["VisibilityTimeout"], wire["DelaySeconds"]) == (made.key, "60", "5")
    assert changed.attributes(["rate_burst"]) == {"rate_burst": 25}
    assert (wire["RedrivePolicy"], changed.tags()) == (before["RedrivePolicy"], {"team": "red", "a": "b"})
    with pytest.raises(errors.InvalidAttributeName, match="profile can only be set when a queue is created"):
        lq.create_queue("orders", update=True, profile="sqs")
    many = {f"t{number}": "" for number in range(49)}
    with pytest.raises(errors.InvalidParameterValue):
        lq.create_queue("orders", update=True, delay=9, tags=many)
    assert lq.queue("orders").attributes()["delay"] == 5
    with pytest.raises(errors.MissingParameter, match="go together"):
        lq.create_queue("bills", dead_letter_queue="dead")


@pytest.mark.spec("QUE-5", "QUE-24", "QUE-25", "RET-6", "DLY-10")
def test_changed_attributes_hold_at_once_for_sends_and_receives_elsewhere(harness: Harness, clock):
    here = harness.create(delay=100)
    there = harness.queue()
    there.send("late")
    assert there.receive() == []
    clock.advance(1)
    here.set_attributes(delay=0, visibility_timeout=5, maximum_message_size=1024)
    there.send("now")
    with pytest.raises(errors.InvalidParameterValue, match="1024"):
        there.send("x" * 1025)
    assert bodies(there.receive(5)) == ["now"]
    clock.advance(5)
    assert bodies(there.receive(5)) == ["now"]
    wire = there.attributes(wire=True)
    assert int(wire["LastModifiedTimestamp"]) == int(wire["CreatedTimestamp"]) + 1
    here.set_attributes(maximum_message_size=2048)
    there.send("x" * 2048)


@pytest.mark.spec("RCV-6", "ERR-8")
def test_a_receive_that_claimed_messages_returns_them_whatever_it_cannot_read_then(
    harness: Harness, clock, monkeypatch: pytest.MonkeyPatch
):
    """It learns of new attributes by its claim; the catalog, which has them, may not be read just then."""
    here = harness.create()
    here.send("A")
    harness.queue().set_attributes(visibility_timeout=5)

    def fail(self, *_):
        raise errors.QueueClientError("no network")

    monkeypatch.setattr("lakequeue.runtime.open_queue.OpenQueue.reload", fail)
    [message] = here.receive(wait_time=0)
    assert (message.body, message.receive_count) == ("A", 1)
    with pytest.raises(errors.QueueClientError, match="no network"):
        here.receive(wait_time=0)
    monkeypatch.undo()
    assert here.receive(wait_time=0) == []
    assert here.attributes()["visibility_timeout"] == 5


@pytest.mark.spec("QUE-25", "PRF-2", "VIS-10")
def test_a_widened_range_holds_at_once_for_receives_and_changes_elsewhere(harness: Harness, clock):
    here = harness.create(profile="cmq")
    there = harness.queue()
    here.send_batch(batch("a", "b"))
    with pytest.raises(errors.InvalidParameterValue):
        there.receive(visibility_timeout=0)
    (a,) = there.receive()
    here.set_attributes(allow_zero_visibility=True)
    there.change_visibility(a.receipt_handle, 0)
    assert bodies(there.receive(visibility_timeout=0)) == ["a"]


@pytest.mark.spec("QUE-25", "VIS-10")
def test_a_narrowed_range_holds_at_once_for_changes_elsewhere(harness: Harness):
    here, there = harness.create(), harness.queue()
    here.send("a")
    (a,) = there.receive()
    here.set_attributes(allow_zero_visibility=False)
    with pytest.raises(errors.InvalidParameterValue, match="Must be >= a fraction"):
        there.change_visibility(a.receipt_handle, 0)
    assert there.counts().in_flight == 1


@pytest.mark.spec("QUE-13", "QUE-14", "RCP-9", "DLT-4")
def test_a_queue_created_again_shares_nothing_with_the_old_one(harness: Harness):
    old = harness.create()
    elsewhere = harness.queue()
    old.send_batch(batch("a", "b"))
    (a,) = elsewhere.receive()
    harness.open().delete_queue("orders")
    new = harness.create()
    for dead in (old, elsewhere):
        for verb in (
            lambda q=dead: q.send("late"),
            lambda q=dead: q.send_batch(batch("late")),
            lambda q=dead: q.receive(),
            lambda q=dead: q.delete(a.receipt_handle),
            lambda q=dead: q.change_visibility(a.receipt_handle, 5),
            lambda q=dead: q.purge(),
            lambda q=dead: q.peek(),
            lambda q=dead: q.peek("true"),
            lambda q=dead: q.attributes(wire=True),
            lambda q=dead: q.set_attributes(delay=5),
            lambda q=dead: q.set_tags(a="b"),
            lambda q=dead: q.tags(),
        ):
            with pytest.raises(errors.QueueDoesNotExist):
                verb()
    with pytest.raises(errors.ReceiptHandleIsInvalid):
        new.delete(a.receipt_handle)
    assert new.receive() == []
    new.send("c")
    assert bodies(harness.queue().receive(10)) == ["c"]


@pytest.mark.spec("QUE-21")
def test_a_full_queue_takes_messages_as_others_are_deleted(harness: Harness):
    queue = harness.create(max_stored_messages=3)
    queue.send("a")
    result = harness.queue().send_batch(batch("b", "c", "d"))
    assert [s.id for s in result.successful] == ["0", "1"]
    assert [(f.id, f.code) for f in result.failed] == [("2", "OverLimit")]
    with pytest.raises(errors.OverLimit):
        queue.send("e")
    (a,) = queue.receive()
    with pytest.raises(errors.OverLimit):
        harness.queue().send("e")
    harness.queue().delete(a.receipt_handle)
    queue.send("f")
    assert bodies(harness.queue().receive(10)) == ["b", "c", "f"]


@pytest.mark.spec("QUE-23", "STA-6", "STA-8", "PRF-4")
def test_counts_and_a_peek_show_states_and_change_nothing(harness: Harness, clock):
    queue = harness.create()
    queue.send_batch([*batch("received", "waiting"), SendEntry("delayed", delay=10)])
    queue.receive()
    clock.advance(2)
    before = harness.versions()
    other = harness.queue()
    assert [(m.body, m.state, m.receive_count) for m in other.peek()] == [
        ("received", "in_flight", 1),
        ("waiting", "visible", 0),
        ("delayed", "delayed", 0),
    ]
    assert [m.body for m in other.peek(limit=2)] == ["received", "waiting"]
    counts = other.counts()
    assert (counts.visible, counts.in_flight, counts.delayed, counts.rewindable) == (1, 1, 1, 0)
    assert counts.oldest_age == 2
    wire = other.attributes(wire=True)
    assert [wire[f"ApproximateNumberOfMessages{kind}"] for kind in ("", "NotVisible", "Delayed")] == ["1"] * 3
    assert wire["QueueArn"].endswith(":orders")
    assert other.attributes([], wire=True) == {} == other.attributes([])
    assert other.attributes()["VisibilityTimeout"] == wire["VisibilityTimeout"]
    assert other.attributes()["ApproximateNumberOfMessages"] == wire["ApproximateNumberOfMessages"]
    assert other.attributes(["DelaySeconds"]) == {"DelaySeconds": wire["DelaySeconds"]}
    assert "DelaySeconds" not in other.attributes()
    for name in ("nonsense", "Nonsense"):
        with pytest.raises(KeyError, match=name):
            other.attributes()[name]
    assert other.attributes(["visibility_timeout", "delay"]) == {"visibility_timeout": 30, "delay": 0}
    assert harness.versions() == before
    clock.advance(28)
    assert [m.state for m in other.peek()] == ["visible"] * 3


@pytest.mark.spec("QUE-11", "QUE-12", "NAM-9")
def test_queues_are_listed_by_name_in_pages(harness: Harness):
    for name in ["b", "a", "B", "c-1", "c-2"]:
        harness.create(name)
    lq = harness.open()
    assert [q.name for q in lq.list_queues()] == ["B", "a", "b", "c-1", "c-2"]
    assert [q.name for q in lq.list_queues("c-")] == ["c-1", "c-2"]
    pages, after = [], None
    while not pages or after is not None:
        page = lq.list_queues(limit=2, after=after)
        pages.append([q.name for q in page])
        after = page.next_after
    assert pages == [["B", "a"], ["b", "c-1"], ["c-2"]]
    assert [lq.list_queues("c-", limit).next_after for limit in (1, 2, 3, None)] == ["c-1", None, None, None]
    assert (lq.list_queues(after="c-2"), lq.list_queues("d", 1).next_after) == ([], None)
    lq.delete_queue("a")
    assert [q.name for q in harness.open().list_queues()] == ["B", "b", "c-1", "c-2"]


@pytest.mark.spec("QUE-11", "QUE-12", "DLQ-7")
def test_only_the_queues_that_are_asked_for_are_opened(harness: Harness, monkeypatch: pytest.MonkeyPatch):
    opened: list[str] = []
    letters = harness.create("letters")
    for number in range(12):
        policy = {"redrive_policy": {"deadLetterTargetArn": letters.arn, "maxReceiveCount": 1}}
        harness.create(f"queue-{number:02}", **(policy if number == 7 else {}))
    lq, shards = harness.open(), Root.shards
    monkeypatch.setattr(Root, "shards", lambda root, row: (opened.append(row.name), shards(root, row))[1])
    assert [q.name for q in lq.list_queues("queue-0", 2, "queue-03")] == opened == ["queue-04", "queue-05"]
    opened.clear()
    assert [q.name for q in letters.dead_letter_sources()] == ["queue-07"]
    assert set(opened) == {"letters", "queue-07"}


@pytest.mark.spec("QUE-12")
def test_without_a_limit_a_listing_has_no_maximum(harness: Harness, monkeypatch: pytest.MonkeyPatch):
    for name in "abc":
        harness.create(name)
    monkeypatch.setattr("lakequeue.client.MAX_LISTED", 2)
    lq = harness.open()
    assert [q.name for q in lq.list_queues()] == ["a", "b", "c"]
    with pytest.raises(errors.InvalidParameterValue, match="Must be between 1 and 2"):
        lq.list_queues(limit=3)


@pytest.mark.spec("NAM-6", "NAM-7", "NAM-9")
def test_region_and_exact_name_together_make_a_queue(harness: Harness):
    harness.create("orders").send("lower")
    harness.create("Orders").send("upper")
    harness.open(region="r2", engine="point").create_queue("orders")
    there = harness.open(region="r2")
    there.queue("orders").send("there")
    with pytest.raises(errors.QueueDoesNotExist):
        there.queue("Orders")
    assert [q.name for q in there.list_queues()] == ["orders"]
    assert bodies(harness.queue("orders").receive(10)) == ["lower"]
    assert bodies(harness.queue("Orders").receive(10)) == ["upper"]
    assert bodies(harness.open(region="r2").queue("orders").receive(10)) == ["there"]


@pytest.mark.spec("INF-3", "INF-11", "BAT-2", "DLT-3")
def test_a_queue_of_three_shards_behaves_as_one(harness: Harness, clock):
    queue = harness.create(shards=3, max_inflight_messages=9)
    for number, text in enumerate("abc"):
        keep_to(queue, number)
        queue.send(text)
    other = harness.queue()
    keep_to(other, 1)
    clock.advance(1)
    other.send_batch(batch("d", "e", "f"))
    assert queue.counts().visible == 6
    first = harness.queue().receive(10)
    assert len(set(handles(first))) == len(first) == 5  # three of four in the second shard, for the cap
    clock.advance(15)
    keep, *gone = first
    assert not harness.queue().delete_batch(handles(gone)).failed
    rest = harness.queue().receive(10)
    assert bodies([*first, *rest]) == list("abcdef")
    clock.advance(15)
    assert bodies(harness.queue().receive(10)) == [keep.body]


@long_on_s3
@pytest.mark.spec("INF-11", "QUE-21", "QUE-13", "PUR-1")
def test_caps_attributes_purge_and_deletion_reach_every_shard(harness: Harness):
    queue = harness.create(shards=3, max_inflight_messages=7, max_stored_messages=12)
    for number in range(12):
        queue.send(f"{number}")
    with pytest.raises(errors.OverLimit):
        queue.send("13")
    assert len(harness.queue().receive(100)) == 6
    with pytest.raises(errors.OverLimit):
        harness.queue().receive()
    queue.set_attributes(max_inflight_messages=12)
    assert len(harness.queue().receive(100)) == 6
    queue.purge()
    assert harness.queue().counts().in_flight == 0
    for _ in range(12):
        queue.send("again")
    assert len(harness.queue().receive(100)) == 12
    other = harness.queue()
    harness.open().delete_queue("orders")
    for _ in range(3):
        with pytest.raises(errors.QueueDoesNotExist):
            other.send("late")


def test_creating_a_queue_does_not_read_every_other_one_again(harness: Harness, monkeypatch):
    """Else the 3,000th takes ten times as long as the first."""
    converted: list[int] = []
    plain = catalog._plain
    monkeypatch.setattr(catalog, "_plain", lambda part: converted.append(len(part)) or plain(part))
    lq = harness.open()
    for number in range(60):
        lq.create_queue(f"queue-{number}")
    assert sum(converted) < 5 * 60  # rather than 60 * 60 / 2
    assert len(list(lq.list_queues())) == 60
