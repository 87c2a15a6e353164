"""Random sequences of commands, run on the state machine and on the naive model at once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from unittest import mock

import attrs
import numpy as np
import pyarrow as pa

from lakequeue.model.attributes import QueueAttributes
from lakequeue.operations.message_states import Judge, stored_runs
from lakequeue.shard import index
from lakequeue.shard.claim import tenants
from lakequeue.shard.commands import (
    ChangeVisibility,
    Claim,
    ClaimResult,
    Close,
    Decide,
    Delete,
    Discard,
    Erase,
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
    RecordTable,
    Remark,
    Result,
    Rewind,
    SetAttributes,
)
from lakequeue.shard.decide import ShardMachine
from lakequeue.shard.runs import Destination, Head, Run, joined_runs
from lakequeue.shard.spans import ranges
from lakequeue.storage.ledger import run_rows

from . import fair, fifo
from . import model as naive
from .fifo import FifoModel
from .fifo import model as new_model
from .model import (
    DEAD_LETTER_QUEUE,
    DELETED,
    FRESH,
    GONE,
    IN_FLIGHT,
    SECOND,
    VISIBLE,
    ListLog,
    Message,
    Model,
    Row,
    Settings,
)

JUMPS = (
    *(0, 0, 0, 1, SECOND - 1, SECOND, 2 * SECOND, 5 * SECOND, 5 * SECOND, 10 * SECOND, 10 * SECOND),
    *(25 * SECOND, 30 * SECOND, 60 * SECOND, 61 * SECOND, -20 * SECOND, 40_000 * SECOND),
)
TIMEOUTS = (30 * SECOND, 10 * SECOND, 5 * SECOND, SECOND, 0, 3_600 * SECOND, 43_200 * SECOND)
FIFO_JUMPS = (*JUMPS, 0, 0, SECOND, SECOND, 2 * SECOND, 240 * SECOND, 300 * SECOND - 1, 300 * SECOND)
DELAYS = (0, 0, 0, 5 * SECOND, 10 * SECOND, 45 * SECOND, 100 * SECOND)  # the last outlives some retentions
RETENTIONS = (345_600 * SECOND, 60 * SECOND, 150 * SECOND, 86_400 * SECOND)
REWINDS = (345_600 * SECOND, 60 * SECOND, 0, 345_600 * SECOND, 10 * SECOND, 0, 3_600 * SECOND, 150 * SECOND)
CAPS = (None, None, 2, 4)
RATES = (None, None, None, (120, 3), (6, 1), (1, 2))
GROUP_LIMITS = (None, None, 1, 2, 3)
RECEIVES = (None, None, 1, 2, 3)
ELSEWHERE = Destination("elsewhere", 1, False)
KEYS: tuple[dict[str, Destination | None], ...] = (
    *({DEAD_LETTER_QUEUE: ELSEWHERE},) * 5,
    {},
    {DEAD_LETTER_QUEUE: None},
)
DELAYED_CAPS = (None, 1, None, 3, None, 2)
ATTEMPTS = (None, "x", None, "y", "x")
OPERATIONS = (
    *("send",) * 5,
    *("claim",) * 6,
    *("delete",) * 4,
    *("consume",) * 2,
    *("change",) * 3,
    "lease_delete",
    *("lease_extend",) * 2,
    "lease_release",
    *("rewind",) * 4,
    *("end_move",) * 2,
    "move",
    "discard",
    "erase",
    "make_visible",
    "purge",
    "set_attributes",
    "expire",
    *("exchange",) * 2,
)  # fmt: skip
DELIVERY_IDS = (None, "a", "b")
DELIVERY_OPERATIONS = (
    *OPERATIONS,
    *("deliver",) * 10,
    *("decide",) * 6,
    *("remark",) * 4,
    *("deliver_release",) * 4,
    *("record_table",) * 2,
    "set_attributes",
)
"""For queues with a delivery table."""
FIFO_OPERATIONS = (*OPERATIONS, "send", *("claim",) * 3, *("delete", "lease_delete") * 2)
ENDINGS = ("batch", "batch", "batch", "commit", "commit", "commit", "rebuild", "fail")


def wire(settings: Settings) -> dict[str, str]:
    """Attributes of a queue with these settings."""
    profile = "cmq" if settings.strict and not settings.fifo else "lake"
    made = QueueAttributes.create(profile, fifo=settings.fifo, **attributes(settings)).to_wire()
    if settings.delivery_id is None:
        return made
    return made | {"Table": naive.TABLE, "DeliveryId": settings.delivery_id}


def attributes(settings: Settings) -> dict[str, Any]:
    """Attributes as `LakeQueue.create_queue` takes them, and `Queue.set_attributes`."""
    given: dict[str, Any] = {"visibility_timeout": settings.visibility_timeout / SECOND}
    given["message_retention_period"] = settings.retention / SECOND
    given["rewind_range"] = settings.rewind / SECOND
    given["profile_strict"] = False
    if settings.max_receives is not None:
        policy = {"deadLetterTargetArn": DEAD_LETTER_QUEUE, "maxReceiveCount": settings.max_receives}
        given["redrive_policy"] = policy
    given["max_inflight_messages"] = settings.cap
    given["max_delayed_messages"] = settings.delayed_cap
    given["paused"] = "the bank is down" if settings.paused else None
    given["paused_groups"] = dict.fromkeys(settings.paused_groups, "its bank is down")
    if settings.rate is not None:
        given |= {"rate_limit": f"{settings.rate[0]}/m", "rate_burst": settings.rate[1]}
    else:
        given |= {"rate_limit": None}
    if settings.tenants:
        given |= {"fair_groups": settings.fair, "group_in_flight_limit": settings.group_limit}
    if settings.fifo:
        given |= {"content_based_deduplication": True, "delay": settings.delay / SECOND}
    return given


class Commands:
    """The model, and random commands that make sense in its state; what runs them as well is up to a subclass.

    On FIFO queues, and with tenants, the messages belong to up to `groups` message groups.
    """

    def __init__(self, settings: Settings, groups: int = 1) -> None:
        self.groups = ["" if settings.tenants else "A", *"BCDEFGH"][:groups]
        # dead letters that expire while held are gone once they are released, which the model does not know
        self.aged_letters = settings.delayed_cap is None and settings.max_receives is not None
        self.clock = 1_000 * SECOND
        self.log: list[Row] = []
        self.model = new_model(settings)
        self.leases: list[tuple[str, list[tuple[int, int]]]] = []
        self.receipts: list[tuple[int, str]] = []
        self.names = 0
        self.batch: list[tuple[Any, tuple[Any, ...]]] = []
        self.delivers = settings.delivery_id is not None
        self.marks: list[tuple[str, tuple[int, int], list[tuple[int, int]]]] = []

    @property
    def fifo(self) -> bool:
        return self.model.settings.fifo

    @property
    def tenants(self) -> bool:
        return self.model.settings.tenants

    def add(self, command: Any, name: str, *arguments: Any) -> None:
        self.batch.append((command, (name, *arguments)))

    # operations

    def send(self, a: int, b: int, c: int) -> None:
        count = a % 5 + 1
        for i in range(count):
            if self.fifo:
                # one group for all, or each message its own
                group = self.groups[(b if c % 3 == 0 else (b >> i) ^ c) % len(self.groups)]
                self.append(0, group, letter=c % 5 == 4)
            else:
                group = self.groups[(b if c % 3 == 0 else (b >> i) ^ c) % len(self.groups)] if self.tenants else ""
                self.append(DELAYS[(b if i < 3 else c) % len(DELAYS)], group, letter=(c + i) % 5 == 4)

    def append(self, delay: int, group: str = "", letter: bool = False) -> None:
        sent_at = max(self.clock, self.log[-1].sent_at if self.log else 0)
        if letter:
            age = JUMPS[len(self.log) % 15]
            first_sent_at = sent_at - age if self.aged_letters and not self.fifo else None
            self.log.append(Row(sent_at, 0, group, len(self.log) % 3 + 1, first_sent_at, sent_at - age // 2))
        else:
            self.log.append(Row(sent_at, delay, group))

    def claim(self, a: int, b: int, c: int) -> None:
        timeout = None if b % 4 == 0 else TIMEOUTS[b % len(TIMEOUTS)]
        attempt = ATTEMPTS[c // 3 % len(ATTEMPTS)] if self.fifo else None
        keys = KEYS[(a + b + c) % len(KEYS)]
        hands = None if attempt is not None else (None, None, 0, 1, 2)[(a + b + 3 * c) % 5]
        self.ask(a % 7 + 1, timeout, attempt, keys, hands, one_each=self.fifo and (a + c) % 3 == 0)

    def ask(
        self,
        count: int,
        timeout: int | None,
        attempt: str | None = None,
        keys: dict[str, Destination | None] = KEYS[0],
        hands: int | None = None,
        one_each: bool = False,
    ) -> None:
        self.names += 1
        lease = f"lease-{self.names}"
        command = Claim(count, timeout, lease, attempt, keys, hands=hands, one_each=one_each)
        self.add(command, "claim", count, timeout, lease, attempt, keys, hands, one_each)

    def deliver(self, a: int, b: int, c: int) -> None:
        timeout = None if b % 4 == 0 else TIMEOUTS[b % len(TIMEOUTS)] or SECOND
        keys, hands, nonce = KEYS[(a + b + c) % len(KEYS)], (None, None, 0, 1, 2)[(a + b + 3 * c) % 5], c
        self.names += 1
        lease = f"lease-{self.names}"
        command = Claim(a % 7 + 1, timeout, lease, "x", keys, hands=hands, delivery=nonce)
        self.add(command, "deliver", a % 7 + 1, timeout, lease, keys, hands, nonce)

    def marked(self, a: int) -> tuple[str, tuple[int, int], list[tuple[int, int]]]:
        """Lease, mark and messages of a delivery; most often of one whose messages are still marked."""
        known = {message.mark for message in self.model.messages}
        living = [each for each in self.marks if each[1] in known]
        marks = living if living and a % 8 else self.marks
        return marks[-1 - a % min(6, len(marks))] if marks else ("nobody", (0, 2**20), [(0, 1)])

    def decide(self, a: int, b: int, c: int) -> None:
        _, (slot, number), _ = self.marked(a)
        delivered, unrecorded = b % 2 > 0, c % 4 == 0
        command = Decide(slot, number, delivered, unrecorded=unrecorded)
        self.add(command, "decide", slot, number, delivered, unrecorded)

    def record_table(self, a: int, b: int, c: int) -> None:
        _, (slot, number), _ = self.marked(a)
        self.add(RecordTable(slot, number, f"t{c % 3}"), "record_table", slot, number, f"t{c % 3}")

    def remark(self, a: int, b: int, c: int) -> None:
        """Splits a delivery into two halves, or keeps one of them."""
        lease, (slot, number), spans = self.marked(a)
        offsets = [offset for first, last in spans for offset in range(first, last + 1)]
        middle = len(offsets) // 2 + b % 2
        parts = [ranges(half) for half in (offsets[:middle], offsets[middle + c % 2 :])][: 1 + c % 3]
        parts = [part for part in parts if part or b % 16 == 0]
        command = Remark(lease, slot, number, parts, nonce=a)
        self.add(command, "remark", lease, slot, number, parts, a)

    def deliver_release(self, a: int, b: int, c: int) -> None:
        """What a holder does that has not tried; or that has, and gives up."""
        lease, _, spans = self.marked(a)
        some, unmark = spans[: 1 + b % 2], c % 3 > 0
        if b % 3:
            self.add(LeaseRelease(lease, some, unmark=unmark), "lease_release", lease, some, unmark)
        else:
            kept = [offset for first, last in spans for offset in range(first, last + 1) if offset >> 1 & 1]
            self.add(LeaseDelete(lease, some, kept, unmark=unmark), "lease_delete", lease, some, kept, unmark)

    def move(self, a: int, b: int, c: int) -> None:
        first = a % (len(self.log) + 1)
        spans = [(first, first + b % 4), (first + 2, first + c % 8)]
        spans = [(low, high) for low, high in spans if low <= high]
        self.add(Move(spans, ELSEWHERE), "move", spans)

    def spans(self, a: int, b: int, c: int) -> list[tuple[int, int]]:
        """Some that overlap, or reach beyond the log."""
        first = a % (len(self.log) + 1)
        spans = [(first, first + b % 4), (max(0, first - 4), first + c % 8 - 3)]
        return [(low, high) for low, high in spans if low <= high]

    def discard(self, a: int, b: int, c: int) -> None:
        spans = self.spans(a, b, c)
        self.add(Discard(spans), "discard", spans)

    def erase(self, a: int, b: int, c: int) -> None:
        spans, for_good = self.spans(a, b, c), c % 2 > 0
        self.add(Erase(spans, for_good), "erase", spans, for_good)

    def make_visible(self, a: int, b: int, c: int) -> None:
        spans, in_flight = self.spans(a, b, c), c % 3 > 0
        at = None if self.fifo or a % 2 else max(self.clock, self.model.now) + DELAYS[(b + c) % len(DELAYS)]
        self.add(MakeVisible(spans, in_flight, at), "make_visible", spans, in_flight, at)

    def end_move(self, a: int, b: int, c: int) -> None:
        """The last move arrived or was given up; now and then somebody comes late with the one before."""
        number = self.model.move_number - (b % 8 == 7)
        if a % 4 == 3:
            self.add(MoveBack(number), "move_back", number)
        else:
            self.add(Moved(number), "moved", number)

    def receipt(self, a: int, b: int) -> tuple[int, str]:
        if not self.receipts or b % 16 == 15:
            return a % (len(self.log) + 2), "nobody"
        newest = [
            (offset, message.lease or "")
            for offset, message in enumerate(self.model.messages)
            if message.status == IN_FLIGHT and (not self.fifo or message.state(self.model.now) == "in_flight")
        ]
        # others can do nothing on FIFO queues, and little elsewhere
        if newest and b % 16 < (12 if self.fifo else 6):
            return newest[-1 - a % min(12, len(newest))]
        return self.receipts[-1 - a % min(12, len(self.receipts))]

    def delete(self, a: int, b: int, c: int) -> None:
        offset, lease = self.receipt(a, b)
        self.add(Delete(offset, lease, "H"), "delete", offset, lease)

    def change(self, a: int, b: int, c: int) -> None:
        offset, lease = self.receipt(a, b)
        timeout = TIMEOUTS[c % len(TIMEOUTS)]
        self.add(ChangeVisibility(offset, lease, timeout, "H"), "change", offset, lease, timeout)

    def lease(self, a: int, b: int) -> tuple[str, list[tuple[int, int]]]:
        if not self.leases or b % 16 == 15:
            return "nobody", [(a % 5, a % 5 + 3)]
        if self.fifo and b % 16 < 8:
            a = 0
        lease, spans = self.leases[-1 - a % min(6, len(self.leases))]
        if b % 3 == 0:
            spans = [(spans[0][0], spans[-1][1]), *spans]  # wider than the lease, and some of it twice
        return lease, spans

    def lease_delete(self, a: int, b: int, c: int) -> None:
        lease, spans = self.lease(a, b)
        kept = [spans[0][0] + i for i in range(8) if c >> i & 1] if c % 2 else []
        self.add(LeaseDelete(lease, spans, kept), "lease_delete", lease, spans, kept)

    def consume(self, a: int, b: int, c: int) -> None:
        """Receive and delete at the same instant, so that there is more to rewind."""
        self.claim(a, b, c)
        lease, spans = f"lease-{self.names}", [(0, len(self.log))]
        kept = [c % (len(self.log) + 1)]
        self.add(LeaseDelete(lease, spans, kept), "lease_delete", lease, spans, kept)
        if b % 2:
            self.rewind(a, b, c)

    def exchange(self, a: int, b: int, c: int) -> None:
        """What a consumer does in a round: settle some messages, then claim the next, in one decision."""
        for step in range(a % 3):
            (self.change if c >> step & 1 else self.delete)(a + step, b, c)
        lease, spans = self.lease(a, b)
        self.add(LeaseDelete(lease, spans, []), "lease_delete", lease, spans, [])
        self.claim(b, a, c)

    def lease_extend(self, a: int, b: int, c: int) -> None:
        lease, spans = self.lease(a, b)
        timeout = TIMEOUTS[c % len(TIMEOUTS)]
        self.add(LeaseExtend(lease, spans, timeout), "lease_extend", lease, spans, timeout)

    def lease_release(self, a: int, b: int, c: int) -> None:
        lease, spans = self.lease(a, b)
        self.add(LeaseRelease(lease, spans), "lease_release", lease, spans)

    def purge(self, a: int, b: int, c: int) -> None:
        if a % 3 == 2:
            self.add(Purge("orders"), "purge")

    def set_attributes(self, a: int, b: int, c: int) -> None:
        new = Settings(
            fifo=self.fifo,
            strict=self.model.settings.strict,
            delay=self.delay(a, c),
            cap=CAPS[a % len(CAPS)],
            delayed_cap=None if self.aged_letters else DELAYED_CAPS[(a // 8 + c) % len(DELAYED_CAPS)],
            visibility_timeout=TIMEOUTS[b % 4],
            retention=RETENTIONS[c % len(RETENTIONS)],
            rewind_range=self.rewind_range(b, c),
            max_receives=RECEIVES[(a + b) % len(RECEIVES)],
            tenants=self.tenants,
            fair=self.tenants and (a + c) % 8 > 0,
            group_limit=GROUP_LIMITS[(a // 4 + c) % len(GROUP_LIMITS)] if self.tenants else None,
            paused=(a + b + c) % 8 == 0,
            paused_groups=tuple(group for group in self.groups if group and (ord(group) + b + c) % 4 == 0),
            rate=RATES[(a // 2 + c) % len(RATES)],
            delivery_id=DELIVERY_IDS[(a + c) % 3]
            if self.delivers and b % 3 == 0
            else self.model.settings.delivery_id,
            version=self.model.settings.version + (b % 5 > 0),
        )
        self.add(SetAttributes(wire(new), new.version), "set_attributes", new)

    def delay(self, a: int, c: int) -> int:
        """A new delay for FIFO queues now and then; how often depends on the numbers alone."""
        if not self.fifo or a % 8 < 3:
            return self.model.settings.delay
        return DELAYS[c % len(DELAYS)]

    def rewind_range(self, b: int, c: int) -> int:
        """Another range in every other change."""
        return REWINDS[c // 8 % len(REWINDS)] if b & 4 else self.model.settings.rewind_range

    def rewind(self, a: int, b: int, c: int) -> None:
        """Rewinds to near an instant of interest: a send of a deleted message, the earliest instant, or now."""
        now = max(self.clock, self.model.now)
        offsets = self.model.rewindable()
        if a % 8 < 6 and self.log:
            offsets = offsets or list(range(len(self.log)))
            to = self.log[offsets[-1 - b % min(4, len(offsets))]].sent_at
        else:
            to = now - self.model.settings.rewind if a % 16 == 6 else now
        to += (0, 0, 0, 1, -1, -1_000_000)[c % 6]
        self.add(Rewind(to), "rewind", to)

    def expire(self, a: int, b: int, c: int) -> None:
        self.add(Expire(), "tell_expired")


class Comparison(Commands):
    """The machine, the model, and a table that holds the committed rows, given the same commands."""

    def __init__(self, settings: Settings, tell: Callable[[str], None], groups: int = 1) -> None:
        super().__init__(settings, groups)
        self.tell = tell
        self.saved = self.model.copy()
        self.head = Head(attributes=wire(settings), attributes_version=settings.version)
        self.rows: dict[int, Run] = {}
        self.settled: dict[int, Run] = {}
        self.machine = ShardMachine(self.head, [], ListLog([]))
        self.live: dict[int, tuple[str, int]] = {}
        self.looks = True
        self.judged = 0

    def step(self, code: bytes) -> None:
        """One step: an operation with three arguments, and how it ends."""
        operation, a, b, c, ending = code
        how = ENDINGS[ending % len(ENDINGS)]
        if operation == 255 and ending > 200:
            self.add(Close(), "close")
        else:
            operations = FIFO_OPERATIONS if self.fifo else OPERATIONS
            operations = DELIVERY_OPERATIONS if self.delivers else operations
            getattr(self, operations[operation % len(operations)])(a, b, c)
        if how != "batch":
            self.looks = (a + b) % 3 == 0  # else the machine knows no more of the log than its commands ask for
            jumps = FIFO_JUMPS if self.fifo else JUMPS
            self.clock += jumps[(ending // len(ENDINGS)) % len(jumps)]
            self.flush(how)

    # one decision

    def flush(self, how: str) -> list[Result]:
        """Decide on the batch, compare, then commit, or lose the commit and start again from the rows."""
        model, machine, batch = self.model, self.machine, self.batch
        self.batch = []
        machine.log = ListLog(self.log)
        for row in self.log[len(model.messages) :]:
            model.send(row)
        model.advance(self.clock)
        model.epoch = machine.epoch
        receipts, leases, live = list(self.receipts), list(self.leases), dict(self.live)
        marks = list(self.marks)
        drained = machine.is_drained(self.clock)
        decision = machine.decide([command for command, _ in batch], self.clock)
        assert len(decision.results) == len(batch)
        if drained and batch and isinstance(batch[0][0], Claim):
            assert not decision.results[0].changed, "the machine said that there was nothing to claim"
        commit = False
        for (command, call), result in zip(batch, decision.results, strict=True):
            before = model.copy()
            expected = model.apply(*call)
            self.tell(f"t={model.now / SECOND}: {command} -> {result}")
            self.compare(command, result, expected)
            self.watch(command, result)
            commit = commit or model != before or (isinstance(command, Expire) and bool(result.value))
            assert result.changed == commit, (command, result)
        assert decision.commit == commit
        self.check(model)
        if decision.commit and how == "fail":
            self.receipts, self.leases, self.live = receipts, leases, live
            self.marks = marks
            self.rebuild()
        elif decision.commit:
            self.commit(decision)
        else:
            assert decision.puts == decision.deletes == []
            assert decision.settled_puts == decision.settled_deletes == []
        if how == "rebuild":
            self.rebuild()
        return decision.results

    def commit(self, decision: Any) -> None:
        """Write the rows as storage would, and check that nothing was written in vain."""
        self.write(self.rows, decision.puts, decision.deletes)
        self.write(self.settled, decision.settled_puts, decision.settled_deletes)
        assert decision.head.epoch == self.head.epoch + 1
        assert decision.head.committed_at == self.model.now
        self.head = decision.head
        self.machine.committed()
        self.model.expired = 0
        self.saved = self.model.copy()
        assert [self.rows[key] for key in sorted(self.rows)] == self.machine.runs
        assert [self.settled[key] for key in sorted(self.settled)] == self.machine.history
        assert self.machine.head == self.head

    @staticmethod
    def write(rows: dict[int, Run], puts: list[Run], deletes: list[int]) -> None:
        """Change one part of the table: each key once, and only what differs."""
        keys = [run.first for run in puts] + deletes
        assert len(set(keys)) == len(keys), "one row per key"
        for key in deletes:
            assert key in rows, "deletes only what is there"
            del rows[key]
        for run in puts:
            assert rows.get(run.first) != run, "puts only what differs"
            rows[run.first] = run

    def rebuild(self) -> None:
        """Take over from the rows alone (RCV-6, STA-11)."""
        self.machine = ShardMachine(self.head, self.rows.values(), ListLog(self.log), self.settled.values())
        self.model = self.saved.copy()
        for row in self.log[len(self.model.messages) :]:
            self.model.send(row)
        assert self.machine.head == self.head
        self.model.advance(self.clock)
        self.machine.stored(self.clock)  # moves the new machine to the present
        self.check(self.model)

    # checks

    def compare(self, command: Any, result: Result, expected: Any) -> None:
        if result.error is not None:
            assert isinstance(expected, tuple) and expected[0] == result.error.code, (result.error, expected)
            assert expected[1] in result.error.message
        elif isinstance(result.value, ClaimResult):
            claim = result.value
            told = (claim.lease_id, claim.visible_at, self.delivered(claim), claim.moving, claim.unresolved)
            assert (*told, claim.last, claim.passed, claim.mark, claim.undecided, claim.target) == expected
            assert claim.received_at == self.model.now
        elif isinstance(result.value, LeaseCounts):
            assert (result.value.done, result.value.lost, result.value.released) == expected
        else:
            assert result.value == expected

    def delivered(self, claim: ClaimResult) -> list[tuple[int, int, int]]:
        """Offset, receive count and first receipt of what a claim got, in the order of delivery."""
        claimed = {
            offset: (offset, span.receive_count, span.first_received_at)
            for span in claim.spans
            for offset in range(span.first, span.last + 1)
        }
        assert list(claimed) == sorted(claimed), "lowest offset first"
        if not self.fifo:
            assert claim.order == ()
            return list(claimed.values())
        order = [offset for first, last in claim.order for offset in range(first, last + 1)]
        assert sorted(order) == list(claimed), "the order holds what was claimed"
        return [claimed[offset] for offset in order]

    def watch(self, command: Any, result: Result) -> None:
        """Follow every receipt from the answers alone: two live ones never overlap."""
        now = self.model.now
        if isinstance(result.value, ClaimResult):
            lease, spans = result.value.lease_id, [(span.first, span.last) for span in result.value.spans]
            for first, last in spans:
                for offset in range(first, last + 1):
                    if lease == command.lease_id:
                        assert self.live.get(offset, ("", 0))[1] <= now, "two live receipts"
                        self.receipts.append((offset, lease))
                    else:
                        assert self.live[offset][0] == lease and self.live[offset][1] > now, "not the same receipt"
                    self.live[offset] = (lease, result.value.visible_at)
            if result.value.mark is not None:
                self.marks.append((lease, result.value.mark, spans))
            if spans and lease == command.lease_id:
                self.leases.append((lease, spans))
        elif result.error is None and isinstance(command, ChangeVisibility):
            assert self.live[command.offset][0] == command.lease_id
            self.live[command.offset] = (command.lease_id, now + command.timeout)
        elif isinstance(command, Delete) and result.value:
            assert self.live.pop(command.offset)[0] == command.lease_id
        elif isinstance(command, Decide):
            for offset in list(self.live):
                message = self.model.messages[offset]
                if message.status == DELETED or message.lease is None:
                    del self.live[offset]
        elif isinstance(command, Discard | MakeVisible) and result.error is None:
            for offset, (lease, end) in list(self.live.items()):
                message = self.model.messages[offset]
                if message.status == DELETED:
                    assert end <= now, "a live receipt was taken"
                    del self.live[offset]
                elif message.status == VISIBLE and end > now:
                    assert isinstance(command, MakeVisible) and command.in_flight, "a live receipt ended"
                    self.live[offset] = (lease, now)
        elif isinstance(command, Erase) and result.error is None:
            for offset in list(self.live):
                if self.model.messages[offset].status == DELETED:
                    del self.live[offset]
        elif isinstance(command, LeaseDelete | LeaseExtend | LeaseRelease | Remark) and result.error is None:
            if isinstance(command, Remark) and result.value is not None:
                parts = zip(result.value, command.parts, strict=True)
                self.marks += [(command.lease_id, mark, list(part)) for mark, part in parts]
            for offset, (lease, _) in list(self.live.items()):
                message = self.model.messages[offset]
                if lease == command.lease_id and message.status == DELETED:
                    del self.live[offset]  # a rewind may bring it back for others
                elif lease == command.lease_id:
                    held = message.status == IN_FLIGHT  # else it may be hidden by a delay
                    self.live[offset] = (lease, (message.hidden_until or 0) if held else 0)

    def check(self, model: Model) -> None:
        """Compares the machine's rows, head and counts with the model, message by message."""
        machine = self.machine
        runs, head = machine.runs, machine.head
        for left, right in pairwise(runs):
            assert left.last < right.first, "runs overlap"
            assert left.last + 1 < right.first or left[2:] != right[2:], "equal neighbours"
        told: list[Any] = [None] * len(model.messages)
        for run in runs:
            assert run.first <= run.last < head.head_offset
            for offset in range(run.first, run.last + 1):
                told[offset] = (
                    *run[2:8],
                    *run[12:15],
                    run.deliveries,
                    run.mark,
                    run.failed_together,
                    run.move and (run.move.number, run.move.redrive),
                )
        for offset in range(head.head_offset, len(told)):
            told[offset] = FRESH
        assert told == [_columns(message) for message in model.messages]
        assert (head.head_offset, head.closed, head.purged_at) == (model.head, model.closed, model.purged_at)
        assert head.floor_offset == model.floor()
        self.check_history(model)
        assert machine.stored(self.clock) == model.stored()
        if isinstance(model, FifoModel):
            for attempt in ("x", "y", "nobody's"):
                assert machine.attempt_lives(attempt, self.clock) == model.attempt_lives(attempt)
        if self.looks:
            self.look(machine, model)

    def check_history(self, model: Model) -> None:
        """The settled runs are the rewindable messages with their receives and deletes, and neighbours are one."""
        history = self.machine.history
        assert joined_runs(history) == history, "equal neighbours"
        told = [(offset, run[2:]) for run in history for offset in range(run.first, run.last + 1)]
        kept = [(offset, model.messages[offset]) for offset in model.rewindable()]
        assert told == [
            (offset, Run(0, 0, DELETED, None, one.count, one.deleted_at, None, one.first_received_at)[2:])
            for offset, one in kept
        ]

    def look(self, machine: ShardMachine, model: Model) -> None:
        """Compares queries of the whole shard, for which the machine scans every message."""
        states = model.states()
        assert attrs.astuple(machine.counts(self.clock)) == (
            states.count("visible"),
            states.count("in_flight") + states.count("moving"),
            states.count("delayed"),
            len(model.rewindable()),
            states.count("held"),
            states.count("undecided"),
        )
        assert machine.marked(self.clock) == len(model.marked())
        assert (machine.target, machine.undecided(self.clock)) == (model.target(), model.undecided())
        assert machine.oldest_sent_at(self.clock) == model.oldest_sent_at()
        told = machine.next_event(self.clock)
        if isinstance(model, FifoModel):
            model.check_next_event(told)
        else:
            assert told == model.next_event()
        stored = [offset for offset, state in enumerate(states) if state not in GONE]
        runs = machine.peek(self.clock, 5)
        assert [offset for run in runs for offset in range(run.first, run.last + 1)] == stored[:5]
        runs = machine.peek(self.clock, 5, len(states) - 1, newest=True)
        assert [offset for run in runs for offset in range(run.first, run.last + 1)] == stored[-5:]
        self.judged += 1
        if states and self.judged % 8 == 0:  # in Arrow it costs as much as the rest of the comparison
            judged = _judged(machine, model.now)
            assert [judged[offset] for offset in stored] == [states[offset] for offset in stored]
            gone = {judged[offset] for offset, state in enumerate(states) if state in GONE}
            assert gone <= {DELETED, "expired"}


