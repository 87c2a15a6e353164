"""What simulated processes do: drawn verbs of queues, and a record of each call and its answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import attrs
import pyarrow as pa

from lakequeue import (
    LakeQueue,
    Lease,
    Message,
    Queue,
    QueueClientError,
    QueueDoesNotExist,
    RequestThrottled,
    SendEntry,
)
from lakequeue.errors import DamagedTable, LeaseLost, QueueServiceError, RowsRefused
from lakequeue.model.clock import from_micros
from lakequeue.operations import consumer_round, delivery
from lakequeue.operations.receive import Request
from lakequeue.storage.clock_guard import TOLERANCE
from lakequeue.storage.delivery.identity import CommitRefused
from simulation.scheduler import STORAGE, Killed, World
from simulation.target import Entry

Verb = tuple[Any, ...]
NAMES = {"fifo": "orders.fifo"}
"""Names of the queue, by kind; "orders" of all others."""
MORE = "more"
"""Name of a queue that processes create meanwhile."""
LIMIT = 2
"""Messages in flight of a group, where they are limited, and of a queue with a cap, at the beginning."""
RATE, BURST, UNIQUE = 2, 4, 300
"""Messages a second, and at once, of a queue of jobs; seconds for which its deduplication ids count."""
DEAD = "dead"
"""Name of the dead-letter queue, if there is one."""
STEPS = 120
"""Steps of one verb on a disk, about."""


@attrs.frozen
class Setting:
    """A queue and its place; runs of equal settings begin with copies of one root."""

    place: str = "disk"
    """``disk`` or ``store``."""
    kind: str = "standard"
    """``standard``, ``fifo``, ``letters``: with a dead-letter queue; ``dropped``: it is deleted meanwhile;
    ``history``: with rewinds; ``groups``: with a limit of each group; ``full``: with a cap on messages in flight,
    which changes; ``delivery``: with a delivery table."""
    shards: int = 1
    checkpoints: int = 100
    """Commits between two checkpoints."""
    prefilled: int = 3
    """Messages that are there at the beginning."""
    turns: bool = True
    """Whether processes take turns; else they decide on what they know, as those do that waited for too long."""
    empties: bool = False
    """Whether the compactor empties and cuts small segments, too."""

    @property
    def name(self) -> str:
        """Name of the queue."""
        return NAMES.get(self.kind, "orders")


@attrs.define(eq=False)
class Call:
    """A call of a verb and what is known of it; instants by the caller's wall clock, in seconds."""

    process: int
    verb: Verb
    began: int
    """Number of the world's step."""
    began_at: float
    ended: float = float("inf")
    """Number of the world's step, infinite if the process died."""
    latest: float = float("inf")
    """The latest time that any clock had shown when it ended."""
    outcome: str = "unknown"
    """``done``, ``refused``: nothing changed; ``unknown``."""
    error: str = ""
    failed: int = 0
    """Requests to the store that failed meanwhile: a receive may not have read what it claimed in a shard."""
    bodies: list[str] = attrs.field(factory=list)
    """What it sends."""
    places: list[Any] = attrs.field(factory=list)
    """Sequence numbers of what it sent."""
    target: list[Message] = attrs.field(factory=list)
    """Receipts that it settles."""
    got: list[Message] = attrs.field(factory=list)
    value: Any = None


@attrs.define
class History:
    """All calls of a run, by the order of their beginnings."""

    setting: Setting
    calls: list[Call] = attrs.field(factory=list)
    held: list[Message] = attrs.field(factory=list)
    """Receipts; any process may settle them."""
    attempts: list[tuple[Verb, list[Message]]] = attrs.field(factory=list)
    """Receives with an attempt id, and their answers; any process may repeat them."""
    erased: set[str] = attrs.field(factory=set)
    """Bodies of messages that were erased for sure."""
    unexpected: list[str] = attrs.field(factory=list)
    """Errors that no rule allows."""
    wrong: dict[int, float] = attrs.field(factory=dict)
    """Seconds by which clocks are ahead, by process or ``STORAGE``."""
    saved: int | None = None
    restored: int | None = None
    """Steps of the world: the root went back to what it was at the first one at the second one."""
    table: str = ""
    """The table that went back alone; empty: the whole root."""
    noticed: float = 0.0
    """When any call notices that, by the clock: until then what is committed to a store may be lost."""
    linked: list[int] = attrs.field(factory=list)
    """Steps at which the process that kept running committed: commits to it since the restore are not undone."""
    damaged: list[tuple[int, str]] = attrs.field(factory=list)
    """Steps and errors of calls that found damage since."""
    tears: bool = False
    """Whether a restore may leave tables that do not fit each other."""
    lost: int = 0
    """Messages that repairs told as lost."""
    told: bool = False
    """Whether the process that kept running was told so."""
    freed: bool = False
    """Whether a compaction spared nobody who was reading."""


