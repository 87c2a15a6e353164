"""A naive model of one shard: a list of messages, loops, and the rules as the requirements state them.

It shares no code with the state machine. Where the machine keeps ranges, indexes and counters, this looks at
every message every time. Standard queues are here; `fifo` has the differences of FIFO queues.

The machine is compared with it (`command_sequences`, `scripts`), and so are real queues (`queue_sequences`). Where
calls overlap, fail or lose their answers there is no one state to compare: `simulation.oracle`,
`concurrency.processes` and `serve.load` judge histories instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from lakequeue.model.states import TRANSITIONS, MessageState
from lakequeue.shard.runs import DeadLetterSpan, Destination

SECOND = 1_000_000
TWELVE_HOURS = 43_200 * SECOND

MOVED_AT_ONCE = 1_000
DEAD_LETTER_QUEUE = "arn:lakequeue:sqs:local:000000000000:dead"

FRESH, VISIBLE, IN_FLIGHT, MOVING = "fresh", "visible", "in_flight", "moving"
UNDECIDED = "undecided"
DECIDE_EVERY = 30 * SECOND
DELETED, EXPIRED, PURGED, MOVED = "deleted", "expired", "purged", "moved"
GONE = (DELETED, EXPIRED, PURGED, MOVED)


class Row(NamedTuple):
    """What was sent, and when."""

    sent_at: int
    delay: int = 0
    group: str = ""
    count: int = 0  # of a dead letter: how often it was received where it comes from
    first_sent_at: int | None = None  # of a dead letter on a standard queue
    first_received_at: int | None = None  # of a dead letter


class ListLog:
    """A log held in a list."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = list(rows)

    @property
    def end(self) -> int:
        return len(self.rows)

    def sent_at(self, offset: int) -> int:
        return self.rows[offset].sent_at

    def first_sent_at_or_after(self, instant: int) -> int:
        for offset, row in enumerate(self.rows):
            if row.sent_at >= instant:
                return offset
        return self.end

    def spans(self, first: int, last: int, delay: int | None = None) -> Iterator[tuple[int, int, int]]:
        start, instant = first, self.available_at(first, delay)
        for offset in range(first + 1, last + 1):
            if self.available_at(offset, delay) != instant:
                yield start, offset - 1, instant
                start, instant = offset, self.available_at(offset, delay)
        yield start, last, instant

    def available_at(self, offset: int, delay: int | None) -> int:
        row = self.rows[offset]
        if delay is None:
            delay = row.delay
        return row.sent_at + delay if delay else 0

    def load(self, offsets: Sequence[int]) -> None:
        assert all(offset < self.end for offset in offsets)

    def dead_letters(self, first: int, last: int) -> Iterator[DeadLetterSpan]:
        for offset in range(first, last + 1):
            row = self.rows[offset]
            if row.count:
                yield DeadLetterSpan(offset, offset, row.count, row.first_sent_at, row.first_received_at)

    def group_sizes(self, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[str, int]]:
        for group, offsets in self.groups(spans):
            yield group, len(offsets)

    def only_group(self, first: int) -> str | None:
        groups = {row.group for row in self.rows[first:]}
        return None if len(groups) > 1 else next(iter(groups), "")

    def groups(self, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[str, list[int]]]:
        """A few messages at a time, so that most groups come several times."""
        offsets = [offset for first, last in spans for offset in range(first, last + 1)]
        assert offsets == sorted(set(offsets)), "ascending ranges"
        for start in range(0, len(offsets), 4):
            found: dict[str, list[int]] = {}
            for offset in offsets[start : start + 4]:
                found.setdefault(self.rows[offset].group, []).append(offset)
            yield from found.items()


class Refused(Exception):
    """A refused command: the code, and a word of the text with the reason."""

    def __init__(self, code: str, reason: str = "") -> None:
        super().__init__(code, reason)