def _judged(machine: ShardMachine, now: int) -> list[str]:
    """The states of all messages as readers show them."""
    assert isinstance(machine.log, ListLog)
    counts, held_from, log = machine.counts(now), machine.held_from(now), machine.log.rows
    assert counts.held == len(log) - held_from
    parts = [run_rows(machine.runs, [], None), run_rows(machine.history, [], None, settled=True)]
    runs = pa.concat_tables(parts).sort_by("first_offset")
    judge = Judge.of("orders", "local", 0, machine.head, now, held_from, stored_runs(runs))
    delays = [None if judge.attributes.fifo else row.delay / SECOND for row in log]
    rows = pa.record_batch(
        {
            "delay_seconds": pa.array(delays, pa.float64()),
            "source_receive_count": pa.array([row.count or None for row in log], pa.int32()),
            "first_sent_at": pa.array([row.first_sent_at for row in log], pa.int64()),
        }
    )
    sent_at = np.array([row.sent_at for row in log])
    shown: list[str] = judge.judge(np.arange(len(log)), sent_at, rows, {"state"})["state"].to_pylist()
    return shown


def _columns(message: Message) -> Any:
    if message.status in GONE:
        return None
    if message.status == FRESH:
        return FRESH
    return (
        message.status,
        message.lease,
        message.count,
        message.hidden_until,
        message.received_at,
        message.first_received_at,
        message.attempt_id,
        message.attempted_at,
        message.attempt_place,
        message.here(),
        message.mark,
        message.together,
        None if message.move_number is None else (message.move_number, message.redrive),
    )