CORE = {"send": 40, "receive": 30, "delete": 20, "compact": 6}
"""Shares of the verbs that meet at few tables."""
RARE = CORE | {
    **{"batch": 8, "change": 8, "exchange": 8, "lease": 4, "bulk": 4, "purge": 1.5, "attributes": 2, "counts": 2},
    **{"consume": 6, "forge": 2, "erase": 2, "repair": 1, "create": 2, "pause": 2},
}
"""Shares of all verbs."""
SETTLED = RARE | {"send": 40, "receive": 12, "consume": 40, "delete": 8, "compact": 30, "purge": 0, "create": 0}
"""Where most messages are deleted behind some that are not, and compacted."""
NOT_RESTORED = {"purge", "create", "erase", "repair"}
"""Not where the root goes back."""
OF_KIND = {
    "standard": {},
    "fifo": {"attempt": 10, "repeat": 5},
    "letters": {"redrive": 6, "move": 2, "erase": 0},
    "dropped": {"drop": 5, "create": 0},
    "history": {"rewind": 8},
    "groups": {"lease": 0},
    "full": {"lease": 0, "cap": 15, "receive": 60},
    "delivery": {
        **{"delete": 0, "exchange": 0, "lease": 0, "purge": 0, "consume": 0, "erase": 0, "create": 0, "change": 0},
        **{"deliver": 60, "operator": 2, "other": 6, "clean": 3, "send": 30, "receive": 8, "pause": 10},
    },
    "jobs": {"halt": 6, "cancel": 8, "reschedule": 8, "receive": 40},
}
"""Shares of verbs of a kind of queue."""


def drawn(chance: random.Random, length: int, process: int, weights: Mapping[str, float]) -> list[Verb]:
    """Verbs of a process, by their shares."""
    return [
        _drawn(chance, kind, f"{process}.{number}")
        for number, kind in enumerate(chance.choices(list(weights), list(weights.values()), k=length))
    ]


def _drawn(chance: random.Random, kind: str, name: str) -> Verb:
    match kind:
        case "send":
            return "send", name, chance.choice("ab"), chance.random() < 0.25
        case "again":  # only on FIFO queues: an id that was sent before
            return "send", name, chance.choice("ab"), True
        case "batch":
            return "batch", name, chance.randint(2, 4), chance.choice("ab")
        case "bulk":
            return "bulk", chance.choice([f"bulk-{name}", "bulk-x", "bulk-y"]), chance.choice("ab")
        case "receive":
            return (
                *("receive", chance.choice([1, 2, 10]), chance.choice([1, 30, 30, 600])),
                chance.choice([0, 0, 0, 2]),
            )
        case "delete":
            return "delete", chance.randrange(8), chance.choice([1, 1, 3])
        case "change":
            return "change", chance.randrange(8), chance.choice([0, 0, 5, 60])
        case "exchange":
            return "exchange", chance.randrange(8), chance.choice([1, 3]), chance.choice([1, 3])
        case "lease":
            return "lease", chance.choice([2, 10]), chance.choice(["delete", "release", "none"])
        case "attempt":
            return "attempt", f"attempt-{name}", chance.choice([1, 3, 10]), chance.random() < 0.3
        case "halt":
            return "halt", chance.random() < 0.4
        case "reschedule":
            return "reschedule", chance.randrange(8), chance.choice([0, 20, 100_000])
        case "fail":
            return "deliver", 10, 30, kind
        case "deliver":
            ways = ["append", "append", "append", "fail", "halve", "own", "release"]
            return "deliver", chance.choice([1, 2, 10]), chance.choice([1, 30, 30, 600]), chance.choice(ways)
        case "operator":
            return "operator", chance.random() < 0.5
        case "forge" | "erase" | "repeat" | "cancel":
            return kind, chance.randrange(8)
        case "attributes":
            return "attributes", chance.choice([20, 40])
        case "cap":
            return "cap", chance.choice([1, 1, 2 * LIMIT])
        case "create":
            return "create", name
        case "pause":
            return "pause", chance.choice([1, 40, 400, 4000, 20_000])
    return (kind,)