@dataclass(frozen=True)
class Settings:
    """The attributes that the rules use, in microseconds."""

    fifo: bool = False
    strict: bool = False
    cap: int | None = None
    delay: int = 0  # of the queue; only FIFO queues use it here
    delayed_cap: int | None = None
    visibility_timeout: int = 30 * SECOND
    retention: int = 60 * SECOND
    rewind_range: int = 0
    max_receives: int | None = None
    tenants: bool = False  # whether messages of a standard queue have groups
    fair: bool = False
    group_limit: int | None = None
    paused: bool = False
    paused_groups: tuple[str, ...] = ()
    rate: tuple[int, int] | None = None  # messages a minute, and how many at once
    delivery_id: str | None = None  # of a queue with a delivery table
    version: int = 1

    @property
    def rewind(self) -> int:
        """The range that a queue can have: at most its retention (RWD-2)."""
        return min(self.rewind_range, self.retention)


@dataclass
class Message:
    """One message and everything that happened to it."""

    sent_at: int
    delay: int
    group: str = ""
    status: str = FRESH
    lease: str | None = None
    count: int = 0
    before: int = 0  # of these receives, those before it came here or a move failed
    hidden_until: int | None = None  # of the latest receipt
    received_at: int | None = None
    first_received_at: int | None = None
    attempt_id: str | None = None
    attempted_at: int | None = None
    attempt_place: int | None = None
    rewindable: bool = False  # deleted, and kept for a rewind
    deleted_at: int | None = None
    first_sent_at: int | None = None
    move_number: int | None = None
    redrive: bool = False
    held: bool = False
    mark: tuple[int, int] | None = None  # slot and number of the delivery that has it
    together: int | None = None  # number of messages of the delivery that failed with it

    def copy(self) -> Message:
        """An independent copy; there are so many that the constructor took a tenth of the time."""
        made = object.__new__(Message)
        made.__dict__.update(self.__dict__)
        return made

    def here(self) -> int:
        """How often it was received in this queue (DLQ-13)."""
        return self.count - self.before

    def state(self, now: int) -> str:
        """The state under its name in the requirements."""
        if self.status in GONE or self.status == MOVING:
            return self.status
        if self.held:
            return "held"
        until = self.hidden_until
        if self.received_at is None and until is None:
            until = self.sent_at + self.delay if self.delay else 0
        if now >= (until or 0):
            return "visible" if self.mark is None else UNDECIDED
        return "in_flight" if self.status == IN_FLIGHT else "delayed"


class Claimed(NamedTuple):
    """Answer to a claim: `(offset, receive count, first receipt)` of each message, in the order of delivery."""

    lease: str
    hidden_until: int
    messages: list[tuple[int, int, int]]
    moving: bool = False
    unresolved: str | None = None
    last: int = 0
    passed: int = 0
    mark: tuple[int, int] | None = None
    undecided: tuple[tuple[tuple[int, int], str | None, int, int], ...] = ()
    target: tuple[str | None, str | None, str | None, bool, str | None] | None = None


TABLE = "/lake/orders"
UNMARKING = ("decide", "remark", "lease_release", "lease_delete")
"""Commands after which messages may expire that a mark kept."""