def run_commands(
    steps: list[bytes], settings: Settings, groups: int = 1, tell: Callable[[str], None] = lambda text: None
) -> None:
    """Runs one sequence of commands on machine and model, and fails where they differ."""
    comparison = Comparison(settings, tell, groups)
    for code in steps:
        comparison.step(code)
    comparison.looks = True
    comparison.flush("rebuild")


@contextmanager
def small_steps() -> Iterator[None]:
    """Lets indexes be built anew at any time, and little be looked at ahead."""
    with (
        mock.patch.multiple(index, _MANY=1, _STALE=1, _CHUNK=1),
        mock.patch.multiple(tenants, _STALE=1, FAIR=2),
        mock.patch.object(fair, "FAIR", 2),
        mock.patch("lakequeue.shard.claim.fifo.LOOK_AHEAD", 2),
        mock.patch.object(fifo, "LOOK_AHEAD", 2),
        mock.patch("lakequeue.shard.move.MOVED_AT_ONCE", 2),
        mock.patch("lakequeue.shard.claim.standard.MOVED_AT_ONCE", 2),
        mock.patch.object(naive, "MOVED_AT_ONCE", 2),
    ):
        yield


def random_commands(seed: int, kind: str, length: int = 40) -> tuple[list[bytes], Settings, int]:
    """Random steps, the settings of the queue, and the number of message groups."""
    source = random.Random(seed)
    return [source.randbytes(5) for _ in range(length)], *random_queue(source, kind)


def random_queue(source: random.Random, kind: str) -> tuple[Settings, int]:
    """The settings of a queue that is ``standard``, ``fifo``, or ``fair``, and its number of message groups."""
    fifo, tenants, delivers = kind == "fifo", kind == "fair", kind == "delivery"
    fifo = fifo or (delivers and source.random() < 0.3)
    settings: dict[str, Any] = {
        "strict": source.random() < 0.5 or fifo,
        "cap": source.choice(CAPS),
        "retention": source.choice(RETENTIONS),
        "rewind_range": source.choice(REWINDS),
        "max_receives": source.choice(RECEIVES),
    }
    if fifo:
        settings |= {"fifo": True, "delay": source.choice(DELAYS)}
    groups = source.randint(1, 5)
    settings["delayed_cap"] = source.choice(DELAYED_CAPS)
    if tenants:
        settings |= {"tenants": True, "fair": source.random() < 0.8, "group_limit": source.choice(GROUP_LIMITS)}
    if delivers:
        settings |= {"delivery_id": "a"}
    return Settings(**settings, visibility_timeout=30 * SECOND), groups
