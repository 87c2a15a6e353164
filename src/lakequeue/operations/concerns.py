"""Finds problems of queues that an operator should check. An example is a queue that nobody receives from."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from textwrap import shorten
from typing import NamedTuple

import attrs

from lakequeue.errors import LakeQueueError, counted
from lakequeue.model import redrive_policies
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import MICROS, from_micros, shown_duration, to_micros
from lakequeue.model.pauses import ENDS, resumed_at
from lakequeue.operations.advice import Concern, ErrorCount, Remedy
from lakequeue.operations.browse import Search, page
from lakequeue.operations.consumer_concerns import SILENT_SECONDS, UNREAD_SECONDS, outage, silent, stuck, waiting
from lakequeue.operations.consumers import ActiveConsumer, Running, consumers
from lakequeue.operations.depth import Depth, depth
from lakequeue.operations.results import QueueCounts
from lakequeue.operations.undecided import unable_to_decide
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.root import Root
from lakequeue.storage import stats_rows
from lakequeue.storage.catalog import QueueRow

KILLED_SECONDS = 60
"""Replaces ``UNREAD_SECONDS`` if no consumer runs, and one was killed up to ``SILENT_SECONDS`` ago."""
PAUSED_SECONDS = 24 * 3600  # a shorter pause is a notice, and no warning
POISON_RECEIVES = 10
"""Receive count from which the oldest message of a queue without a dead-letter queue counts as poison."""
GROWTH_SECONDS = 3600
LEAST_GROWTH, GROWTH_SHARE = 100, 0.2
"""A queue is growing if, in an hour, its visible messages grow by at least this number, and by this share."""
COMPACTION_CURE = (Remedy("lakequeue compact", "every minute, or every five minutes on an object store"),)
COMPACTION_SECONDS = 6 * 3600
"""Seconds since the last compaction pass after which a warning is given."""
FULL_SHARE = 0.95
"""A queue is full if a count, such as its messages in flight, has reached this share of the count's limit."""
EXPIRING_SHARE = 0.25
"""A warning is given if the oldest message expires within this share of the retention period."""
COMING, COMING_SECONDS = 3, 5 * 60  # so many dead letters within so many seconds: more come
LETTERS = 1_000
"""Maximum number of a queue's dead letters that are read to count their errors. The newest are read first."""
EXAMPLE = 160
"""Maximum number of characters of an error message that is quoted as an example."""


def of_queue(
    queue: OpenQueue, sources: Sequence[str], before: int | None, running: Running, consumed: Collection[str]
) -> list[Concern]:
    """Returns the concerns about a queue; see ``found``. ``consumed``: names of queues that consumers receive."""
    now = depth(queue)
    letters = letters_of(queue) if sources and now.stored else LetterCounts()
    concerns = found(queue.name, queue.attributes, now, consumers(queue, running), letters.among(sources), before)
    failing = letters.coming(from_micros(now.at), consumed)
    return [_examined(queue, each, letters, failing) for each in concerns]


def _examined(queue: OpenQueue, concern: Concern, letters: LetterCounts, failing: Sequence[str]) -> Concern:
    """Adds to a concern what only a read of messages, or of the delivery table, can find."""
    if concern.kind == "dead letters":
        return concern.with_errors(letters.errors).while_failing(failing)
    if concern.kind != "undecided" or (why := unable_to_decide(queue)) is None:
        return concern
    quoted = shlex.quote(queue.name)
    again = Remedy(f"lakequeue decide {quoted} --again", "makes them visible, if their rows are nowhere")
    delivered = Remedy(f"lakequeue decide {quoted} --delivered", "deletes them, if you have found their rows")
    renew = Remedy(f"lakequeue repair {quoted} --new-delivery-id", "lets consumers deliver into the new table")
    steps = (*concern.steps, again, delivered, renew)
    hint = "put the table back, and a consumer decides; if that is impossible, end the process that delivered:"
    return attrs.evolve(concern, text=f"{concern.text}, which {why}", hint=hint, steps=steps)


class LetterCounts(NamedTuple):
    """Dead letters of a queue, counted among the newest ``LETTERS``."""

    errors: Mapping[str, ErrorCount] = {}
    """By error class, most frequent class first. The class is an empty text if no consumer reported an error."""
    sources: Mapping[str, int] | None = None
    """Number by the name of the source queue. None if there may be more dead letters than were read."""
    came: Mapping[str, datetime] = {}
    """When the ``COMING``-th newest dead letter of a source queue arrived, by the queue's name."""

    def among(self, sources: Sequence[str]) -> Sequence[str]:
        """Returns the sources that have dead letters here; all if that is unknown."""
        return [name for name in sources if name in (self.sources or ())] or sources

    def coming(self, now: datetime, consumed: Collection[str]) -> Sequence[str]:
        since = now - timedelta(seconds=COMING_SECONDS)
        return [name for name, at in self.came.items() if at >= since and name in consumed]