class _Partly(Exception):
    """Some parts of a call were refused."""


class Client:
    """A simulated process at its verbs."""

    def __init__(self, world: World, history: History, entry: LakeQueue, process: int) -> None:
        self.world, self.history, self.entry, self.process = world, history, entry, process
        self._queue: Queue | None = None

    @property
    def queue(self) -> Queue:
        if self._queue is None:
            self._queue = self.entry.queue(self.history.setting.name)
        return self._queue

    @contextmanager
    def _call(self, verb: Verb) -> Iterator[Call]:
        world = self.world
        call, failed = Call(self.process, verb, world.steps, world.now()), world.failed
        self.history.calls.append(call)
        try:
            yield call
            call.outcome = "done"
        except QueueClientError as error:
            call.error = str(error)
            call.outcome = "unknown" if error.outcome_unknown else "refused"
            if not self._allowed(error):
                self.history.unexpected.append(f"{verb}: {type(error).__name__}: {error}")
        except _Partly as error:
            call.error = str(error)
        except (QueueServiceError, LeaseLost) as error:
            call.error, call.outcome = type(error).__name__, "refused"
        except Exception as error:
            call.error = repr(error)
            self.history.unexpected.append(f"{verb}: {error!r}")
        world.last_end = world.steps
        call.ended, call.latest, call.failed = world.steps, world.latest, world.failed - failed

    def _allowed(self, error: QueueClientError) -> bool:
        """Whether a failure is one of the world, not of the code."""
        if isinstance(error.__cause__, (AssertionError, AttributeError, LookupError, TypeError)):
            return False
        if "has a newer delivery" in str(error):  # there is one root
            return False
        if isinstance(error, DamagedTable):
            return bool(self.world.flips) or self._is_told(str(error)) or self._is_torn(str(error))
        if self.is_out(str(error)):
            return True
        waited = "waited too long and were removed" in str(error)
        if waited or "No such file" in str(error):  # the root went back; or who wrote a bulk send was stopped
            told = self._is_told("is not what this process read")
            stopped = waited or "/bulk/" in str(error)
            return told or stopped and (self.process != 0 or self.history.restored is None)
        if error.outcome_unknown or isinstance(error, RequestThrottled):
            return True
        if "may have been removed" in str(error):  # it was stopped for an hour, or its clock was set
            return True
        return self.history.setting.place == "store" or "was held by another process" in str(error)

    def _is_told(self, error: str) -> bool:
        """Whether a process that kept running is told once that the root went back."""
        first = self.process == 0 and self.history.restored is not None and not self.history.told
        self.history.told = self.history.told or first
        return first and ("is not what this process read" in error or "was replaced during a commit" in error)

    def _is_torn(self, error: str, met: int | None = None) -> bool:
        """Whether an error may be damage by a restore, which the check must find. ``met``: the step; None: now."""
        if self.history.restored is None or not self.history.tears:
            return False
        self.history.damaged.append((self.world.steps if met is None else met, error))
        return True

    def is_out(self, error: str) -> bool:
        """Whether an error is of a clock that is wrong, or of a disk that is full."""
        if "No space left on device" in error:
            return self.world.room is not None
        clocks = {number for number in self.history.wrong if number in (self.process, STORAGE)}
        told = "this machine's clock is", "the clock says", "were written more than 12 h ago"
        return bool(clocks) and any(each in error for each in told)

    def perform(self, verb: Verb) -> None:
        perform: Callable[[Verb], None] = getattr(self, f"_{verb[0]}")
        perform(verb)

    def _entry_of(self, body: str, group: str, again: bool = False) -> SendEntry:
        if self.history.setting.kind == "groups":
            return SendEntry(body, group_id=group)
        if self.history.setting.kind == "jobs":
            return SendEntry(body, dedup_id=f"again-{group}" if again else body)
        if self.history.setting.kind != "fifo":
            return SendEntry(body, delay=60 if again else None)
        return SendEntry(body, group_id=group, dedup_id=f"again-{group}" if again else body)

    def _send(self, verb: Verb) -> None:
        _, body, group, again = verb
        with self._call(verb) as call:
            call.bodies = [body]
            entry = self._entry_of(body, group, again)
            sent = self.queue.send(body, delay=entry.delay, group_id=entry.group_id, dedup_id=entry.dedup_id)
            call.places = [sent.sequence_number]

    def _batch(self, verb: Verb) -> None:
        _, name, number, group = verb
        with self._call(verb) as call:
            call.bodies = [f"{name}:{index}" for index in range(number)]
            result = self.queue.send_batch([self._entry_of(body, group) for body in call.bodies])
            if result.failed:
                raise _Partly(str({failure.code for failure in result.failed}))

    def _receive(self, verb: Verb) -> None:
        _, number, timeout, wait = verb
        with self._call(verb) as call:
            call.got = self.queue.receive(number, visibility_timeout=timeout, wait_time=wait)
            self.history.held += call.got

    def _consume(self, verb: Verb) -> None:
        """Receives and deletes, as a consumer does."""
        first = len(self.history.held)
        self._receive(("receive", 10, 30, 0))
        if number := len(self.history.held) - first:
            self._delete(("delete", first, number))

    def _targets(self, first: int, number: int = 1) -> list[Message]:
        held = self.history.held
        return [held[(first + index) % len(held)] for index in range(min(number, len(held)))] if held else []

    def _delete(self, verb: Verb) -> None:
        _, first, number = verb
        targets = self._targets(first, number)
        if not targets:
            return
        with self._call(verb) as call:
            call.target = targets
            if number == 1:
                self.queue.delete(targets[0].receipt_handle)
            else:
                result = self.queue.delete_batch([each.receipt_handle for each in targets])
                if result.failed:
                    raise _Partly(str({failure.code for failure in result.failed}))

    def _change(self, verb: Verb) -> None:
        _, first, timeout = verb
        targets = self._targets(first)
        if not targets:
            return
        with self._call(verb) as call:
            call.target = targets
            self.queue.change_visibility(targets[0].receipt_handle, timeout)

    def _exchange(self, verb: Verb) -> None:
        _, first, number, wanted = verb
        with self._call(verb) as call:
            call.target = self._targets(first, number)
            handles: list[tuple[str, Any]] = [(each.receipt_handle, None) for each in call.target]
            answer = call.value = consumer_round.exchange(
                self.queue._runtime, handles, Request(wanted, 30, enough=1)
            )
            call.got = list(answer.messages)
            self.history.held += call.got
            errors = [error for error in (answer.refused, *answer.errors) if error is not None]
            failed = [error for error in errors if isinstance(error, QueueClientError)]
            if failed:
                raise failed[0]
            if errors:
                raise _Partly(type(errors[0]).__name__)
        if call.outcome == "refused" and call.value is not None and None in call.value.errors:
            call.outcome = "unknown"  # one commit for each shard

    def _lease(self, verb: Verb) -> None:
        _, number, then = verb
        lease, held = None, []
        with self._call(verb) as call:
            lease = self.queue.lease(number, visibility_timeout=30)
            if lease is not None:
                call.value = lease
                held = call.got = _leased(lease)
                self.history.held += held
        late = lease is not None and len(held) < lease.message_count and call.latest > instant(lease.visible_at)
        if call.value is not None and (call.outcome == "refused" or late):
            call.outcome = "unknown"  # it was claimed, and not read, or only once others had deleted messages
        if lease is None or call.outcome != "done" or then == "none":
            return
        with self._call(("delete", 0, 0) if then == "delete" else ("change", 0, 0)) as settling:
            settling.target = held
            counts = lease.delete() if then == "delete" else lease.release()
            if counts.lost:
                raise _Partly(str(counts))
        if settling.outcome == "refused":
            settling.outcome = "unknown"  # one commit for each shard

    def _bulk(self, verb: Verb) -> None:
        _, send_id, group = verb
        with self._call(verb) as call:
            call.bodies = [f"{send_id}:{number}" for number in range(3)]
            rows: dict[str, list[str]] = {"body": call.bodies}
            if self.history.setting.kind in ("fifo", "groups"):
                rows["group_id"] = [group] * 3
            if self.history.setting.kind == "fifo":
                rows["dedup_id"] = call.bodies
            self.queue.send_arrow(pa.table(rows), send_id)

    def _deliver(self, verb: Verb) -> None:
        """Delivers messages as rows; ``target`` has those that were claimed, ``value`` those that were stored."""
        _, number, timeout, way = verb
        with self._call(verb) as call:
            claimed = delivery.claim(self.queue._runtime, number, timeout, None)
            if claimed is None:
                return
            call.target = messages = claimed.messages()
            if way == "release":
                claimed.release()
                return
            if way == "fail" and len(messages) > 1:
                failed = messages.pop()
                call.target = [*messages, failed]
                claimed.release_failed({failed.receipt_handle: None})
            if way == "own":
                self._write_own(claimed, messages)
            elif way == "halve":
                self._divide(claimed, messages)
            else:
                claimed.append(_rows(messages))
            call.value = [each.body for each in messages]

    def _write_own(self, claimed: delivery.Delivering, messages: list[Message]) -> None:
        if not self.world.table.exists:  # such a write needs a table
            claimed.append(_rows(messages))
            return
        identity, handle = claimed.open()
        try:
            handle.append(identity, pa.Table.from_pylist(_rows(messages)))
        except CommitRefused as refused:
            raise _Partly("refused") from refused
        try:
            claimed.delivered()
        except QueueClientError as error:
            stored = [each.version for each in self.world.table.entries if each.app_id == identity.app_id]
            if identity.version in stored or "has no commit" not in str(error):
                raise
            raise _Partly("the entry lies below a log that was cleaned meanwhile") from error

    def _divide(self, claimed: delivery.Delivering, messages: list[Message]) -> None:
        """Has the table refuse the rows of several messages, and delivers each by itself."""
        try:
            claimed.append(_rows(messages, alone=True))
        except RowsRefused:
            parts = claimed.anew([[each.receipt_handle] for each in messages]) or ()
            for part, message in zip(parts, messages, strict=bool(parts)):
                part.append(_rows([message], alone=True))

    def _operator(self, verb: Verb) -> None:
        """Decides whatever is undecided, which may be wrong."""
        with self._call(verb) as call:
            call.value = self.queue.decide(delivered=verb[1])

    def _other(self, verb: Verb) -> None:
        self.world.table.entries.append(Entry())

    def _clean(self, verb: Verb) -> None:
        self.world.table.clean()

    def _erase(self, verb: Verb) -> None:
        targets = self._targets(verb[1])
        if not targets:
            return
        with self._call(verb) as call:
            call.target = targets
            self.queue.erase(targets[0].message_id)
        if call.outcome == "refused" and call.error != "InvalidParameterValue":
            call.outcome = "unknown"  # the message may be deleted, and its row as it was
        if call.outcome == "done":
            self.history.erased.add(targets[0].body)

    def _cancel(self, verb: Verb) -> None:
        """Cancels a message: to the judge an erasure, as nobody may receive it again."""
        targets = self._targets(verb[1])
        if not targets:
            return
        with self._call(("erase", verb[1])) as call:
            call.target = targets
            if not self.queue.cancel(targets[0].message_id) and self.history.wrong.get(self.process, 0) > 0:
                raise _Partly("to its clock it has expired, and nothing was changed")

    def _reschedule(self, verb: Verb) -> None:
        targets = self._targets(verb[1])
        if targets:
            with self._call(verb):
                self.queue.reschedule(targets[0].message_id, self.entry.clock.now() + timedelta(seconds=verb[2]))

    def _halt(self, verb: Verb) -> None:
        """Pauses the queue, or ends that."""
        with self._call(verb):
            if verb[1]:
                self.queue.pause("the bank is down")
            else:
                self.queue.resume()

    def _rewind(self, verb: Verb) -> None:
        with self._call(verb) as call:
            call.value = self.queue.rewind(self.queue.created_at - timedelta(hours=1))

    def _repair(self, verb: Verb) -> None:
        if self.history.setting.place == "store":
            return  # it has no locks; `repair` asks to stop the other processes
        with self._call(verb) as call:
            call.value = self.entry.repair(apply=True, force=True)
            self.history.lost += sum(last - first + 1 for each in call.value for first, last in each.lost)
            if call.value and not self.world.cuts and not self.world.flips:
                raise AssertionError(f"there was nothing to repair: {call.value}")

    def _create(self, verb: Verb) -> None:
        """Makes a queue that others make, too, and sends to it."""
        _, name = verb
        with self._call(verb) as call:
            queue = self.entry.create_queue(MORE, visibility_timeout=30)
            call.bodies = [name]
            queue.send(name)

    def _save(self, _: Verb) -> None:
        self.world.save()

    def _restore(self, verb: Verb) -> None:
        self.world.restore(*verb[1:])

    def _pause(self, verb: Verb) -> None:
        self.world.sleep(verb[1])

    def _move(self, verb: Verb) -> None:
        """Moves all messages to the dead-letter queue, as to any other queue."""
        with self._call(verb) as call:
            call.value = self.queue.redrive(destination=self.entry.queue(DEAD))

    def _repeat(self, verb: Verb) -> None:
        """Repeats an attempt of any process."""
        if not self.history.attempts:
            return
        (_, attempt, number, _), first = self.history.attempts[verb[1] % len(self.history.attempts)]
        self._receive_again(("again", attempt, number, False), first)

    def _receive_again(self, verb: Verb, first: list[Message]) -> None:
        with self._call(verb) as again:
            again.value = first
            second = self.queue.receive(verb[2], visibility_timeout=600, wait_time=0, attempt_id=verb[1])
            known = {message.receipt_handle for message in first}
            again.target = [message for message in second if message.receipt_handle in known]
            again.got = [message for message in second if message.receipt_handle not in known]
            self.history.held += again.got

    def _attempt(self, verb: Verb) -> None:
        """Receives with an attempt id, deletes one message or none, and receives again."""
        _, attempt, number, deletes = verb
        first: list[Message] = []
        with self._call(verb) as call:
            first = self.queue.receive(number, visibility_timeout=600, wait_time=0, attempt_id=attempt)
            call.got = first
            self.history.held += first
        if not first or call.outcome != "done":
            return
        if deletes:
            with self._call(("delete", 0, 1)) as settling:
                settling.target = first[:1]
                self.queue.delete(first[0].receipt_handle)
            if settling.outcome != "done":
                return
            self._receive_again(("again", attempt, number, True), first)
            return
        self.history.attempts.append((verb, first))
        if self.world.chance.random() < 0.5:
            self._receive_again(("again", attempt, number, False), first)

    def _forge(self, verb: Verb) -> None:
        targets = self._targets(verb[1])
        if not targets:
            return
        head, mac = targets[0].receipt_handle[:-32], targets[0].receipt_handle[-32:]
        forged = f"{head}{mac[::-1]}"
        if forged == targets[0].receipt_handle:
            return
        with self._call(verb):
            self.queue.delete(forged)

    def _drop(self, verb: Verb) -> None:
        with self._call(verb):
            self.entry.delete_queue(self.history.setting.name)

    def _purge(self, verb: Verb) -> None:
        with self._call(verb):
            self.queue.purge()

    def _compact(self, verb: Verb) -> None:
        now, place = None, self.history.setting.place
        if place == "disk" and self.world.chance.random() < 0.25:
            now, self.history.freed = self.world.chance.choice([0, 5]), True
        with self._call(verb) as call:
            summary = self.queue.compact(now=now)
            call.value = summary.failures
            # a machine that stands still, or whose clock is set, between two looks at clocks
            passed = abs(self.world.now() - call.began_at) > TOLERANCE
            for each in summary.failures:
                if "this machine's clock is" in each:
                    allowed = passed or self.is_out(each)
                elif "is not what this process read" in each or "was replaced during a commit" in each:
                    allowed = self.process == 0 and self.history.restored is not None
                elif "is damaged" in each:
                    # told at the end; the damage may have been mended since it was met
                    allowed = bool(self.world.flips) or self._is_torn(each, met=call.began)
                else:
                    allowed = place == "store" or "was held by another process" in each or self.is_out(each)
                if not allowed:
                    self.history.unexpected.append(f"compact: {each}")

    def _attributes(self, verb: Verb) -> None:
        with self._call(verb):
            self.queue.set_attributes(visibility_timeout=verb[1])

    def _cap(self, verb: Verb) -> None:
        with self._call(verb):
            self.queue.set_attributes(max_inflight_messages=verb[1] * self.history.setting.shards)

    def _counts(self, verb: Verb) -> None:
        with self._call(verb) as call:
            call.value = self.queue.counts()

    def _redrive(self, verb: Verb) -> None:
        with self._call(verb) as call:
            call.value = self.entry.queue(DEAD).redrive()


