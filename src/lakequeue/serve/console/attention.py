"""Problems of the root and its queues that an operator should check."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from lakequeue import Queue
from lakequeue.client import LakeQueue
from lakequeue.entry_verbs import (
    COMPACTION_CURE,
    COMPACTION_SECONDS,
    SLOW_TIMEOUTS,
    Advice,
    Concern,
    DamageReport,
    Depth,
    LetterCounts,
    Remedy,
    all_consumers,
    check_catalog,
    concerns,
    copying,
    copying_table,
    damage_reports,
    depths,
    idle_consumers,
    last_compaction,
    letters_of,
    running_consumers,
    schedule_concerns,
    settings,
    shortage,
    unreserved,
)
from lakequeue.errors import DamagedTable, LakeQueueError, QueueDoesNotExist
from lakequeue.model.clock import MICROS, NEVER, format_instant, shown_duration, to_micros
from lakequeue.serve.auth import Caller
from lakequeue.serve.console import documents
from lakequeue.serve.console.depth_history import DepthHistory
from lakequeue.serve.damage import MetDamage
from lakequeue.serve.errors import ErrorResponse
from lakequeue.serve.keys import ANY

if TYPE_CHECKING:
    from lakequeue.entry_verbs import ActiveConsumer, Concern, Shortage

KEPT_SECONDS = 30
"""Seconds for which depths and consumers of queues are cached."""
MOST = 200
"""Maximum number of problems in a list."""
MOST_COUNTED = 20
"""Maximum number of dead-letter queues whose errors are counted. The largest queues come first."""
PAUSE = "SetQueueAttributes"
"""Permission that a pause needs: the permission for ``set_attributes``, which can also pause a queue."""
_NEEDED = {
    "resume": PAUSE,
    "redrive": "StartMessageMoveTask",
    "keep": "SetQueueAttributes",
    "free": "ChangeMessageVisibility",
}
"""Maps each action that the console offers to the permission that the action needs."""
_COMMANDS = {"redrive": "redrive", "set": "keep"}
"""Maps commands that solve a problem to the console's actions with the same effect."""


@attrs.frozen
class _Seen:
    at: int
    queues: Sequence[tuple[Queue, Any]]
    """Each queue with its depth and consumers, or with the error of reading them."""
    earlier: dict[str, int]
    """Number of visible messages one hour earlier, by queue key."""
    letters: dict[str, LetterCounts]
    """Counted dead letters, by the name of their dead-letter queue."""
    schedules: Sequence[Concern] | LakeQueueError
    """Failing or overdue schedules, or the error of reading them."""
    shortage: Shortage | None
    failure: LakeQueueError | None = None
    """Error of a read of the catalog, as a new process would read it. None if the read succeeded."""
    reports: Mapping[str, DamageReport] = attrs.field(factory=dict)
    """The last consumer that met damaged messages of each queue, by the queue's key."""


def consumer_row(queue: Queue, consumer: ActiveConsumer) -> dict[str, Any]:
    """Returns a consumer's fields. ``slow``: True if it has had a message for over ``SLOW_TIMEOUTS`` timeouts."""
    least = timedelta(seconds=SLOW_TIMEOUTS * max(1, settings(queue).visibility_timeout))
    oldest = consumer.oldest_receive
    return documents.consumer(consumer) | {"slow": oldest is not None and queue.clock.now() - oldest > least}