def letters_of(queue: OpenQueue) -> LetterCounts:
    """Counts the newest dead letters by error class and by source queue. Counts nothing if the reads fail."""
    try:
        letters = page(
            Search(queue, None, LETTERS, newest=True),
            lambda letters: [(each.dead_letter_reason, each.source_queue, each.moved_at) for each in letters],
        )
    except LakeQueueError:  # damage, which a check reports
        return LetterCounts()
    known = [("", "") if reason is None else (reason.error, reason.text) for reason, *_ in letters]
    examples = {error: shorten(text, EXAMPLE, placeholder="…") for error, text in reversed(known)}
    numbers = Counter(error for error, _ in known).most_common()
    errors = {error: ErrorCount(number, examples[error]) for error, number in numbers}
    sources = Counter(source for _, source, _ in letters if source is not None)
    arrived = {
        name: sorted(at for _, source, at in letters if source == name and at is not None) for name in sources
    }
    came = {name: instants[-COMING] for name, instants in arrived.items() if len(instants) >= COMING}
    return LetterCounts(errors, sources if len(letters) < LETTERS else None, came)


def found(
    name: str,
    attributes: QueueAttributes,
    now: Depth,
    known: Sequence[ActiveConsumer],
    sources: Sequence[str],
    before: int | None,
) -> Iterator[Concern]:
    """Yields the concerns that follow from a queue's depth ``now``, and from its consumers. ``sources`` are the
    names of the queues whose dead letters come to this queue. ``before`` is the number of visible messages
    ``GROWTH_SECONDS`` ago; None if unknown.
    """
    counts, quoted = now.counts, shlex.quote(name)
    yield from _pauses(name, attributes, now)
    age, seconds = counts.oldest_age or 0.0, unreceived(attributes, now, known)
    unread = not (sources and now.stored) and seconds > _unread_after(now, known)
    yield from _expiring(name, attributes, now, sources)
    if sources and now.stored:
        text = f"{name} has {counted(now.stored, 'dead letter')} of {', '.join(sources)}"
        text = f"{text}, the oldest {shown_duration(age)} old"
        steps: Sequence[Remedy] = (
            Remedy(f"lakequeue peek {quoted}", "shows why"),
            Remedy(f"lakequeue redrive {quoted}", "sends them back, once the cause is fixed"),
        )
        brief = counted(now.stored, "dead letter")
        yield Concern(name, "dead letters", text, _caution(sources), steps, brief, number=now.stored)
    elif unread:
        yield _unread(name, attributes, now, known, seconds)
    elif _has_grown(counts.visible, before) and not attributes.paused:
        text = f"{name} grew from {before:,} to {counted(counts.visible, 'visible message')} within an hour"
        steps = (Remedy(f"lakequeue consumers {quoted}", "lists those that run"),)
        brief = f"grew from {before:,} to {counts.visible:,} visible"
        yield Concern(name, "growing", text, "add consumers", steps, brief, number=counts.visible)
    elif seconds > KILLED_SECONDS and not any(each.is_active for each in known):
        yield _unattended(name, counts)
    if now.receives >= POISON_RECEIVES and attributes.redrive is None and not sources:
        yield _poison(name, now.receives)
    yield from _full(name, attributes, counts, now.stored)
    if counts.undecided:
        text = f"{name} has {counted(counts.undecided, 'undecided message')} of deliveries into"
        text = f"{text} {attributes.table or 'a table that it no longer has'}"
        hint = "a consumer that reaches the table decides"
        steps = (
            Remedy(f"lakequeue decide {quoted} --again --dry-run", "lists the deliveries, and changes nothing"),
        )
        brief = f"{counts.undecided:,} undecided"
        yield Concern(name, "undecided", text, hint, steps, brief, number=counts.undecided)
    yield from outage(name, now, known)
    yield from silent(name, now, known, unread)
    yield from stuck(name, attributes, now, known)


def _pauses(name: str, attributes: QueueAttributes, now: Depth) -> Iterator[Concern]:
    counts = now.counts
    for pause in attributes.pauses:
        what = "paused" if pause.group is None else f"group {pause.group} paused"
        seconds = 0.0 if pause.since is None else (now.at - to_micros(pause.since)) / MICROS
        retention = attributes.message_retention_period
        late = f"longer than the retention period of {shown_duration(retention)}: older messages have expired"
        ends = f"; {late}" if seconds > retention else ""
        reason = f"{pause.with_reason('')}{ends}"
        steps = (Remedy(pause.command(name), ENDS),)
        text = f"{pause.of(name)}{ends}"
        if pause.group is None and counts.visible and not ends:
            left = retention - (counts.oldest_age or 0.0)
            text += f"; {waiting(counts)}, the first expires in {shown_duration(left)}"
        short = pause.since is not None and seconds <= min(PAUSED_SECONDS, retention)
        concern = Concern(name, "paused", text, steps=steps, brief=what, since=pause.since, reason=reason)
        yield attrs.evolve(concern, group=pause.group, notice=short)


