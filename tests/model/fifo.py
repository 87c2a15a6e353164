"""What is different on FIFO queues: message groups, one delay for all, and receives that may be repeated."""

from __future__ import annotations

from dataclasses import replace

from lakequeue.shard.runs import Destination

from .fair import FairModel
from .model import DECIDE_EVERY, GONE, SECOND, UNDECIDED, Claimed, Message, Model, Row, Settings

ATTEMPT_WINDOW = 300 * SECOND
LOOK_AHEAD = 4096  # messages behind the shard's head, or where a group begins, that are looked at for that group

Place = tuple[int, Message]  # a message and its offset


class FifoModel(Model):
    """A shard of a FIFO queue as a list of messages."""

    at_limit = "empty"  # INF-4

    def send(self, row: Row) -> None:
        arrived = Message(row.sent_at, self.settings.delay, row.group, count=row.count, before=row.count)
        self.accept(replace(arrived, first_received_at=row.first_received_at))

    # groups

    def groups(self) -> dict[str, list[Place]]:
        """Stored messages by group, oldest first."""
        groups: dict[str, list[Place]] = {}
        for offset, message in enumerate(self.messages):
            if message.status not in GONE:
                groups.setdefault(message.group, []).append((offset, message))
        return groups

    def heads(self) -> dict[str, Place]:
        """The oldest stored message of each group."""
        return {group: places[0] for group, places in self.groups().items()}

    def deliverable(self) -> list[int]:
        """What a claim without limits would deliver, in this order."""
        waiting = {
            group: self.visible(places)
            for group, places in self.groups().items()
            if group not in self.settings.paused_groups
        }
        found: list[int] = []
        while any(waiting.values()):
            turns = [
                (self.since(places[0][1]), places[0][0], group) for group, places in waiting.items() if places
            ]
            _, first, group = min(turns)
            end = max(self.head, first) + LOOK_AHEAD
            found += [offset for offset, _ in waiting[group] if offset < end]
            waiting[group] = [place for place in waiting[group] if place[0] >= end]
        return found

    def heads_only(self, offsets: list[int]) -> list[int]:
        heads: dict[str, int] = {}
        for offset in offsets:
            heads.setdefault(self.messages[offset].group, offset)
        return list(heads.values())

    def begun(self, offsets: list[int], hands: int | None) -> tuple[list[int], int, int]:
        most, begun, found = self.settings.max_receives, set[str](), list[int]()
        stopped: dict[str, int] = {}
        if hands is None or most is None:
            return offsets, 0, 0
        free = hands
        for offset in offsets:
            group, last = self.messages[offset].group, self.messages[offset].here() + 1 >= most
            if group in stopped or (last and (group in begun or not free)):
                stopped.setdefault(group, int(group not in begun))
                continue
            found.append(offset)
            begun.add(group)
            free -= last
        return found, hands - free, sum(stopped.values())

    def visible(self, places: list[Place]) -> list[Place]:
        """The messages of a group before the first that is hidden."""
        for i, (_, message) in enumerate(places):
            if message.state(self.now) != "visible":
                return places[:i]
        return places

    @staticmethod
    def since(message: Message) -> int:
        """Instant from which a visible message has been so."""
        return message.sent_at + message.delay if message.hidden_until is None else message.hidden_until

    def stamp(self, before: dict[str, Place]) -> None:
        """A group whose head was deleted waits anew, behind those that wait already."""
        end = self.head + LOOK_AHEAD
        for group, (offset, message) in self.heads().items():
            if before[group][0] != offset and offset < end and message.state(self.now) == "visible":
                message.hidden_until = self.now
                self.pass_head(offset + 1)

    # commands

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
        if attempt is not None and self.attempt_lives(attempt):
            return self.repeat(attempt, timeout)
        count = self.allowed(count)
        offsets = self.next(count, hands, one_each)
        dead = self.meet_dead(offsets, count, lease, keys or {})
        if dead is not None:
            return dead
        offsets, last, passed = self.begun(offsets, hands)
        if attempt is not None and offsets:
            self.forget(attempt)
        claimed = self.receive(offsets, last, passed, timeout, lease)
        if attempt is not None:
            self.remember(attempt, offsets)
        return claimed

    def delete(self, offset: int, lease: str) -> bool:
        before = self.heads()
        answer = super().delete(offset, lease)
        self.stamp(before)
        return answer

    def moved(self, number: int) -> int:
        before = self.heads()
        answer = super().moved(number)
        self.stamp(before)
        return answer

    def discard(self, spans: list[tuple[int, int]]) -> int:
        before = self.heads()
        answer = super().discard(spans)
        self.stamp(before)
        return answer

    def erase(self, spans: list[tuple[int, int]], for_good: bool) -> tuple[int, bool]:
        before = self.heads()
        answer = super().erase(spans, for_good)
        self.stamp(before)
        return answer

    def lease_delete(
        self, lease: str, spans: list[tuple[int, int]], kept: list[int], unmark: bool = False
    ) -> tuple[int, int, int]:
        before = self.heads()
        answer = super().lease_delete(lease, spans, kept, unmark)
        self.stamp(before)
        return answer

    def decide(self, slot: int, number: int, delivered: bool, unrecorded: bool = False) -> int:
        before = self.heads()
        answer = super().decide(slot, number, delivered, unrecorded)
        self.stamp(before)
        return answer

    def set_attributes(self, settings: Settings) -> bool:
        changed = settings.delay != self.settings.delay
        adopted = super().set_attributes(settings)
        if adopted and changed:
            for message in self.messages:
                message.delay = settings.delay
                if message.received_at is None:
                    message.hidden_until = None
        return adopted

    # attempts

    def attempt(self, attempt: str) -> list[Place]:
        """What is stored of the messages that were received with an attempt id, in the order of delivery."""
        places = [
            (offset, message)
            for offset, message in enumerate(self.messages)
            if message.attempt_id == attempt and message.status not in GONE
        ]
        return sorted(places, key=lambda place: (place[1].attempt_place or 0, place[0]))

    def attempt_lives(self, attempt: str) -> bool:
        places = self.attempt(attempt)
        for _, message in places:
            if message.state(self.now) != "in_flight":
                return False
            if self.now - (message.attempted_at or 0) >= ATTEMPT_WINDOW:
                return False
        return bool(places)

    def repeat(self, attempt: str, timeout: int | None) -> Claimed:
        places = self.attempt(attempt)
        claimed = Claimed(places[0][1].lease or "", self.until(timeout), [], bool(self.moving()))
        for offset, message in places:
            message.hidden_until = claimed.hidden_until
            message.received_at = self.now
            claimed.messages.append((offset, message.count, message.first_received_at or 0))
        return claimed

    def remember(self, attempt: str, offsets: list[int]) -> None:
        """Note the attempt with each message; stretches of offsets in the answer share a place."""
        place = 0
        for i, offset in enumerate(offsets):
            if i > 0 and offset != offsets[i - 1] + 1:
                place += 1
            message = self.messages[offset]
            message.attempt_id, message.attempted_at, message.attempt_place = attempt, self.now, place

    def forget(self, attempt: str | None) -> None:
        for message in self.messages:
            if attempt is not None and message.attempt_id == attempt:
                message.attempt_id = message.attempted_at = message.attempt_place = None

    def remove(self, message: Message) -> None:
        self.forget(message.attempt_id)
        super().remove(message)

    def hide(self, message: Message, until: int) -> None:
        self.forget(message.attempt_id)
        super().hide(message, until)

    def hand_back(self, message: Message, unmark: bool = False) -> None:
        self.forget(message.attempt_id)
        super().hand_back(message, unmark)

    # waiting

    def check_next_event(self, told: int | None) -> None:
        """Checks that a claim gets nothing more before the announced instant, and that something happens then."""
        events = set()
        for message, state in zip(self.messages, self.states(), strict=True):
            if state not in ("deleted", "expired", "purged", "moved"):
                events.add(message.sent_at + self.settings.retention)
            if state == "delayed":
                events.add(message.sent_at + message.delay)
            if state == "in_flight":
                events.add(message.hidden_until or 0)
            if state == UNDECIDED:
                events.add(self.now + DECIDE_EVERY)
        if not self.tokens():
            events.update(self.let_through())
        assert told is None or (told in events and told > self.now), "a false alarm"
        now = self.obtainable()
        for event in sorted(events):
            if told is not None and event >= told:
                break
            then = self.copy()
            then.advance(event)
            assert then.obtainable() <= now, "more could be had earlier"

    def obtainable(self) -> set[int]:
        """What might be delivered now."""
        if self.full() or not self.tokens():
            return set()
        return set(self.deliverable())


def model(settings: Settings) -> Model:
    """Returns an empty shard of the kind in the settings."""
    if settings.tenants:
        return FairModel(settings)
    return FifoModel(settings) if settings.fifo else Model(settings)