def _rows(messages: list[Message], alone: bool = False) -> list[dict[str, Any]]:
    return [{"body": message.body, "alone": alone} for message in messages]


def prepare(entry: LakeQueue, setting: Setting) -> None:
    """The queue of a setting, with the messages that are there at the beginning."""
    name = setting.name
    more: dict[str, Any] = {}
    if setting.kind == "letters":
        more["redrive_policy"] = {"deadLetterTargetArn": entry.create_queue(DEAD).arn, "maxReceiveCount": 2}
    if setting.kind == "fifo" and setting.shards > 1:
        more["deduplication_scope"] = "messageGroup"
    if setting.kind == "history":
        more["rewind_range"] = True
    if setting.kind == "groups":
        more |= {"fair_groups": True, "group_in_flight_limit": LIMIT}
    if setting.kind == "full":
        more["max_inflight_messages"] = LIMIT * setting.shards
    if setting.kind == "delivery":
        more["table"] = f"{entry.root}-table"
    if setting.kind == "jobs":
        more |= {"deduplication_interval": UNIQUE, "rate_limit": f"{RATE}/s", "rate_burst": BURST}
    queue = entry.create_queue(name, fifo=setting.kind == "fifo", shards=setting.shards, **more)
    for number in range(setting.prefilled):
        body, group = f"p.{number}", "ab"[number % 2]
        fifo = {"group_id": group, "dedup_id": body} if setting.kind == "fifo" else {}
        queue.send(body, **({"group_id": group} if setting.kind == "groups" else fifo))