@dataclass
class Model:
    """A shard as a list of messages."""

    at_limit = "error"  # INF-3

    settings: Settings
    messages: list[Message] = field(default_factory=list)
    now: int = 0
    head: int = 0
    purged_at: int | None = None
    closed: bool = False
    expired: int = 0  # messages that age took since the last commit
    move_number: int = 0
    refill: int = 0  # for how long nothing must be received until the rate limit has forgotten everything
    epoch: int = 0  # number of commits
    table: tuple[str | None, str | None] = (None, None)  # delivery id and table id that the marks belong to

    def copy(self) -> Model:
        """An independent copy."""
        return replace(self, messages=[message.copy() for message in self.messages])

    def send(self, row: Row) -> None:
        arrived = Message(row.sent_at, row.delay, row.group, count=row.count, before=row.count)
        self.accept(replace(arrived, first_sent_at=row.first_sent_at, first_received_at=row.first_received_at))

    def accept(self, message: Message) -> None:
        """Put a message behind all others; it is held unless `release` finds otherwise (INF-9)."""
        message.held = True
        self.messages.append(message)

    def release(self) -> None:
        """Let go of what is held, in the order of sending, as long as fewer than the cap are delayed (INF-9)."""
        cap = self.settings.delayed_cap
        for message in self.messages:
            if message.held and message.status not in GONE:
                if cap is not None and self.counted().count(True) >= cap:
                    break
                message.held = False

    def counted(self) -> list[bool]:
        """Which messages count for the cap on delayed ones: those whose own delay is not over (INF-8)."""
        return [one.state(self.now) == "delayed" and one.hidden_until is None for one in self.messages]

    # time

    def advance(self, now: int) -> None:
        before = self.kept()
        self.refill = max(0, self.refill - max(0, now - self.now))
        self.now = max(self.now, now)
        self.check_transitions(before)
        self.expire()
        before = self.kept()
        self.release()
        self.check_transitions(before)

    def expire(self) -> None:
        before = self.kept()
        for offset, message in enumerate(self.messages):
            if self.now - self.born(message) >= self.settings.retention and message.mark is None:
                if message.status not in GONE:
                    self.expired += 1
                    self.pass_head(offset + 1)
                if message.status != PURGED:
                    message.status = EXPIRED
            if message.rewindable and (message.status == EXPIRED or message.sent_at < self.earliest()):
                message.rewindable = False
                self.expired += 1
        self.check_transitions(before)

    @staticmethod
    def born(message: Message) -> int:
        """Instant that retention counts from (RET-7)."""
        return message.sent_at if message.first_sent_at is None else message.first_sent_at

    def earliest(self) -> int:
        """Instant before which a rewind cannot begin."""
        return self.now - self.settings.rewind

    def kept(self) -> list[tuple[str, bool]]:
        """The state of each message, and whether a rewind may bring it back."""
        return [(message.state(self.now), message.rewindable) for message in self.messages]

    def check_transitions(self, before: list[tuple[str, bool]], command: str = "") -> None:
        """Only legal transitions happen, by time or by a command (STA-13)."""
        for (old, was_rewindable), message in zip(before, self.messages, strict=True):
            new = message.state(self.now)
            if old == new and not message.rewindable:
                continue
            assert old == new or MessageState(new) in TRANSITIONS[MessageState(old)], (old, new)
            assert not message.rewindable or (new == "deleted" and self.settings.rewind > 0)
            if (old, new) == ("visible", "delayed") and command != "make_visible":
                assert self.settings.fifo and message.received_at is None
            if old == "deleted" and new == "visible":
                assert command == "rewind" and was_rewindable
            if new == "deleted" and old in ("delayed", "held"):
                assert command == "erase" or message.received_at is not None
            if (old, new) == ("deleted", "purged"):
                assert command == "purge" and was_rewindable

    # looking

    def states(self) -> list[str]:
        return [message.state(self.now) for message in self.messages]

    def in_flight(self) -> int:
        return self.states().count("in_flight")

    def full(self) -> bool:
        return self.settings.cap is not None and self.in_flight() >= self.settings.cap

    def load(self, group: str) -> int:
        """Messages of a group in flight."""
        return sum(message.group == group and message.state(self.now) == "in_flight" for message in self.messages)

    def group_full(self, group: str) -> bool:
        """Whether no more messages of a group may be in flight (FAI-4)."""
        limit = self.settings.group_limit
        return limit is not None and self.load(group) >= limit

    def let_through(self) -> list[int]:
        """Returns when the next messages may come by the rate limit, as many as may come at once (JOB-11)."""
        if self.settings.rate is None:
            return [self.now] * 1_000
        rate, burst = self.settings.rate
        step = 60 * SECOND // rate
        return [max(self.now, self.now + self.refill - step * n) for n in range(burst)][::-1]

    def tokens(self) -> int:
        """How many messages the rate limit lets through now."""
        return sum(instant <= self.now for instant in self.let_through())

    def stored(self) -> int:
        return sum(message.status not in GONE for message in self.messages)

    def rewindable(self) -> list[int]:
        """Offsets of the deleted messages that are kept (RWD-4)."""
        return [offset for offset, message in enumerate(self.messages) if message.rewindable]

    def floor(self) -> int:
        """No message below this offset can ever be asked for again."""
        known = [offset for offset, message in enumerate(self.messages) if message.status not in GONE]
        return min([*known, *self.rewindable(), self.head])

    def oldest_sent_at(self) -> int | None:
        """When the oldest stored message was sent, a dead letter first (DLQ-4)."""
        return min((self.born(message) for message in self.messages if message.status not in GONE), default=None)

    def next_event(self) -> int | None:
        instants = []
        for message, state in zip(self.messages, self.states(), strict=True):
            if state == "delayed":
                instants.append(message.hidden_until or message.sent_at + message.delay)
            if state == "in_flight":
                instants.append(message.hidden_until or 0)
        blocked = self.settings.group_limit is not None and (instants or self.moving())
        if self.full() or blocked:
            stored = [message for message in self.messages if message.status not in GONE]
            expiries = [self.born(message) + self.settings.retention for message in stored]
            if expiries and (min(expiries) > self.now or not self.marked()):
                instants.append(min(expiries))
        if "visible" in self.states() and not self.tokens():
            instants += self.let_through()
        if "held" in self.states():
            oldest = self.counted().index(True)
            instants.append(self.messages[oldest].sent_at + self.settings.retention)
        if UNDECIDED in self.states():
            instants.append(self.now + DECIDE_EVERY)
        return min(instants, default=None)

    # commands

    def apply(self, name: str, *arguments: object) -> object:
        """Run one command; its answer, or the `Refused` that it ended with."""
        before = self.kept()
        try:
            if self.closed:
                raise Refused("QueueDoesNotExist")
            answer = getattr(self, name)(*arguments)
            if name in UNMARKING:
                self.expire()
            if isinstance(answer, Claimed) and self.marked():
                answer = answer._replace(undecided=tuple(self.undecided()), target=self.target())
            self.release()
        except Refused as refused:
            answer = refused.args
            assert self.kept() == before
        self.check_transitions(before, name)
        return answer

    def claim(
        self,
        count: int,
        timeout: int | None,
        lease: str,
        attempt: str | None = None,
        keys: dict[str, Destination | None] | None = None,
        hands: int | None = None,
        one_each: bool = False,
    ) -> Claimed:
        count = self.allowed(count)
        offsets = self.next(count, hands, one_each)
        dead = self.meet_dead(offsets, count, lease, keys or {})
        return dead or self.receive(*self.begun(offsets, hands), timeout, lease)

    def next(self, count: int, hands: int | None, one_each: bool) -> list[int]:
        """What a claim looks at, in the order of delivery."""
        if hands is not None and self.settings.max_receives == 1:
            return self.heads_only(self.deliverable())[: min(count, max(1, hands))]
        return (self.heads_only(self.deliverable()) if one_each else self.deliverable())[:count]

    def heads_only(self, offsets: list[int]) -> list[int]:
        return offsets

    def begun(self, offsets: list[int], hands: int | None) -> tuple[list[int], int, int]:
        """Removes last receives without a free handler. Returns the rest, and both numbers (HBN-23)."""
        most = self.settings.max_receives
        if hands is None or most is None:
            return offsets, 0, 0
        last = [offset for offset in offsets if self.messages[offset].here() + 1 >= most]
        left = set(last[hands:])
        return [offset for offset in offsets if offset not in left], len(last[:hands]), len(left)

    def deliverable(self) -> list[int]:
        """What a claim without limits would deliver, in this order."""
        return [offset for offset, state in enumerate(self.states()) if state == "visible"]

    def moving(self) -> list[Message]:
        return [message for message in self.messages if message.status == MOVING]

    def dead(self, offsets: list[int]) -> list[int]:
        """Those messages that were received often enough (DLQ-2)."""
        most = self.settings.max_receives
        too_often = [offset for offset in offsets if most is not None and self.messages[offset].here() >= most]
        return [offset for offset in too_often if self.messages[offset].together is None]

    def meet_dead(
        self, offsets: list[int], count: int, lease: str, keys: dict[str, Destination | None]
    ) -> Claimed | None:
        """The answer of a claim that has to move something first; None if it may deliver."""
        if not self.dead(offsets):
            return None
        if DEAD_LETTER_QUEUE not in keys:
            return Claimed(lease, self.now, [], bool(self.moving()), DEAD_LETTER_QUEUE)
        if keys[DEAD_LETTER_QUEUE] is None:
            return None
        if not self.moving():
            ahead = self.dead(self.deliverable()[: max(count, MOVED_AT_ONCE)])
            self.begin_move((ahead or self.dead(offsets))[:MOVED_AT_ONCE])
        return Claimed(lease, self.now, [], True)

    def begin_move(self, offsets: list[int], redrive: bool = False) -> None:
        if offsets:
            self.move_number += 1
            self.pass_head(max(offsets) + 1)
        for offset in offsets:
            old = self.messages[offset]
            self.messages[offset] = replace(
                Message(old.sent_at, old.delay, old.group, status=MOVING, count=old.count),
                first_sent_at=old.first_sent_at,
                received_at=old.received_at,
                first_received_at=old.first_received_at,
                move_number=self.move_number,
                redrive=redrive,
            )

    def move(self, spans: list[tuple[int, int]]) -> int | None:
        if self.moving():
            return None
        wanted = {offset for first, last in spans for offset in range(first, last + 1)}
        offsets = [offset for offset, state in enumerate(self.states()) if state == "visible" and offset in wanted]
        self.begin_move(offsets, redrive=True)
        return len(offsets)

    def moved(self, number: int) -> int:
        moved = [message for message in self.moving() if message.move_number == number]
        for message in moved:
            message.status = MOVED
        return len(moved)

    def move_back(self, number: int) -> int:
        back = [message for message in self.moving() if message.move_number == number]
        for message in back:
            message.move_number, message.redrive = None, False
            message.before = message.count
            self.hand_back(message)
        return len(back)

    def chosen(self, spans: list[tuple[int, int]], *wanted: str) -> list[int]:
        """Offsets in the spans whose messages are in one of the states."""
        asked = {offset for first, last in spans for offset in range(first, last + 1)}
        return [offset for offset, state in enumerate(self.states()) if state in wanted and offset in asked]

    def discard(self, spans: list[tuple[int, int]]) -> int:
        offsets = self.chosen(spans, "visible")
        self.pass_head(max(offsets, default=-1) + 1)
        for offset in offsets:
            self.remove(self.messages[offset])
        return len(offsets)

    def erase(self, spans: list[tuple[int, int]], for_good: bool) -> tuple[int, bool]:
        asked = {offset for first, last in spans for offset in range(first, last + 1)}
        held = self.chosen(spans, "held")
        stored = self.chosen(spans, "visible", "in_flight", "delayed", "held", UNDECIDED)
        self.pass_head(max(stored, default=-1) + 1)
        for message in self.messages[: self.head if held else 0]:
            message.held = False
        for offset in stored:
            self.remove(self.messages[offset])
        for offset in asked & set(self.rewindable() if for_good else ()):
            self.messages[offset].rewindable = False
        return len(stored), bool(self.chosen(spans, "moving"))

    def make_visible(self, spans: list[tuple[int, int]], in_flight: bool, at: int | None = None) -> int:
        shown = ("delayed", *(("in_flight",) if in_flight else ()), *(("visible",) if at is not None else ()))
        offsets = self.chosen(spans, *shown)
        for offset in offsets:
            message = self.messages[offset]
            if message.state(self.now) == "in_flight":
                self.hand_back(message)
                continue
            self.pass_head(offset + 1)
            if message.status == IN_FLIGHT:
                self.hand_back(message)
            message.hidden_until = max(self.now, at or 0)
        return len(offsets)

    def allowed(self, count: int) -> int:
        """How many of `count` messages a claim may take, by cap and rate, and unless the queue is paused."""
        if self.settings.paused:
            return 0
        if self.settings.cap is None:
            return min(count, self.tokens())
        if self.full() and self.at_limit == "error":
            raise Refused("OverLimit")
        return min(count, self.tokens(), max(0, self.settings.cap - self.in_flight()))

    def until(self, timeout: int | None) -> int:
        return self.now + (self.settings.visibility_timeout if timeout is None else timeout)

    def receive(self, offsets: list[int], last: int, passed: int, timeout: int | None, lease: str) -> Claimed:
        claimed = Claimed(lease, self.until(timeout), [], bool(self.moving()), last=last, passed=passed)
        if self.settings.rate is not None and offsets:
            self.refill += len(offsets) * (60 * SECOND // self.settings.rate[0])
        for offset in offsets:
            message = self.messages[offset]
            message.status = IN_FLIGHT
            message.lease = lease
            message.count += 1
            message.hidden_until = claimed.hidden_until
            message.received_at = self.now
            if message.first_received_at is None:
                message.first_received_at = self.now
            message.attempt_id = message.attempted_at = message.attempt_place = message.together = None
            claimed.messages.append((offset, message.count, message.first_received_at))
        if offsets:
            self.pass_head(max(offsets) + 1)
        return claimed

    def pass_head(self, head: int) -> None:
        self.head = max(self.head, head)
        for message in self.messages[: self.head]:
            if message.status == FRESH:
                message.status = VISIBLE

    def known(self, offset: int) -> Message | None:
        """The message of a receipt, unless it is gone or nobody ever received it."""
        if offset >= len(self.messages) or self.messages[offset].status in (*GONE, FRESH):
            return None
        return self.messages[offset]

    def ended(self, message: Message) -> bool:
        return message.state(self.now) != "in_flight"

    def delete(self, offset: int, lease: str) -> bool:
        message = self.known(offset)
        if message is None:
            return False
        if message.lease != lease or (self.settings.strict and self.ended(message)):
            if self.settings.strict:
                raise Refused("InvalidParameterValue", "expired")
            return False
        self.remove(message)
        return True

    def change(self, offset: int, lease: str, timeout: int) -> None:
        message = self.known(offset)
        if message is None:
            raise Refused("InvalidParameterValue", "does not exist")
        if message.lease != lease:
            raise Refused("InvalidParameterValue", "expired")
        if message.status == VISIBLE or (self.settings.strict and self.ended(message)):
            raise Refused("MessageNotInflight")
        if timeout == 0 and message.state(self.now) == UNDECIDED:
            raise Refused("MessageNotInflight")
        if timeout == 0:
            self.hand_back(message)
            return
        assert message.received_at is not None
        if self.now + timeout > message.received_at + TWELVE_HOURS:
            raise Refused("InvalidParameterValue", "beyond the limit")
        if self.ended(message) and (self.full() or self.group_full(message.group)):
            raise Refused("OverLimit")
        self.hide(message, self.now + timeout)

    def remove(self, message: Message) -> None:
        message.status, message.deleted_at, message.mark = DELETED, self.now, None
        message.rewindable = self.settings.rewind > 0 and message.sent_at >= self.earliest()

    def hide(self, message: Message, until: int) -> None:
        message.hidden_until = until

    def hand_back(self, message: Message, unmark: bool = False) -> None:
        message.mark = None if unmark else message.mark
        message.status = VISIBLE if message.mark is None else IN_FLIGHT
        message.hidden_until = self.now

    def leased(self, lease: str, spans: list[tuple[int, int]]) -> list[tuple[int, Message]]:
        """Messages in the spans that the lease still holds."""
        offsets = sorted({offset for first, last in spans for offset in range(first, last + 1)})
        found = []
        for offset in offsets:
            message = self.known(offset)
            if message is None or message.lease != lease:
                continue
            if not (self.settings.strict and self.ended(message)):
                found.append((offset, message))
        return found

    def may_go(self, message: Message, unmark: bool) -> bool:
        """Whether a release by its lease changes a message."""
        return message.status == IN_FLIGHT and (unmark or message.state(self.now) != UNDECIDED)

    def lease_delete(
        self, lease: str, spans: list[tuple[int, int]], kept: list[int], unmark: bool = False
    ) -> tuple[int, int, int]:
        leased = self.leased(lease, spans)
        for offset, message in leased:
            if offset not in kept:
                self.remove(message)
            elif self.may_go(message, unmark):
                self.hand_back(message, unmark)
        return self.count(spans, len(leased), sum(offset in kept for offset, _ in leased))

    def lease_extend(self, lease: str, spans: list[tuple[int, int]], timeout: int) -> tuple[int, int, int]:
        if timeout == 0:
            return self.lease_release(lease, spans)
        leased = [message for _, message in self.leased(lease, spans) if message.status == IN_FLIGHT]
        for message in leased:
            if self.now + timeout > (message.received_at or 0) + TWELVE_HOURS:
                raise Refused("InvalidParameterValue", "beyond the limit")
        done = 0
        for message in leased:
            if not (self.ended(message) and (self.full() or self.group_full(message.group))):
                self.hide(message, self.now + timeout)
                done += 1
        return self.count(spans, done)

    def lease_release(
        self, lease: str, spans: list[tuple[int, int]], unmark: bool = False
    ) -> tuple[int, int, int]:
        leased = [message for _, message in self.leased(lease, spans) if self.may_go(message, unmark)]
        for message in leased:
            self.hand_back(message, unmark)
        return self.count(spans, len(leased))

    @staticmethod
    def count(spans: list[tuple[int, int]], reached: int, released: int = 0) -> tuple[int, int, int]:
        offsets = {offset for first, last in spans for offset in range(first, last + 1)}
        return reached - released, len(offsets) - reached, released

    def purge(self) -> None:
        if self.purged_at is not None and self.now < self.purged_at + 60 * SECOND:
            raise Refused("PurgeQueueInProgress")
        for message in self.messages:
            if message.status not in GONE or message.rewindable:
                message.status = PURGED
                message.rewindable, message.mark = False, None
        self.head = len(self.messages)
        self.purged_at = self.now

    def set_attributes(self, settings: Settings) -> bool:
        if settings.version <= self.settings.version:
            return False
        if settings.delivery_id != self.settings.delivery_id:
            earlier = self.table if self.table[0] else (self.settings.delivery_id, None)
            self.table = earlier if self.marked() else (None, None)
        self.settings = settings
        if settings.rate is not None:
            self.refill = min(self.refill, settings.rate[1] * (60 * SECOND // settings.rate[0]))
        for message in self.messages:
            message.rewindable = message.rewindable and settings.rewind > 0
        self.expire()
        return True

    def rewind(self, to: int) -> int:
        if self.settings.rewind == 0:
            raise Refused("UnsupportedOperation")
        if to <= self.earliest() - 1_000_000 or to > self.now:
            raise Refused("InvalidParameterValue", "parameter to is invalid")
        if to == self.now:
            return 0
        rewound = [offset for offset in self.rewindable() if self.messages[offset].sent_at >= to]
        for offset in rewound:
            old = self.messages[offset]
            # as sent just now, but for the instant
            again = Message(old.sent_at, old.delay, old.group, status=VISIBLE, first_sent_at=old.first_sent_at)
            if again.state(self.now) == "delayed":
                again.hidden_until = self.now
            self.messages[offset] = again
        return len(rewound)

    def tell_expired(self) -> int:
        return self.expired

    def close(self) -> None:
        self.closed = True

    # deliveries into a table (TAB)

    def marked(self) -> list[Message]:
        return [message for message in self.messages if message.mark is not None]

    def target(self) -> tuple[str | None, str | None, str | None, bool, str | None]:
        """The table and the delivery id, the table's id, whether the marks are of an earlier one, and of which."""
        now, (owner, table_id) = self.settings.delivery_id, self.table
        changed = bool(self.marked()) and owner not in (None, now)
        known = table_id if changed or owner == now else None
        return (now and TABLE), now, known, changed, owner if changed else now

    def undecided(self) -> list[tuple[tuple[int, int], str | None, int, int]]:
        """Mark, lease, number of messages and end of the first receipt of what nobody has decided."""
        ended = [message for message in self.marked() if message.state(self.now) == UNDECIDED]
        found = []
        for mark in {message.mark for message in ended if message.mark}:
            own = [message for message in ended if message.mark == mark]
            found.append((mark, own[0].lease, len(own), min(message.hidden_until or 0 for message in own)))
        return sorted(found, key=lambda each: (each[3], each[0]))

    def lowest_slots(self, count: int) -> list[int]:
        used = {message.mark[0] for message in self.marked() if message.mark}
        return [slot for slot in range(len(self.messages) + count) if slot not in used][:count]

    def number(self, nonce: int) -> int:
        return (self.epoch + 1) * 2**20 + nonce

    def deliver(
        self,
        count: int,
        timeout: int | None,
        lease: str,
        keys: dict[str, Destination | None],
        hands: int | None,
        nonce: int,
    ) -> Claimed:
        """A claim for a delivery."""
        self.allowed(count)
        if self.settings.delivery_id is not None and self.target()[3]:
            return Claimed(lease, self.now, [])
        [slot] = self.lowest_slots(1)
        claimed = self.claim(count, timeout, lease, None, keys, hands)
        if not claimed.messages or self.settings.delivery_id is None:
            return claimed
        mark = slot, self.number(nonce)
        for offset, _, _ in claimed.messages:
            self.messages[offset].mark = mark
        if self.table[0] != self.settings.delivery_id:
            self.table = None, None
        return claimed._replace(mark=mark)

    def decide(self, slot: int, number: int, delivered: bool, unrecorded: bool = False) -> int:
        if unrecorded and self.target()[2] is not None:
            return 0
        own = [message for message in self.marked() if message.mark == (slot, number)]
        for message in own:
            if delivered:
                self.remove(message)
            else:
                self.hand_back(message, unmark=True)
                message.lease, message.together = None, len(own) if len(own) > 1 else None
        return len(own)

    def remark(
        self, lease: str, slot: int, number: int, parts: list[list[tuple[int, int]]], nonce: int
    ) -> tuple[tuple[int, int], ...] | None:
        own = [one for one in self.marked() if one.mark == (slot, number) and one.lease == lease]
        offsets = [[each for first, last in part for each in range(first, last + 1)] for part in parts]
        wanted = [
            self.messages[offset] if offset < len(self.messages) else None for part in offsets for offset in part
        ]
        for message in wanted:
            if not any(message is each for each in own) or (message and message.state(self.now) != "in_flight"):
                return None
        if not wanted or not all(offsets):
            return None
        marks = [(each, self.number(nonce)) for each in (slot, *self.lowest_slots(len(parts) - 1))]
        for mark, part in zip(marks, offsets, strict=True):
            for offset in part:
                self.messages[offset].mark = mark
        for message in own:
            if message.mark == (slot, number):
                self.hand_back(message, unmark=True)
        return tuple(marks)

    def record_table(self, slot: int, number: int, table_id: str) -> str | None:
        if self.target()[3] or not any(message.mark == (slot, number) for message in self.marked()):
            return None
        if self.target()[2] is None:
            self.table = self.settings.delivery_id, table_id
        return self.target()[2]