def _caution(sources: Sequence[str]) -> str:
    return f"a redrive runs handlers of {', '.join(sources)} again: what a failed attempt has done happens twice"


def _unread_after(now: Depth, known: Sequence[ActiveConsumer]) -> float:
    since = now.at - SILENT_SECONDS * MICROS
    killed = any(to_micros(process.seen_at) >= since for each in known for process in each.silent)
    return KILLED_SECONDS if killed and not any(each.processes for each in known) else UNREAD_SECONDS


def _unread(
    name: str, attributes: QueueAttributes, now: Depth, known: Sequence[ActiveConsumer], seconds: float
) -> Concern:
    counts = now.counts
    text = f"nobody receives the {counted(counts.visible, 'visible message')} of {name}"
    text, hint = f"{text}, the oldest is {shown_duration(counts.oldest_age or 0.0)} old", "start its consumers"
    brief = f"{counts.visible:,} visible, no receive for {shown_duration(seconds)}"
    if counts.in_flight:
        text += f", and {counts.in_flight:,} in flight for {shown_duration(seconds)} or longer"
    if processes := [process for each in known for process in each.processes]:
        text += f", though {counted(len(processes), 'consumer')} of it run{'s' * (len(processes) == 1)}"
        hint = f"see what their log says: {', '.join(map(str, processes[:3]))}"
    elif gone := [(each.consumer, process) for each in known for process in each.silent]:
        gone.sort(key=lambda each: each[1].seen_at, reverse=True)
        last = "; ".join(f"{consumer}, {process.not_seen()}" for consumer, process in gone[:3])
        ended = all(process.ended for _, process in gone)
        doubt = "" if ended else ", are stopped or frozen, or cannot write to the root"
        hint = f"start its consumers, which were killed{doubt}: {last}"
        brief += f", {counted(len(gone), 'consumer')} {'killed' if ended else 'without a report'}"
    steps = [Remedy(f"lakequeue peek {shlex.quote(name)}", "shows the messages that wait longest")]
    policy = attributes.redrive
    if policy is not None and now.receives >= policy.max_receive_count and not processes:
        letters = policy.dead_letter_queue.rpartition(":")[2]
        times = counted(now.receives, "time")
        hint += (
            f"; but the oldest message was received {times}, so it goes to {letters} at the next receive, as all "
            "do that were received as often: if its consumers were killed, allow more receives first"
        )
        more = f"--dead-letter-queue {shlex.quote(letters)} --max-receive-count {now.receives + 5}"
        steps.insert(
            0, Remedy(f"lakequeue set {shlex.quote(name)} {more}", "lets handlers have these messages again")
        )
    return Concern(name, "unread", text, hint, steps, brief, number=counts.visible)


def _unattended(name: str, counts: QueueCounts) -> Concern:
    messages = counted(counts.visible, "message")
    text = f"{messages} of {name} can be received, and no consumer of it is known to run"
    brief, hint = (
        f"{counts.visible:,} visible, no consumer is known to run",
        "start one, unless one comes by itself",
    )
    steps = (Remedy(f"lakequeue consumers {shlex.quote(name)}", "lists those that run"),)
    return Concern(name, "waiting", text, hint, steps, brief, number=counts.visible, notice=True)


def _poison(name: str, receives: int) -> Concern:
    stem, dot, _ = name.partition(".fifo")
    letters = shlex.quote(f"{stem}-failed{dot}")
    text = f"the oldest message of {name} was received {receives:,} times, and the queue has no dead-letter queue"
    hint = "it fails each time, or kills its process; a dead-letter queue takes it out"
    policy = f"lakequeue set {shlex.quote(name)} --dead-letter-queue {letters} --max-receive-count 5"
    steps = (
        Remedy(f"lakequeue create {letters}{' --fifo' * bool(dot)}", "makes a queue for dead letters"),
        Remedy(policy, "moves what was received five times"),
    )
    return Concern(name, "poison", text, hint, steps, f"a message received {receives:,} times")


