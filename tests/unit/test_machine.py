"""Rules of one shard, one by one: a state in one line, a command, what came of it. Seconds throughout."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from lakequeue.errors import QueueServiceError
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import from_micros
from lakequeue.model.failures import DeadLetterReason, failed_together
from lakequeue.shard import state
from lakequeue.shard.commands import (
    ChangeVisibility,
    Claim,
    ClaimedSpan,
    Close,
    Counts,
    Decision,
    Delete,
    Expire,
    LeaseCounts,
    LeaseDelete,
    LeaseExtend,
    LeaseRelease,
    MakeVisible,
    Move,
    MoveBack,
    Moved,
    Purge,
    Rewind,
    SetAttributes,
)
from lakequeue.shard.decide import ShardMachine
from lakequeue.shard.runs import IN_FLIGHT, VISIBLE, DeadLetters, Head, Run

S = 1_000_000
DEAD = "arn:aws:sqs:local:000000000000:dead"
STRICT: dict[str, Any] = {"profile_name": "cmq", "profile_strict": False}


class FakeLog:
    """Messages sent at the given seconds with the given delays."""

    def __init__(self, sent: Sequence[float], delays: Sequence[float]) -> None:
        self.sent = [int(at * S) for at in sent]
        self.delays = [int(delay * S) for delay in delays]

    @property
    def end(self) -> int:
        return len(self.sent)

    def only_group(self, first: int) -> str | None:
        return ""

    def sent_at(self, offset: int) -> int:
        return self.sent[offset]

    def first_sent_at_or_after(self, instant: int) -> int:
        return next((offset for offset, at in enumerate(self.sent) if at >= instant), self.end)

    def dead_letters(self, first: int, last: int) -> Iterator[DeadLetters]:
        return iter(())

    def spans(self, first: int, last: int, delay: int | None = None) -> Iterator[tuple[int, int, int]]:
        for offset in range(first, last + 1):
            delay = self.delays[offset]
            yield offset, offset, self.sent[offset] + delay if delay else 0


class Shard:
    """A machine whose decisions are committed at once, asked in seconds."""

    def __init__(self, machine: ShardMachine) -> None:
        self.machine = machine
        self.last = Decision([], False, [], [], machine.head)

    def ask(self, at: float, command: Any) -> Any:
        """The answer to one command; a refusal is raised, and must have changed nothing."""
        self.machine.stored(int(at * S))  # what expires until then is gone before the command
        before = self.machine.runs, self.machine.head
        self.last = self.machine.decide([command], int(at * S))
        [result] = self.last.results
        assert result.changed == self.last.commit
        if result.error is not None:
            assert not self.last.commit and (self.machine.runs, self.machine.head) == before
            raise result.error
        if self.last.commit:
            self.machine.committed()
        return result.value

    def receive(self, at: float, count: int = 1, vt: float | None = None, lease: str = "", **more: Any) -> str:
        """Offsets received, as text, for short assertions."""
        timeout = None if vt is None else int(vt * S)
        claimed = self.ask(at, Claim(count, timeout, lease or f"at-{at}", **more))
        return " ".join(str(o) for span in claimed.spans for o in range(span.first, span.last + 1))

    def delete(self, at: float, offset: int, lease: str) -> Any:
        return self.ask(at, Delete(offset, lease, "H"))

    def change(self, at: float, offset: int, lease: str, timeout: float) -> Any:
        return self.ask(at, ChangeVisibility(offset, lease, int(timeout * S), "H"))

    def counts(self, at: float) -> tuple[int, int, int]:
        counts = self.machine.counts(int(at * S))
        return counts.visible, counts.in_flight, counts.delayed


def shard(
    messages: int = 1,
    *,
    sent: Sequence[float] = (),
    delays: Sequence[float] = (),
    runs: Sequence[Run] = (),
    head: int = 0,
    **attributes: Any,
) -> Shard:
    """A shard with messages sent at 0, unless told otherwise; those below `head` are in `runs` or deleted."""
    sent = sent or [0] * messages
    delays = [*delays, *[0] * (len(sent) - len(delays))]
    wire = QueueAttributes.create(**attributes).to_wire()
    return Shard(ShardMachine(Head(head_offset=head, attributes=wire), runs, FakeLog(sent, delays)))


def held(first: int, last: int, lease: str, until: float, *, count: int = 1, at: float = 0) -> Run:
    """A run received under a lease."""
    return Run(first, last, IN_FLIGHT, lease, count, int(until * S), int(at * S), int(at * S))


# -- receiving --------------------------------------------------------------------------------------------


@pytest.mark.spec("RCV-2", "RCV-14", "STA-1", "STA-2", "STA-6")
def test_a_receive_takes_what_is_there_but_not_more_than_asked() -> None:
    q = shard(7)
    assert q.receive(0, 3) == "0 1 2"
    assert q.receive(0, 10) == "3 4 5 6"
    assert q.receive(0, 10) == ""
    assert not q.last.commit


@pytest.mark.spec("RCV-3", "RCV-4", "QUE-5", "STA-3", "INF-1")
def test_a_received_message_is_hidden_until_its_timeout_ends() -> None:
    q = shard(1, visibility_timeout=30)
    assert q.receive(5) == "0"
    assert q.receive(34.999999) == ""
    assert q.counts(34.999999) == (0, 1, 0)
    assert q.counts(35) == (1, 0, 0)
    assert q.receive(35) == "0"


@pytest.mark.spec("RCV-5", "VIS-12")
def test_a_receive_may_bring_its_own_timeout() -> None:
    q = shard(1, visibility_timeout=30)
    assert q.receive(0, vt=5) == "0"
    assert q.receive(5) == "0"
    assert q.receive(34) == ""
    assert q.receive(35) == "0"


@pytest.mark.spec("RCV-6", "RCV-11", "STA-7", "STA-11", "STA-14")
def test_receive_counts_rise_and_the_first_receipt_is_remembered() -> None:
    q = shard(1)
    for turn in range(3):
        [span] = q.ask(30 * turn + 1, Claim(1, 30 * S, f"lease-{turn}")).spans
        assert span == ClaimedSpan(0, 0, turn + 1, 1 * S)


@pytest.mark.spec("RCV-12")
def test_a_receive_with_timeout_zero_leaves_the_message_visible_and_counts() -> None:
    q = shard(1)
    assert q.receive(0, vt=0) == "0"
    [span] = q.ask(0, Claim(1, 0, "second")).spans
    assert span.receive_count == 2
    assert q.counts(0) == (1, 0, 0)


@pytest.mark.spec("RCV-16")
def test_the_oldest_available_message_comes_first() -> None:
    q = shard(6, runs=[held(0, 1, "a", 10), held(3, 3, "b", 5)], head=4)
    assert q.receive(5, 2) == "3 4"
    assert q.receive(10, 10) == "0 1 5"


@pytest.mark.spec("RCV-15", "STA-7")
def test_receives_in_one_decision_share_nothing() -> None:
    machine = shard(5).machine
    claims = machine.decide([Claim(2, 30 * S, f"lease-{i}") for i in range(4)], 0)
    taken = [o for r in claims.results for s in r.value.spans for o in range(s.first, s.last + 1)]
    assert taken == [0, 1, 2, 3, 4]
    assert [run[:4] for run in claims.puts] == [
        (0, 1, IN_FLIGHT, "lease-0"),
        (2, 3, IN_FLIGHT, "lease-1"),
        (4, 4, IN_FLIGHT, "lease-2"),
    ]


def test_a_million_messages_are_one_run() -> None:
    class Bulk(FakeLog):
        end = 2_000_000  # type: ignore[assignment]

        def spans(self, first: int, last: int, delay: int | None = None) -> Iterator[tuple[int, int, int]]:
            yield first, last, 0

        def first_sent_at_or_after(self, instant: int) -> int:
            return 0

    machine = ShardMachine(Head(attributes=QueueAttributes.create().to_wire()), [], Bulk([], []))
    decision = machine.decide([Claim(1_000_000, 30 * S, "lease")], 0)
    assert decision.puts == [Run(0, 999_999, IN_FLIGHT, "lease", 1, 30 * S, 0, 0)]
    assert decision.head.head_offset == 1_000_000
    assert machine.counts(0) == Counts(1_000_000, 1_000_000, 0)


# -- delays -----------------------------------------------------------------------------------------------


@pytest.mark.spec("DLY-1", "DLY-2", "DLY-11", "STA-8", "EXM-11")
def test_a_delayed_message_arrives_exactly_when_its_delay_ends() -> None:
    q = shard(sent=[10, 10], delays=[45, 0])
    assert q.receive(10, 10, vt=300) == "1"
    assert q.receive(54.999999) == ""
    assert q.receive(55) == "0"


@pytest.mark.spec("DLY-12", "QUE-23")
def test_each_message_is_counted_once() -> None:
    q = shard(3, delays=[0, 0, 45])
    q.receive(0)
    assert q.counts(0) == (1, 1, 1)
    assert q.machine.stored(0) == 3


@pytest.mark.spec("DLY-1")
def test_the_head_passes_delayed_messages_as_one_run() -> None:
    q = shard(5, delays=[9, 5, 7, 0, 0])
    assert q.receive(0) == "3"
    assert q.machine.runs[0] == Run(0, 2, VISIBLE)
    assert q.receive(5, 10) == "1 4"
    assert [run[:3] for run in q.machine.runs[:3]] == [(0, 0, VISIBLE), (1, 1, IN_FLIGHT), (2, 2, VISIBLE)]
    assert q.receive(9, 10) == "0 2"


@pytest.mark.spec("RCV-14", "DLY-1")
def test_an_empty_receive_over_delayed_messages_commits_nothing() -> None:
    q = shard(3, delays=[9, 9, 9])
    assert q.receive(0) == ""
    assert not q.last.commit and q.machine.head.head_offset == 0


@pytest.mark.spec("DLY-1", "STA-8")
def test_a_message_without_delay_is_available_whatever_the_clock_says() -> None:
    assert shard(sent=[100]).receive(50) == "0"


@pytest.mark.spec("LPL-4")
def test_the_next_event_is_the_first_end_of_a_delay_or_timeout() -> None:
    q = shard(3, delays=[0, 40, 20])
    assert q.machine.next_event(0) == 20 * S
    q.receive(0, vt=10, lease="a")
    assert q.machine.next_event(0) == 10 * S
    q.change(1, 0, "a", 60)
    assert q.machine.next_event(1 * S) == 20 * S
    q.delete(2, 0, "a")
    assert q.machine.next_event(30 * S) == 40 * S
    assert q.machine.next_event(40 * S) is None


# -- receipts ---------------------------------------------------------------------------------------------


@pytest.mark.spec("DEL-1", "DEL-2", "DEL-3", "RCV-7", "STA-4", "STA-10", "STA-12")
def test_only_a_delete_removes_a_message() -> None:
    q = shard(1)
    q.receive(0, lease="a")
    assert q.machine.stored(0) == 1
    assert q.delete(29, 0, "a") is True
    assert q.last.puts == [] and q.last.deletes == [0]
    assert q.machine.stored(29) == 0
    assert q.receive(30) == ""


@pytest.mark.spec("RCP-10", "DEL-7")
def test_deleting_again_succeeds_silently() -> None:
    q = shard(1)
    q.receive(0, lease="a")
    assert [q.delete(1, 0, "a") for _ in range(3)] == [True, False, False]
    assert not q.last.commit


@pytest.mark.spec("RCP-5", "RCP-6", "DEL-8", "PRF-10")
def test_an_older_receipt_deletes_nothing_on_a_lenient_queue() -> None:
    q = shard(runs=[held(0, 0, "new", 60, count=2)], head=1)
    assert q.delete(31, 0, "old") is False
    assert q.counts(31) == (0, 1, 0)
    assert q.delete(32, 0, "new") is True


@pytest.mark.spec("RCP-7", "PRF-10")
@pytest.mark.parametrize(("lease", "at"), [("old", 5), ("latest", 30)])
def test_an_older_or_ended_receipt_is_refused_on_a_strict_queue(lease: str, at: float) -> None:
    q = shard(runs=[held(0, 0, "latest", 30)], head=1, **STRICT)
    with pytest.raises(QueueServiceError, match=r"Value H for .* The receipt handle has expired") as refused:
        q.delete(at, 0, lease)
    assert refused.value.code == "InvalidParameterValue"
    assert q.machine.stored(int(at * S)) == 1


@pytest.mark.spec("RCP-8", "VIS-2", "VIS-13")
def test_the_latest_receipt_outlives_its_timeout_on_a_lenient_queue() -> None:
    q = shard(runs=[held(0, 1, "a", 1)], head=2)
    assert q.delete(2, 0, "a") is True
    q.change(2, 1, "a", 30)
    assert q.receive(31.9) == ""
    assert q.receive(32) == "1"


@pytest.mark.spec("VIS-2", "RCP-13", "VIS-6", "ERR-4")
def test_an_older_receipt_changes_nothing() -> None:
    q = shard(runs=[held(0, 0, "old", 30)], head=1)
    q.change(0, 0, "old", 100)
    assert q.receive(100, lease="new") == "0"
    with pytest.raises(QueueServiceError, match="expired"):
        q.change(101, 0, "old", 500)
    assert q.receive(130) == "0"


@pytest.mark.spec("RCP-11")
def test_a_deleted_message_cannot_be_changed() -> None:
    q = shard(1)
    q.receive(0, lease="a")
    q.delete(1, 0, "a")
    with pytest.raises(QueueServiceError, match="does not exist or is not available") as refused:
        q.change(2, 0, "a", 30)
    assert refused.value.code == "InvalidParameterValue"


@pytest.mark.spec("RCP-12")
def test_a_message_that_is_not_in_flight_cannot_be_changed() -> None:
    strict = shard(runs=[held(0, 0, "a", 1)], head=1, **STRICT)
    with pytest.raises(QueueServiceError) as refused:
        strict.change(2, 0, "a", 5)
    assert refused.value.code == "MessageNotInflight"
    lenient = shard(runs=[held(0, 0, "a", 30)], head=1)
    lenient.change(1, 0, "a", 0)
    with pytest.raises(QueueServiceError) as refused:
        lenient.change(1, 0, "a", 5)
    assert refused.value.code == "MessageNotInflight"
    assert lenient.delete(2, 0, "a") is True


# -- visibility -------------------------------------------------------------------------------------------


@pytest.mark.spec("EXM-3", "VIS-1", "VIS-3", "VIS-5")
@pytest.mark.parametrize(("timeout", "visible"), [(10, 25), (120, 135)])
def test_a_change_counts_from_the_call(timeout: float, visible: float) -> None:
    q = shard(1, visibility_timeout=60)
    q.receive(0, lease="a")
    q.change(15, 0, "a", timeout)
    assert q.receive(visible - 0.000001) == ""
    assert q.receive(visible) == "0"


@pytest.mark.spec("VIS-4", "VIS-16", "BAT-3")
def test_a_change_to_zero_hands_the_message_back_at_once() -> None:
    q = shard(3)
    q.receive(0, 3, lease="a")
    q.change(3, 1, "a", 0)
    [span] = q.ask(3, Claim(10, 30 * S, "b")).spans
    assert span == ClaimedSpan(1, 1, 2, 0)


@pytest.mark.spec("VIS-16")
def test_a_change_keeps_count_and_lease() -> None:
    q = shard(1)
    q.receive(0, lease="a")
    q.change(1, 0, "a", 60)
    assert q.machine.runs == [Run(0, 0, IN_FLIGHT, "a", 1, 61 * S, 0, 0)]


@pytest.mark.spec("VIS-9")
def test_a_receipt_ends_twelve_hours_after_the_receive_at_the_latest() -> None:
    q = shard(runs=[held(0, 0, "a", 43_200)], head=1)
    text = r"Value 43200 for parameter visibility_timeout is invalid. Reason: Total .* \[43200 seconds\]"
    with pytest.raises(QueueServiceError, match=text):
        q.change(3600, 0, "a", 43_200)
    with pytest.raises(QueueServiceError, match=r"Value 39600\.5 for"):
        q.change(3600, 0, "a", 39_600.5)
    with pytest.raises(QueueServiceError, match="beyond the limit"):
        q.ask(3600, LeaseExtend("a", [(0, 0)], 39_601 * S))
    q.change(3600, 0, "a", 39_600)
    q.change(43_300, 0, "a", 0)


def test_a_change_to_what_is_already_so_needs_no_commit() -> None:
    q = shard(runs=[held(0, 0, "a", 30)], head=1)
    q.change(10, 0, "a", 20)
    assert not q.last.commit


# -- the cap ----------------------------------------------------------------------------------------------


@pytest.mark.spec("INF-2", "INF-3", "INF-5", "ERR-3", "PER-3")
def test_a_full_standard_queue_refuses_a_receive() -> None:
    q = shard(9, max_inflight_messages=5)
    assert q.receive(0, 10, lease="a") == "0 1 2 3 4"
    with pytest.raises(QueueServiceError) as refused:
        q.receive(1)
    assert refused.value.code == "OverLimit"
    q.delete(2, 3, "a")
    assert q.receive(2, 10) == "5"
    assert q.receive(30, 10) == "0 1 2 4"


@pytest.mark.spec("INF-6", "INF-11")
def test_a_receive_takes_what_room_there_is() -> None:
    q = shard(9, max_inflight_messages=5)
    assert q.receive(0, 3) == "0 1 2"
    assert q.receive(0, 10) == "3 4"


@pytest.mark.spec("INF-7")
def test_a_receive_gets_nothing_at_the_cap() -> None:
    q = shard(9, max_inflight_messages=2, message_retention_period=60)
    assert q.receive(0, 5, vt=100) == "0 1"
    with pytest.raises(QueueServiceError, match="in flight"):
        q.receive(1)
    assert q.machine.next_event(1 * S) == 60 * S, "an expired message makes room as well"


@pytest.mark.spec("INF-11")
def test_an_ended_receipt_comes_back_only_if_there_is_room() -> None:
    q = shard(4, runs=[held(0, 1, "a", 1)], head=2, max_inflight_messages=2)
    q.receive(1, 1, lease="b")  # message 0 again
    with pytest.raises(QueueServiceError, match="expired"):
        q.change(2, 0, "a", 9)
    q.change(2, 1, "a", 9)
    q.change(3, 1, "a", 0)
    assert q.receive(3, 1, lease="c") == "1"
    q = shard(4, runs=[held(0, 2, "a", 1)], head=3, max_inflight_messages=2)
    assert q.ask(2, LeaseExtend("a", [(0, 2)], 9 * S)) == LeaseCounts(2, 1)
    with pytest.raises(QueueServiceError) as refused:
        q.change(2, 2, "a", 9)
    assert refused.value.code == "OverLimit"


@pytest.mark.spec("INF-2")
def test_each_shard_holds_its_part_of_the_cap() -> None:
    assert shard(9, max_inflight_messages=7, shards=2).receive(0, 9) == "0 1 2"


# -- retention --------------------------------------------------------------------------------------------


@pytest.mark.spec("RET-1", "RET-9", "STA-5")
def test_a_message_is_gone_when_its_retention_ends() -> None:
    q = shard(sent=[0, 1], message_retention_period=60)
    assert q.receive(59.999999, vt=0) == "0"
    assert q.receive(60, 10, vt=0) == "1"
    assert q.receive(61) == ""


@pytest.mark.spec("RET-2", "RET-3", "STA-5")
def test_delayed_and_received_messages_expire_as_well() -> None:
    q = shard(3, delays=[59, 0, 0], message_retention_period=60)
    assert q.receive(55, lease="a") == "1"
    assert q.counts(59) == (2, 1, 0)
    assert q.counts(60) == (0, 0, 0)
    assert q.receive(90, 10) == ""


@pytest.mark.spec("DEL-9", "RET-3")
def test_deleting_an_expired_message_succeeds_and_changing_it_does_not() -> None:
    q = shard(runs=[held(0, 0, "a", 65, at=5)], head=1, message_retention_period=60)
    with pytest.raises(QueueServiceError, match="does not exist"):
        q.change(70, 0, "a", 5)
    assert q.delete(70, 0, "a") is False


@pytest.mark.spec("RET-6", "QUE-25")
def test_a_new_retention_applies_at_once() -> None:
    old, short, long = (
        QueueAttributes.create(message_retention_period=days * 86_400).to_wire() for days in (4, 1, 9)
    )
    q = shard(sent=[0, 86_400 * 2], message_retention_period=4 * 86_400)
    assert q.ask(86_400 * 2, SetAttributes(short, 1)) is True
    assert q.receive(86_400 * 2, 10, vt=0) == "1"
    q.ask(86_400 * 2, SetAttributes(long, 2))
    assert q.receive(86_400 * 10, 10, vt=0) == "1"
    assert q.ask(86_400 * 10, SetAttributes(old, 2)) is False
    assert not q.last.commit


@pytest.mark.spec("RET-6")
def test_what_had_expired_before_a_longer_retention_stays_gone() -> None:
    q = shard(sent=[0, 50], message_retention_period=60)
    q.ask(60, SetAttributes(QueueAttributes.create().to_wire(), 1))
    assert q.machine.head.floor_offset == 1
    assert q.receive(61, 10) == "1"


@pytest.mark.spec("RET-9", "DLT-7")
def test_expiry_rides_along_with_the_next_commit() -> None:
    q = shard(sent=[0, 0, 50], runs=[held(0, 1, "a", 30)], head=2, message_retention_period=60)
    assert q.delete(60, 0, "a") is False
    assert not q.last.commit
    assert q.receive(60, vt=30) == "2"
    assert q.last.deletes == [0] and [run.first for run in q.last.puts] == [2]
    assert q.last.head.floor_offset == 2


@pytest.mark.spec("RET-9")
def test_an_expire_command_reports_and_commits_what_expired() -> None:
    q = shard(sent=[0, 0, 50], runs=[held(1, 1, "a", 30)], head=2, message_retention_period=60)
    assert q.ask(59, Expire()) == 0
    assert not q.last.commit
    assert q.ask(60, Expire()) == 1
    assert q.last.deletes == [1] and q.last.head.floor_offset == 2
    assert q.ask(60, Expire()) == 0


def test_what_expires_while_a_commit_is_under_way_is_not_forgotten() -> None:
    q = shard(sent=[0, 50], runs=[held(0, 0, "a", 30)], head=1, message_retention_period=60)
    q.machine.decide([Claim(1, 30 * S, "b")], 59 * S)
    assert q.machine.stored(60 * S) == 1
    q.machine.committed()
    assert q.ask(60, Expire()) == 1
    assert q.last.deletes == [0]


# -- purge, attributes, close -----------------------------------------------------------------------------


@pytest.mark.spec("PUR-1", "PUR-3", "PUR-4")
def test_a_purge_removes_waiting_received_and_delayed_messages() -> None:
    q = shard(4, delays=[0, 50, 0, 0])
    q.receive(0, lease="a")
    q.receive(0, lease="b")
    q.ask(1, Purge("orders"))
    assert q.machine.runs == [] and q.last.puts == [] and q.last.deletes == [0, 1, 2]
    assert q.counts(100) == (0, 0, 0)
    assert q.delete(2, 0, "a") is False
    with pytest.raises(QueueServiceError, match="does not exist"):
        q.change(2, 0, "a", 5)
    q.machine.log = FakeLog([0, 0, 0, 0, 5], [0] * 5)
    assert q.receive(100, 10) == "4"
    assert (q.machine.head.purged_offset, q.machine.head.purged_at) == (4, 1 * S)


@pytest.mark.spec("PUR-2")
def test_a_second_purge_waits_sixty_seconds() -> None:
    q = shard(1)
    q.ask(0, Purge("orders"))
    with pytest.raises(QueueServiceError, match="on orders is allowed every 60 seconds") as refused:
        q.ask(59.999999, Purge("orders"))
    assert refused.value.code == "PurgeQueueInProgress"
    q.ask(60, Purge("orders"))


@pytest.mark.spec("QUE-5", "QUE-25")
def test_a_new_visibility_timeout_applies_to_later_receives() -> None:
    q = shard(2)
    q.receive(0)
    q.ask(0, SetAttributes(QueueAttributes.create(visibility_timeout=60).to_wire(), 1))
    q.receive(0)
    assert q.receive(30, 10, vt=0) == "0"
    assert q.receive(59, 10, vt=0) == "0"
    assert q.receive(60, 10, vt=0) == "0 1"


@pytest.mark.spec("QUE-13")
def test_a_closed_shard_refuses_everything() -> None:
    q = shard(1)
    q.ask(0, Close())
    assert q.last.head.closed
    for command in (Claim(1, None, "a"), Delete(0, "a"), Purge(), Expire(), Close()):
        with pytest.raises(QueueServiceError) as refused:
            q.ask(1, command)
        assert refused.value.code == "QueueDoesNotExist"


# -- leases -----------------------------------------------------------------------------------------------


@pytest.mark.spec("DEL-2", "RCP-6")
def test_a_lease_settles_what_it_still_holds() -> None:
    q = shard(10, runs=[held(0, 3, "a", 30), held(4, 4, "b", 30), held(5, 9, "a", 30)], head=10)
    assert q.ask(1, LeaseDelete("a", [(0, 9)], except_offsets=[2, 4, 7], failure="why")) == LeaseCounts(7, 1, 2)
    assert [run[:5] for run in q.machine.runs] == [
        (2, 2, VISIBLE, "a", 1),
        (4, 4, IN_FLIGHT, "b", 1),
        (7, 7, VISIBLE, "a", 1),
    ]
    assert q.receive(1, 10) == "2 7"
    assert q.ask(2, LeaseDelete("a", [(0, 9)])) == LeaseCounts(0, 10)
    assert not q.last.commit


@pytest.mark.spec("VIS-1", "VIS-3")
def test_extending_a_lease_of_a_million_messages_is_one_run() -> None:
    q = shard(0, runs=[held(0, 999_999, "a", 30)], head=1_000_000)
    q.machine.log = FakeLog([0], [0])
    q.machine.log.first_sent_at_or_after = lambda instant: 0  # type: ignore[method-assign]
    assert q.ask(20, LeaseExtend("a", [(0, 999_999)], 30 * S)) == LeaseCounts(1_000_000, 0)
    assert q.last.puts == [held(0, 999_999, "a", 50)]


@pytest.mark.spec("VIS-4")
def test_releasing_a_lease_makes_the_rest_of_it_visible() -> None:
    q = shard(3, runs=[held(0, 2, "a", 30)], head=3)
    q.delete(1, 1, "a")
    assert q.ask(1, LeaseRelease("a", [(0, 2)])) == LeaseCounts(2, 1)
    assert q.ask(1, LeaseRelease("a", [(0, 2)])) == LeaseCounts(0, 3)
    assert q.receive(1, 10) == "0 2"


def batch(q: Shard, at: float, most: int, leased: int = 0) -> tuple[list[int], int | None]:
    """Offsets of the next batch under the lease that is named by its instant, and where dead letters are."""
    claim = Claim(most, None, f"at-{at}", dead_letter_keys={DEAD: "key"}, leased=leased)
    claimed = q.ask(at, claim)
    if claimed.moving:
        [(first, last, _, failure, _)] = q.machine.outgoing().parts
        assert first == last and failure == reason("boom").json()
        q.ask(at, Moved(q.machine.outgoing().number))
        return batch(q, at, most)[0], first
    return [offset for span in claimed.spans for offset in range(span.first, span.last + 1)], None


def reason(text: str) -> DeadLetterReason:
    return DeadLetterReason("ValueError", text, from_micros(0), "batch")


def fail(q: Shard, at: float, offsets: list[int]) -> None:
    note = failed_together(reason("boom"), len(offsets))
    q.ask(at, LeaseRelease(f"at-{at}", [(offset, offset) for offset in offsets], failure=note))


@pytest.mark.spec("DLQ-12")
def test_a_batch_that_fails_comes_in_halves_until_the_message_that_fails_is_alone() -> None:
    q = shard(100, redrive_policy={"deadLetterTargetArn": DEAD, "maxReceiveCount": 3})
    handled: list[int] = []
    sizes: list[int] = []
    dead: list[int] = []
    for at in range(40):
        offsets, letter = batch(q, at, 100)
        dead += [] if letter is None else [letter]
        if not offsets:
            break
        sizes.append(len(offsets))
        if 37 in offsets:
            fail(q, at, offsets)
        else:
            handled += offsets
            q.ask(at, LeaseDelete(f"at-{at}", [(offset, offset) for offset in offsets]))
    assert dead == [37]
    assert sorted(handled) == [offset for offset in range(100) if offset != 37]
    assert sizes[:5] == [100, 50, 25, 25, 12] and sizes.count(1) <= 7


@pytest.mark.spec("DLQ-12")
def test_what_failed_as_one_batch_comes_without_others_and_in_one_shard() -> None:
    q = shard(6, runs=[held(0, 3, "at-0", 30)], head=4)
    fail(q, 0, [0, 1, 2, 3])
    assert q.receive(1, 1, vt=0) == "0"  # a receive of single messages takes any, and knows of no batch
    assert batch(q, 1, 10) == ([0], None)  # up to those of the batch
    assert batch(q, 2, 10, leased=1) == ([], None)
    assert batch(q, 2, 10) == ([1, 2], None)
    assert batch(q, 3, 10) == ([3], None)
    assert batch(q, 4, 10) == ([4, 5], None)


@pytest.mark.spec("RCP-7", "RCP-8")
def test_an_ended_lease_is_lost_on_strict_queues_only() -> None:
    runs = [held(0, 2, "a", 30)]
    for command in (
        LeaseDelete("a", [(0, 2)]),
        LeaseExtend("a", [(0, 2)], 9 * S),
        LeaseRelease("a", [(0, 2)]),
    ):
        assert shard(3, runs=runs, head=3, **STRICT).ask(30, command) == LeaseCounts(0, 3)
        assert shard(3, runs=runs, head=3).ask(30, command) == LeaseCounts(3, 0)


# -- rows, time and batches -------------------------------------------------------------------------------


@pytest.mark.spec("ERR-8", "BAT-4")
def test_a_refused_command_does_not_stop_the_others() -> None:
    machine = shard(2, runs=[held(0, 1, "a", 30)], head=2).machine
    decision = machine.decide(
        [ChangeVisibility(0, "b", S, "H"), Delete(0, "a"), Delete(0, "a"), ChangeVisibility(0, "a", S, "H")],
        S,
    )
    codes = [result.error.code if result.error else result.value for result in decision.results]
    assert codes == ["InvalidParameterValue", True, False, "InvalidParameterValue"]
    assert [result.changed for result in decision.results] == [False, True, True, True]


def test_neighbours_in_the_same_state_are_one_row() -> None:
    q = shard(3, runs=[held(0, 2, "a", 30)], head=3)
    q.change(5, 0, "a", 40)
    q.change(5, 2, "a", 40)
    assert [(run.first, run.last) for run in q.machine.runs] == [(0, 0), (1, 1), (2, 2)]
    q.change(5, 1, "a", 40)
    assert q.last.puts == [held(0, 2, "a", 45)] and q.last.deletes == [1, 2]


def test_a_split_writes_only_the_rows_that_differ() -> None:
    q = shard(5, runs=[held(0, 4, "a", 30)], head=5)
    q.delete(1, 2, "a")
    assert q.last.puts == [held(0, 1, "a", 30), held(3, 4, "a", 30)] and q.last.deletes == []


def test_the_head_carries_epoch_floor_and_time() -> None:
    q = shard(3)
    q.receive(7, 2, lease="a")
    q.delete(8, 0, "a")
    head = q.machine.head
    assert (head.epoch, head.head_offset, head.floor_offset, head.committed_at) == (2, 2, 1, 8 * S)


def test_time_never_goes_back() -> None:
    q = shard(2)
    assert q.ask(50, Claim(1, 30 * S, "a")).received_at == 50 * S
    again = Shard(ShardMachine(q.machine.head, q.machine.runs, q.machine.log))
    assert again.ask(20, Claim(1, 30 * S, "b")).received_at == 50 * S
    assert again.receive(79) == ""
    assert again.receive(80) == "0"


@pytest.mark.spec("DLT-3", "RCP-8")
def test_a_machine_built_from_the_rows_goes_on_where_the_last_one_stopped() -> None:
    q = shard(6, delays=[20, 0, 0, 0, 0, 0])
    q.receive(0, 2, lease="a")
    q.change(1, 1, "a", 0)
    again = Shard(ShardMachine(q.machine.head, reversed(q.machine.runs), q.machine.log))
    assert again.machine.runs == q.machine.runs and again.counts(1) == q.counts(1) == (4, 1, 1)
    assert again.receive(20, 10, vt=0) == "0 1 3 4 5"


def test_only_a_decision_that_changed_something_can_be_committed() -> None:
    machine = shard(0).machine
    machine.decide([Claim(1, None, "a")], 0)
    with pytest.raises(RuntimeError, match="nothing to commit"):
        machine.committed()


def test_something_that_is_no_command_is_refused() -> None:
    with pytest.raises(TypeError, match="not a command"):
        shard().machine.decide(["claim"], 0)  # type: ignore[list-item]


@pytest.mark.spec("PER-3")
def test_a_hundred_and_twenty_thousand_runs_in_flight_slow_nothing_down() -> None:
    count = 120_000
    log = FakeLog([0] * 100, [0] * 100)
    log.first_sent_at_or_after = lambda instant: 0  # type: ignore[method-assign]
    log.sent = [0] * (2 * count + 100_000)
    log.delays = log.sent
    runs = [held(2 * i, 2 * i, f"lease-{i}", 1_000 + i) for i in range(count)]
    head = Head(head_offset=2 * count, attributes=QueueAttributes.create().to_wire())
    started = time.process_time()
    machine = ShardMachine(head, runs, log)
    assert time.process_time() - started < 3
    started = time.process_time()
    for i in range(500):
        machine.decide([Claim(1, 30 * S, f"new-{i}")], S)
        machine.committed()
        machine.decide([Delete(2 * i, f"lease-{i}")], S)
        machine.committed()
        machine.counts(S)
    assert time.process_time() - started < 2.5
    assert machine.counts(S).in_flight == count


# -- too many delayed messages ----------------------------------------------------------------------------


def looked(q: Shard, at: float) -> tuple[int, int, int, int]:
    """Visible, in flight, delayed, held."""
    return (*q.counts(at), q.machine.counts(int(at * S)).held)


def set_cap(q: Shard, at: float, cap: int | None, version: int = 2, **more: Any) -> Any:
    wire = QueueAttributes.create(max_delayed_messages=cap, **more).to_wire()
    return q.ask(at, SetAttributes(wire, version))


@pytest.mark.spec("DLQ-2", "DLQ-4", "DLQ-8")
@pytest.mark.parametrize("redrive", [False, True])
def test_what_comes_back_from_a_move_was_received_as_often_and_as_early_as_before(redrive: bool) -> None:
    dead = "arn:lakequeue:sqs:local:000000000000:dead"
    q = shard(redrive_policy={"deadLetterTargetArn": dead, "maxReceiveCount": 2})
    assert q.receive(1, vt=1) == q.receive(2, vt=1) == "0"
    q.ask(3, Move([(0, 0)], "key") if redrive else Claim(1, None, "a", dead_letter_keys={dead: "key"}))
    outgoing = q.machine.outgoing()
    assert outgoing is not None and [part[:4] for part in outgoing.parts] == [(0, 0, 0 if redrive else 2, None)]
    assert q.ask(4, MoveBack(outgoing.number)) == 1
    claimed = q.ask(5, Claim(1, None, "b", dead_letter_keys={dead: None}))
    assert claimed.spans == (ClaimedSpan(0, 0, 3, 1 * S),)


@pytest.mark.spec("RWD-10", "RWD-20", "STA-13")
def test_rewound_messages_are_visible_though_a_delay_that_was_ended_early_is_not_over() -> None:
    q = shard(sent=[0, 0, 1, 2], delays=[0, 900, 1, 0], rewind_range=3_600)
    q.ask(3, MakeVisible([(1, 1)]))
    assert q.receive(3, 10, lease="a") == "0 1 2 3"
    q.ask(3, LeaseDelete("a", [(0, 3)]))
    assert q.ask(4, Rewind(0)) == 4
    assert q.counts(4) == (4, 0, 0)
    assert [(run.first, run.last) for run in q.machine.runs] == [(0, 0), (1, 1), (2, 3)]  # no more than it takes
    assert q.receive(4, 10) == "0 1 2 3"


@pytest.mark.spec("RWD-4", "RWD-7")
@pytest.mark.parametrize("parts", [1, 2])
def test_the_history_says_of_the_newest_deletes_when_they_were_and_stays_short(
    monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    monkeypatch.setattr(state, "TIMED_RUNS", 8)
    monkeypatch.setattr(state.ShardState, "_history_limit", 8)
    q = shard(sent=[0] * 1_000, rewind_range=3_600)
    q.receive(0, 1_000, 7_200, lease="a")
    for second, offset in enumerate(range(0, 1_000, parts), start=1):
        q.delete(second, offset, "a")
        q.machine.decide([], second * S)
        history = q.machine.history
        timed = [run for run in history if run.visible_at is not None]
        assert timed == history[-len(timed) :] and min(4, second) <= len(timed) <= 8
        assert [run.visible_at for run in timed] == [
            (second - len(timed) + 1 + at) * S for at in range(len(timed))
        ]
        assert sum(run.size for run in history) == second
        assert parts > 1 or len(history) <= 9


@pytest.mark.spec("INF-8", "INF-9", "DLY-5", "QTA-5", "DLY-11", "LPL-4", "STA-13")
def test_what_is_sent_while_too_many_are_delayed_is_held_until_fewer_are() -> None:
    q = shard(delays=[10, 10, 0], sent=[0, 0, 0], max_delayed_messages=2)
    assert q.receive(1, 10) == "" and not q.last.commit
    assert looked(q, 1) == (0, 0, 2, 1)
    assert q.machine.peek(S, 10) == [Run(0, 2)] and q.machine.held_from(S) == 2
    assert q.machine.next_event(S) == 10 * S
    assert q.receive(9.999999, 10) == ""
    assert q.receive(10, 10) == "0 1 2"


@pytest.mark.spec("INF-9", "DLY-11")
def test_held_messages_are_released_in_the_order_of_sending_with_what_is_left_of_their_delays() -> None:
    q = shard(sent=[0, 0, 1, 1, 1, 2], delays=[10, 20, 5, 30, 0, 0], max_delayed_messages=2)
    assert looked(q, 2) == (0, 0, 2, 4)
    assert looked(q, 7) == (0, 0, 2, 4)  # the third would be visible by now
    assert q.receive(10, 10) == "0 2"
    assert looked(q, 10) == (0, 2, 2, 2)  # the fourth took the place
    assert q.receive(20, 10) == "1 4 5"
    assert looked(q, 20) == (0, 5, 1, 0)


@pytest.mark.spec("INF-9", "STA-1")
def test_messages_sent_before_the_cap_was_reached_are_received_as_ever() -> None:
    q = shard(delays=[0, 10, 0, 10, 0], sent=[0] * 5, max_delayed_messages=2)
    assert q.receive(0, 10) == "0 2"
    assert looked(q, 0) == (0, 2, 2, 1)
    assert q.machine.head.head_offset == 3


@pytest.mark.spec("INF-9")
def test_a_lower_cap_holds_nothing_that_was_released() -> None:
    q = shard(delays=[10, 20, 30, 0, 0], sent=[0] * 5, max_delayed_messages=4)
    assert looked(q, 0) == (2, 0, 3, 0)
    set_cap(q, 0, 1)
    log = FakeLog([0] * 5 + [1], [10, 20, 30, 0, 0, 0])
    q.machine.log = log
    assert looked(q, 1) == (2, 0, 3, 1)
    again = Shard(ShardMachine(q.machine.head, q.machine.runs, log))
    assert looked(again, 1) == (2, 0, 3, 1)
    assert looked(again, 20) == (4, 0, 1, 1)
    assert again.receive(30, 10) == "0 1 2 3 4 5"


@pytest.mark.spec("INF-9")
def test_a_higher_cap_or_none_releases_and_a_first_one_leaves_what_is_there() -> None:
    q = shard(delays=[10, 10, 10, 0], sent=[0] * 4, max_delayed_messages=1)
    assert looked(q, 0) == (0, 0, 1, 3)
    set_cap(q, 0, 3)
    assert looked(q, 0) == (0, 0, 3, 1)
    set_cap(q, 0, None, version=3)
    assert looked(q, 0) == (1, 0, 3, 0)
    set_cap(q, 0, 1, version=4)
    assert looked(q, 0) == (1, 0, 3, 0)
    q.machine.log = FakeLog([0] * 4 + [1], [10, 10, 10, 0, 0])
    assert looked(q, 1) == (1, 0, 3, 1)


@pytest.mark.spec("INF-9")
def test_a_first_cap_counts_what_is_delayed_already() -> None:
    q = shard(delays=[10, 10], sent=[0, 0])
    assert looked(q, 0) == (0, 0, 2, 0)
    set_cap(q, 0, 2)
    q.machine.log = FakeLog([0, 0, 1], [10, 10, 0])
    assert looked(q, 1) == (0, 0, 2, 1)
    assert looked(q, 10) == (3, 0, 0, 0)


@pytest.mark.spec("INF-9", "PUR-1", "PUR-3", "RET-2")
def test_held_messages_are_purged_and_expire() -> None:
    q = shard(delays=[10, 0, 0], sent=[0] * 3, max_delayed_messages=1)
    q.ask(1, Purge("orders"))
    assert looked(q, 1) == (0, 0, 0, 0) and q.machine.stored(S) == 0
    q.machine.log = FakeLog([0] * 3 + [2, 2], [10, 0, 0, 20, 0])
    assert looked(q, 2) == (0, 0, 1, 1)

    old = shard(
        delays=[900, 0, 0],
        sent=[0, 0, 50],
        max_delayed_messages=1,
        message_retention_period=60,
        profile_strict=False,
    )
    assert looked(old, 59) == (0, 0, 1, 2)
    assert old.machine.next_event(59 * S) == 60 * S
    assert looked(old, 60) == (1, 0, 0, 0)  # only the last is young enough, and nothing is delayed any more


@pytest.mark.spec("INF-8")
def test_the_cap_is_divided_among_the_shards_and_rounded_down() -> None:
    q = shard(5, delays=[10] * 5, max_delayed_messages=5, shards=2)
    assert looked(q, 0) == (0, 0, 2, 3)


@pytest.mark.spec("PER-5", "INF-8")
def test_20_000_messages_are_delayed_and_the_next_is_held() -> None:
    q = shard(sent=[0] * 20_002, delays=[60] * 20_000, profile_name="cmq")
    assert looked(q, 0) == (0, 0, 20_000, 2)
    assert q.receive(59, 10) == ""
    assert looked(q, 60) == (20_002, 0, 0, 0)