class Attention:
    """Finds the problems that an operator should check. Thread-safe."""

    def __init__(self, lake: LakeQueue, depths: DepthHistory, damage: MetDamage) -> None:
        self._lake = lake
        self._damage = damage
        self._depths = depths
        self._lock = threading.Lock()
        self._seen: _Seen | None = None
        self._stale = False
        self._letters: dict[str, tuple[tuple[int, int], LetterCounts]] = {}

    def workers(self, caller: Caller) -> list[dict[str, Any]]:
        """Returns all consumers: the oldest receive first, idle ones after these, and killed consumers last."""
        seen = self._newest().queues
        found = [
            (queue.name, each)
            for queue, state in seen
            if not isinstance(state, LakeQueueError) and caller.may("GetQueueAttributes", queue.name)
            for each in state[1]
        ]
        found.sort(key=lambda known: (not known[1].is_active, known[1].oldest_receive or NEVER))
        queues = {queue.name: queue for queue, _ in seen}
        return [{"queue": name} | consumer_row(queues[name], each) for name, each in found]

    def _newest(self) -> _Seen:
        with self._lock:  # of several callers, one reads
            now = to_micros(self._lake.clock.now())
            if self._seen is None or self._stale or not 0 <= now - self._seen.at <= KEPT_SECONDS * MICROS:
                self._stale = False
                self._seen = self._look(now)
            return self._seen

    def forget(self) -> None:
        """Marks the cached data as outdated, so that the next call reads anew."""
        self._stale = True

    def consumers(self) -> dict[str, int]:
        """Returns the number of active consumers by queue name, from cached data."""
        seen = self._seen
        known = () if seen is None else seen.queues
        return {
            queue.name: sum(each.is_active for each in state[1])
            for queue, state in known
            if not isinstance(state, LakeQueueError)
        }

    def letters_of(self, source: str, dead: str) -> int | None:
        """Returns the number of dead letters of ``source`` in the queue ``dead``, as cached. None if unknown."""
        found = None if self._seen is None else self._seen.letters.get(dead, LetterCounts()).sources
        return None if found is None else found.get(source, 0)

    def of(self, caller: Caller, only: str | None = None) -> dict[str, Any]:
        """Returns at most ``MOST`` problems, most urgent first. ``only`` limits them to the queue of this name."""
        seen = self._newest()
        damaged, found = self._concerns(caller, seen)
        found.sort(key=lambda each: each.order)
        root = [*self._failure(caller, seen.failure), *_space(caller, seen.shortage)]
        upkeep = list[dict[str, Any]]()
        low = seen.shortage is not None and seen.shortage.urgent
        if seen.queues and not low and seen.failure is None:  # the cure of a full disk begins with a compaction
            upkeep = self._compaction(to_micros(self._lake.clock.now()))
            texts = [f"{text[0].upper()}{text[1:]}." for text in unreserved(self._lake)]
            upkeep += [_of_root(Advice(text), "disk-full") for text in texts]
        if isinstance(seen.schedules, LakeQueueError):
            text = f"The schedules cannot be read: {ErrorResponse.of(seen.schedules).message}"
            steps = [Remedy("lakequeue check", "shows what is damaged")]
            root.append(_of_root(Advice(text, steps=steps), "damage"))
        if only is not None:
            root, upkeep = [], []
            damaged = [each for each in damaged if each["queue"] == only]
            found = [each for each in found if each.queue == only]
        consumed = {
            queue.name
            for queue, state in seen.queues
            if not (isinstance(state, LakeQueueError) or settings(queue).paused)
            and caller.may("GetQueueAttributes", queue.name)
            and any(each.processes for each in state[1])
        }
        listed = damaged + [self._for(caller, each, seen.letters, consumed) for each in found[:MOST]]
        return {
            "root": root + upkeep,
            "urgent": bool(root),
            "failing": seen.failure is not None,
            "low": low,
            "full": seen.shortage is not None and seen.shortage.full,
            "concerns": listed[:MOST],
            "total": len(damaged) + len(found),
        }

    def ranks(self, caller: Caller) -> dict[str, int]:
        """Returns a rank for each queue with problems, by the state that was read last. Lower is more urgent."""
        if self._seen is None:
            return {}
        damaged, found = self._concerns(caller, self._seen)
        ranks = {each.queue: each.urgency for each in sorted(found, key=lambda each: -each.urgency)}
        return ranks | {each["queue"]: -1 for each in damaged}

    def _concerns(self, caller: Caller, seen: _Seen) -> tuple[list[dict[str, Any]], list[Concern]]:
        """Returns the problems that the caller may see: first of damaged or unreadable queues, then all others."""
        may = {queue.name for queue, _ in seen.queues if caller.may("GetQueueAttributes", queue.name)}
        sources: dict[str, list[str]] = {}
        for queue, _ in seen.queues:
            policy = settings(queue).redrive
            if policy is not None and queue.name in may:
                sources.setdefault(policy.dead_letter_queue, []).append(queue.name)
        met, damaged = self._damage.queues(self._lake.clock.now()), list[dict[str, Any]]()
        found: list[Concern] = []
        for queue, state in seen.queues:
            if queue.name not in may:
                continue
            if isinstance(state, DamagedTable) or queue.key in met:
                damaged.append(_damaged(queue, caller, seen.reports.get(queue.key)))
            elif isinstance(state, LakeQueueError):
                text = f"{queue.name} cannot be read: {ErrorResponse.of(state).message}"
                steps = (_check(queue.name),)
                damaged.append(attrs.asdict(Concern(queue.name, "unreadable", text, "", steps, "cannot be read")))
            if not isinstance(state, LakeQueueError):
                depth, busy = state
                of = seen.letters.get(queue.name, LetterCounts()).among(sources.get(queue.arn, ()))
                found += concerns(queue, depth, busy, of, seen.earlier.get(queue.key))
        if not isinstance(seen.schedules, LakeQueueError):  # of a queue that was deleted, too
            found += (each for each in seen.schedules if caller.may("GetQueueAttributes", each.queue))
        return damaged, found

    def _look(self, now: int) -> _Seen:
        failure: LakeQueueError | None = None
        try:
            check_catalog(self._lake)
        except LakeQueueError as raised:
            failure = raised
        try:
            queues = self._depths.queues()
        except LakeQueueError as raised:
            return _Seen(now, (), {}, {}, (), None, failure or raised)
        counted = [*depths(queues)]
        active = [
            queue
            for queue, depth in zip(queues, counted, strict=True)
            if isinstance(depth, Depth) and depth.counts.in_flight
        ]
        running = running_consumers(self._lake)
        reports = damage_reports(running, now)
        for key, report in reports.items():
            self._damage.reported(key, report.consumer, report.at)
        busy = dict(zip((queue.key for queue in active), all_consumers(active, running), strict=True))
        kept = []
        for queue, depth in zip(queues, counted, strict=True):
            holding = busy.get(queue.key) or idle_consumers(queue, running)
            error = next((each for each in (depth, holding) if isinstance(each, LakeQueueError)), None)
            if not isinstance(error, QueueDoesNotExist):  # deleted since it was listed
                kept.append((queue, (depth, holding) if error is None else error))
        try:
            schedules: Sequence[Concern] | LakeQueueError = schedule_concerns(self._lake)
        except LakeQueueError as raised:
            schedules = raised
        met = self._damage.queues(self._lake.clock.now())
        for queue in (queue for queue in queues if queue.key in met):  # it may be repaired
            self._damage.look_again(queue.key, self._lake.clock.now, partial(self._is_damaged, queue.name))
        before, letters = self._depths.an_hour_ago(queues), self._count_letters(kept)
        return _Seen(now, kept, before, letters, schedules, shortage(self._lake), failure, reports)

    def _is_damaged(self, name: str) -> bool:
        damaged = any(each.damage for each in self._lake.check(name))
        self._stale |= not damaged
        return damaged

    def _count_letters(self, known: Sequence[tuple[Queue, Any]]) -> dict[str, LetterCounts]:
        """Counts the dead letters of each queue. Reuses counts of queues that have not changed."""
        targets = {queue.dead_letter_queue for queue, _ in known}
        full = [
            (state[0].stored, state[0].sent, queue)
            for queue, state in known
            if queue.arn in targets and not isinstance(state, LakeQueueError) and state[0].stored
        ]
        counted: dict[str, tuple[tuple[int, int], LetterCounts]] = {}
        for stored, sent, queue in sorted(full, key=lambda each: -each[0])[:MOST_COUNTED]:
            before = self._letters.get(queue.key)
            if before is None or before[0] != (stored, sent):
                before = (stored, sent), letters_of(queue)
            counted[queue.key] = before
        self._letters = counted
        return {queue.name: counted[queue.key][1] for *_, queue in full if queue.key in counted}

    def _failure(self, caller: Caller, failure: LakeQueueError | None) -> Iterator[dict[str, Any]]:
        """Yields the failure of the read of the catalog, for which ``/health`` answers 503."""
        if isinstance(failure, DamagedTable):
            text = "The list of queues is damaged: no new process can open the root, and calls may fail."
            copy = copying_table(failure.table) if caller.may(ANY, None) else None
            checks = Remedy("lakequeue check", "shows what is damaged")
            repairs = Remedy("lakequeue repair --all", "shows what is lost, asks, and repairs it")
            steps, runbook = [checks, *filter(None, [copy]), repairs], "damage#the-catalog-cannot-be-read"
            yield _of_root(Advice(text, "After a repair, this line goes within a minute.", steps), runbook)
        elif failure is not None:
            text = f"The list of queues cannot be read: {ErrorResponse.of(failure).message}"
            steps = [Remedy("lakequeue list", "shows the reason")]
            yield _of_root(Advice(text, steps=steps), "alerts#lakequeuestorageunreadable")

    def _for(
        self, caller: Caller, concern: Concern, letters: dict[str, LetterCounts], consumed: set[str]
    ) -> dict[str, Any]:
        if concern.kind == "dead letters":
            counted = letters.get(concern.queue, LetterCounts())
            if caller.may("ReceiveMessage", concern.queue):
                concern = concern.with_errors(counted.errors)
            concern = concern.while_failing(counted.coming(self._lake.clock.now(), consumed))
        since = concern.since and format_instant(concern.since)
        return attrs.asdict(concern) | {"since": since, "may": _may(caller, concern)}

    def _compaction(self, now: int) -> list[dict[str, Any]]:
        found = list[dict[str, Any]]()
        ended = last_compaction(self._lake)
        text = None
        if ended is None:
            text = "The root was never compacted: files and logs grow."
        elif now - ended > COMPACTION_SECONDS * MICROS:
            text = f"The root was last compacted {shown_duration((now - ended) / MICROS)} ago."
        if text is not None:
            found.append(_of_root(Advice(text, steps=COMPACTION_CURE), "alerts#lakequeuenocompaction"))
        return found