def unreceived(attributes: QueueAttributes, now: Depth, known: Sequence[ActiveConsumer]) -> float:
    """Returns the seconds for which nobody has received messages, although there are visible messages.

    Returns 0 if there are no visible messages, if the queue is paused, or if a running ``Consumer`` has messages
    in flight. The seconds count from the latest of three events: the last receive of a message in flight; the end
    of the last pause; the send of the oldest message.
    """
    counts = now.counts
    if not counts.visible or attributes.paused or any(each.in_flight and each.processes for each in known):
        return 0.0
    instants = [each.newest_receive for each in known if each.newest_receive is not None]
    if counts.in_flight and not instants:  # received since the depth was read
        return 0.0
    since = max([*instants, *filter(None, [resumed_at(attributes.paused_since)])], default=None)
    age = counts.oldest_age or 0.0
    return age if since is None else max(0.0, min(age, (now.at - to_micros(since)) / MICROS))


def _expiring(name: str, attributes: QueueAttributes, now: Depth, sources: Sequence[str]) -> Iterator[Concern]:
    """Yields a concern if the oldest message expires soon. Undecided messages do not expire (TAB-5)."""
    retention = attributes.message_retention_period
    left = retention - (now.counts.oldest_age or 0.0)
    if not now.stored or not 0 < left < EXPIRING_SHARE * retention:
        return
    longest, quoted = attributes.limits("message_retention_period").high, shlex.quote(name)
    noun = "dead letter" if sources else "message"
    oldest = f"the only {noun}" if now.stored == 1 else f"the oldest of the {counted(now.stored, noun)}"
    text = f"{oldest} of {name} is deleted for good in {shown_duration(left)}"
    text = f"{text}, {shown_duration(retention)} after its send"
    first = (
        Remedy(f"lakequeue redrive {quoted}", "sends dead letters anew")
        if sources
        else Remedy(f"lakequeue peek {quoted}", "shows it")
    )
    brief = f"oldest deleted in {shown_duration(left)}"
    longer = min(2 * retention, longest or 2 * retention)
    keep = Remedy(f"lakequeue set {quoted} --retention {shown_duration(longer)}", "keeps all longer")
    steps = (keep, first) if longer > retention else (first,)
    yield Concern(name, "expiring", text, _caution(sources) if sources else "", steps, brief)


def _has_grown(visible: int, before: int | None) -> bool:
    return before is not None and visible - before >= max(LEAST_GROWTH, GROWTH_SHARE * before)


_LIMITED = {
    "max_stored_messages": "stored",
    "max_inflight_messages": "in flight",
    "max_delayed_messages": "delayed",
}


def _full(name: str, attributes: QueueAttributes, counts: QueueCounts, stored: int) -> Iterator[Concern]:
    limits = (
        ("max_stored_messages", stored, "new sends are refused"),
        ("max_inflight_messages", counts.in_flight, "receives find nothing more"),
        ("max_delayed_messages", counts.delayed, "further delayed messages are held back"),
    )
    for attribute, number, effect in limits:
        limit = getattr(attributes, attribute)
        if limit is not None and number >= FULL_SHARE * limit:
            text = f"{name} is at its limit: {number:,} of {attribute}={limit:,}; {effect} there"
            brief = f"at a limit: {number:,} of {limit:,} {_LIMITED[attribute]}"
            highest = min(2 * limit, attributes.limits(attribute).high or 2 * limit)
            raised = Remedy(f"lakequeue set {shlex.quote(name)} -a {attribute}={highest:.0f}", "raises it")
            yield Concern(name, "full", text, "add consumers", (raised,) if highest > limit else (), brief)


def sources_of(rows: Iterable[QueueRow]) -> dict[redrive_policies.QueueLocation, list[str]]:
    """Maps the location of each dead-letter queue to the names of the queues that use it."""
    sources: dict[redrive_policies.QueueLocation, list[str]] = {}
    for row in sorted(rows, key=lambda row: row.name):
        place = None if row.redrive is None else redrive_policies.parse_arn(row.redrive.dead_letter_queue)
        if place is not None and place != row.place:
            sources.setdefault(place, []).append(row.name)
    return sources


def an_hour_ago(root: Root) -> dict[str, int]:
    """Returns the number of visible messages ``GROWTH_SECONDS`` ago, by queue key, if a compactor counted them."""
    now = root.now()
    with root.storage_errors():
        return an_hour_before(stats_rows.depths(root.engine, root.path, now - GROWTH_SECONDS * MICROS), now)


def an_hour_before(counted: Mapping[str, Sequence[tuple[int, int]]], now: int) -> dict[str, int]:
    """Returns each queue's earliest count among those that are 50 to 60 minutes old. ``now``: microseconds."""
    begin = now - GROWTH_SECONDS * MICROS
    latest = begin + GROWTH_SECONDS * MICROS // 6
    first = {key: next((point for point in points if point[0] >= begin), None) for key, points in counted.items()}
    return {key: point[1] for key, point in first.items() if point is not None and point[0] <= latest}