def drain(entry: LakeQueue, setting: Setting, world: World) -> dict[str, list[Message]]:
    """Receives and deletes everything, by queue."""
    found: dict[str, list[Message]] = {}
    names = [setting.name, *([DEAD] if setting.kind == "letters" else [])]
    if setting.kind == "dropped":
        try:  # whoever notices a deletion that was cut short finishes it
            for queue in entry.list_queues():
                queue.counts()
        except QueueDoesNotExist:
            assert not entry.list_queues(), "a deletion stays unfinished"
        if not entry.list_queues():
            return {}
    names += [queue.name for queue in entry.list_queues(MORE)]
    for name in names:
        found[name] = []
    if setting.kind == "jobs":
        entry.queue(setting.name).set_attributes(paused=None, rate_limit=None)
    left = rounds = 2 if setting.kind == "letters" else 1  # what one had may be on its way to the other
    while left:
        drained = {name: _emptied(entry.queue(name), world) for name in names}
        for name, messages in drained.items():
            found[name] += messages
        left = rounds if rounds > 1 and any(drained.values()) else left - 1
    return found


def _emptied(queue: Queue, world: World) -> list[Message]:
    """All messages of a queue, received and deleted."""
    found: list[Message] = []
    rounds = 0
    while True:
        messages = queue.receive(100, visibility_timeout=30, wait_time=0)
        if not messages:
            counts = queue.counts()
            left = counts.visible + counts.in_flight + counts.delayed + counts.undecided
            if left == 0 or (rounds := rounds + 1) > 4:
                assert left == 0, f"{queue.name} does not run empty: {counts}"
                return found
            world.pass_time(50_000)
            continue
        found += messages
        result = queue.delete_batch([each.receipt_handle for each in messages])
        assert not result.failed, result.failed


def _leased(lease: Lease) -> list[Message]:
    """Messages of a lease, as a receive has them; each shard was claimed at an instant of its own."""
    claims = {part.shard.number: part.claimed for part in lease._runtime.parts}
    columns = ["message_id", "receipt_handle", "body", "receive_count", "sent_at", "group_id", "sequence_number"]
    found = []
    for row in lease.arrow([*columns, "shard"]).to_pylist():
        claim = claims[row.pop("shard")]
        received, visible = from_micros(claim.received_at), from_micros(claim.visible_at)
        times = {"first_received_at": received, "received_at": received, "visible_at": visible}
        found.append(Message(**row, **times))
    return found


def instant(moment: datetime | None) -> float:
    assert moment is not None
    return (moment - datetime.fromtimestamp(0, timezone.utc)) / timedelta(seconds=1)


__all__ = ["Killed"]