def _damaged(queue: Queue, caller: Caller, met: DamageReport | None) -> dict[str, Any]:
    name, copies = queue.name, copying(queue) if caller.may(ANY, None) else None
    repair = Remedy(f"lakequeue repair {name}", "shows what is lost, asks, and repairs it")
    steps = [_check(name), *filter(None, [copies]), repair]
    text = f"{name} is damaged: a call within the last hour met a missing or changed file"
    if met is not None:
        text = f"{name} is damaged: a consumer met messages that cannot be read: {met}"
    hint = "after a repair, this goes within a minute"
    return attrs.asdict(Concern(name, "unreadable", text, hint, steps, "damaged"))


def _check(name: str) -> Remedy:
    return Remedy(f"lakequeue check {name}", "shows what is damaged")


def _of_root(advice: Advice, runbook: str, **more: Any) -> dict[str, Any]:
    known = {"text": advice.text, "details": [*advice.details], "hint": advice.hint, "runbook": runbook}
    return known | {"steps": [*map(attrs.asdict, advice.steps)], **more}


def _may(caller: Caller, concern: Concern) -> list[str]:
    """Returns the console's actions against a problem, without actions that the caller may not do."""
    wanted = {"paused": ["resume"], "dead letters": ["redrive"]}.get(concern.kind, [])
    verb, name = concern.steps[0].command.split()[1:3] if concern.kind == "dead letters" else ("", "")
    if verb == "pause":  # a redrive now would only fail again
        return ["pause"] if caller.may(PAUSE, name) else []
    if concern.kind == "expiring":
        verbs = [step.command.split()[1] for step in concern.steps]
        wanted = [_COMMANDS[verb] for verb in verbs if verb in _COMMANDS]
    if concern.consumer is not None and caller.may("ReceiveMessage", concern.queue):
        wanted = ["free"]  # after the messages were listed
    return [action for action in wanted if caller.may(_NEEDED[action], concern.queue)]


def _space(caller: Caller, short: Shortage | None) -> Iterator[dict[str, Any]]:
    if short is not None:
        short = short if caller.may(ANY, None) else short.without_names()
        text, hint, *causes = (
            f"{part[0].upper()}{part[1:]}." if part else "" for part in (short.text, short.hint, *short.causes)
        )
        advice = Advice(text, hint, short.steps, details=causes)
        yield _of_root(advice, "disk-full", largest=short.largest)
