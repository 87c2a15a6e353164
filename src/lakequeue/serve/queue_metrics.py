"""Metrics of queues: their depths, and the totals of this server's work."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from lakequeue import Queue
from lakequeue.client import LakeQueue
from lakequeue.entry_verbs import (
    EVENTS,
    UNREAD_SECONDS,
    ActiveConsumer,
    Depth,
    check_catalog,
    consumers,
    depth,
    last_compaction,
    races,
    schedule_concerns,
    settings,
    space,
    tallies,
    unreceived,
)
from lakequeue.errors import LakeQueueError, QueueDoesNotExist
from lakequeue.model.clock import MICROS, to_micros
from lakequeue.serve.group_depths import GroupDepths

QUEUES = 100
"""Default maximum number of queues that have labels of their own."""
OTHER = "(other)"
"""Label for the sum of all queues that have no label of their own. No queue can have this name."""
SHARDS = 16
"""Maximum number of a queue's shards that have labels of their own. Further shards are summed."""
READ_INTERVAL = 10.0
"""Seconds for which depths are kept. Scrapes within this time do not read the queues."""
SCAN_SECONDS = 5.0
"""Maximum seconds that a scrape spends on reading queues. Queues that are not read by then are omitted."""

_TOTALS = {
    "sent": "Messages accepted from senders by this server.",
    "sent_bytes": "Bytes of the bodies of messages accepted by this server.",
    "received": "Messages handed out by this server.",
    "received_bytes": "Bytes of the bodies of messages handed out by this server.",
    "empty_receives": "Receives of this server that found no message.",
    "deleted": "Messages deleted through this server, one by one or in batches.",
    "extended": "Visibility timeouts changed through this server, except those set to 0.",
    "dead_lettered": "Messages that this server moved to the dead-letter queue of this queue.",
}
assert {*_TOTALS} == {*EVENTS}
_log = logging.getLogger("lakequeue.serve")


class QueueMetrics:
    """Collects metrics in one thread at a time. The oldest queues have own labels; all others share one label."""

    def __init__(self, lake: LakeQueue, queues: int = QUEUES, now: Callable[[], float] = monotonic) -> None:
        self._lake = lake
        self._most = queues
        self._now = now
        self._read_at = float("-inf")
        self._depths: list[Metric] = []
        self._groups = GroupDepths(now)
        self._chosen: set[str] = set()
        self._seen: dict[str, Counter[str]] = {}
        self._totals: dict[str, Counter[str]] = {}

    def collect(self) -> list[Metric]:
        if self._now() - self._read_at >= READ_INTERVAL:
            self._depths = [*self._space(), *self._read()]
            self._read_at = self._now()
        return [*self._depths, *self._count()]

    def _space(self) -> list[Metric]:
        found = space(self._lake)
        if found is None:
            return []
        values = {
            "size_bytes": ("Size of the file system of the root.", found.size_bytes),
            "free_bytes": ("Free bytes of the file system of the root.", found.free_bytes),
            "size_files": ("Files that the file system of the root can hold.", found.size_files or None),
            "free_files": ("Files that the file system of the root has room for.", found.free_files),
        }
        named = ((f"lakequeue_storage_{name}", what, value) for name, (what, value) in values.items())
        return [GaugeMetricFamily(name, what, value) for name, what, value in named if value is not None]

    def _read(self) -> list[Metric]:
        try:
            check_catalog(self._lake)
            queues = sorted(self._lake.list_queues(), key=lambda queue: (queue.created_at, queue.name))
        except LakeQueueError as error:
            _log.warning("a scrape leaves all queues out: %s", error)
            return [readable(0)]
        own = queues[: self._most]
        self._chosen = {queue.name for queue in own}
        number = GaugeMetricFamily("lakequeue_queues", "Queues of the region.", len(queues))
        summed = GaugeMetricFamily(
            "lakequeue_queues_summed", f"Queues without labels of their own, summed as {OTHER}."
        )
        summed.add_metric([], len(queues) - len(own))
        compacted = GaugeMetricFamily(
            "lakequeue_last_compaction_timestamp_seconds",
            "When the last compaction of the whole root ended; 0 if there was none.",
            (last_compaction(self._lake) or 0) / MICROS,
        )
        policies = [policy for queue in queues if (policy := settings(queue).redrive) is not None]
        sources = Counter(policy.dead_letter_queue for policy in policies)
        targets = _gauge("dead_letter_sources", "Queues whose dead letters go to this queue.")
        paused = _gauge("paused", "1 if receives find nothing, as the queue is paused, else 0.")
        since = _gauge("paused_timestamp_seconds", "When the queue was paused; 0 if it is not.")
        timeouts = _gauge("visibility_timeout_seconds", "Visibility timeout of the queue.")
        retention = _gauge("retention_seconds", "Retention period: age at which the queue deletes a message.")
        for queue in own:
            targets.add_metric([queue.name], sources[queue.arn])
            pause = next((pause for pause in settings(queue).pauses if pause.group is None), None)
            timeouts.add_metric([queue.name], settings(queue).visibility_timeout)
            retention.add_metric([queue.name], settings(queue).message_retention_period)
            paused.add_metric([queue.name], pause is not None)
            began = None if pause is None else pause.since
            since.add_metric([queue.name], 0 if began is None else began.timestamp())
        schedules = self._schedules()
        attributes = [targets, timeouts, retention, paused, since]
        return [readable(1), number, summed, compacted, *schedules, *attributes, *self._gauges(own)]

    def _schedules(self) -> list[Metric]:
        """Returns the metrics of failing and of overdue schedules; an empty list if schedules cannot be read."""
        try:
            kinds = Counter(each.kind for each in schedule_concerns(self._lake))
        except LakeQueueError as error:
            _log.warning("a scrape leaves the schedules out: %s", error)
            return []
        failing, overdue = "Schedules whose message cannot be sent.", "Schedules whose message nobody sends."
        return [
            GaugeMetricFamily("lakequeue_schedules_failing", failing, kinds["schedule fails"]),
            GaugeMetricFamily("lakequeue_schedules_overdue", overdue, kinds["schedule overdue"]),
        ]

    def _gauges(self, queues: Collection[Queue]) -> list[Metric]:
        messages = _gauge("messages", "Messages by state.", "state")
        active = _gauge(
            "consumers", "Consumers with messages in flight; all consumers without a name count as one."
        )
        holding = _gauge(
            "oldest_receive_age_seconds", "Time since the earliest receive of a message that is still in flight."
        )
        unread = _gauge("unreceived_seconds", "Time for which nobody has received the visible messages.")
        rewindable = _gauge("rewindable_messages", "Deleted messages that a rewind can restore.")
        oldest = _gauge("oldest_message_age_seconds", "Age of the oldest stored message.")
        appended = _counter("appended", "All messages that were ever sent or moved to the queue.")
        shards = _gauge("shard_messages", "Stored messages by shard.", "shard")
        commits = _counter("shard_commits", "Commits of this server by shard.", "shard")
        what = "Decisions that this server repeated because another process committed first."
        lost = _counter("shard_lost_races", what, "shard")
        left_out = GaugeMetricFamily("lakequeue_queues_left_out", "Queues that should have figures but do not.")
        missing, until = 0, self._now() + SCAN_SECONDS
        for queue in queues:
            if self._now() > until:
                missing += 1
                continue
            try:
                now = depth(queue)
                busy = consumers(queue, {}) if now.counts.in_flight else []
                silent = _unreceived(queue, now, busy)
            except QueueDoesNotExist:  # deleted since it was listed
                continue
            except LakeQueueError as error:
                _log.warning("a scrape leaves %s out: %s", queue.name, error)
                missing += 1
                continue
            for state in "visible", "in_flight", "delayed", "held", "undecided":
                messages.add_metric([queue.name, state], getattr(now.counts, state))
            active.add_metric([queue.name], len(busy))
            receives = [to_micros(each.oldest_receive) for each in busy if each.oldest_receive]
            holding.add_metric([queue.name], (now.at - min(receives, default=now.at)) / MICROS)
            unread.add_metric([queue.name], silent)
            rewindable.add_metric([queue.name], now.counts.rewindable)
            oldest.add_metric([queue.name], now.counts.oldest_age or 0)
            appended.add_metric([queue.name], now.sent)
            _add_shards(shards, queue.name, dict(enumerate(now.stored_by_shard)))
            counted = races(queue)
            for number, family in enumerate((commits, lost)):
                _add_shards(family, queue.name, {shard: each[number] for shard, each in counted.items()})
        left_out.add_metric([], missing)
        found = [left_out, messages, active, holding, unread, rewindable, oldest, appended, shards, commits, lost]
        return [*found, *self._group_gauges(queues, until)]

    def _group_gauges(self, queues: Collection[Queue], until: float) -> list[Metric]:
        noisy = _gauge("noisy_groups", "Noisy message groups.")
        visible = _gauge("quiet_groups_visible_messages", "Visible messages of other groups.")
        oldest = _gauge(
            "quiet_groups_oldest_message_age_seconds", "Age of the oldest visible message of other groups."
        )
        for queue in self._groups.stalest(queues):
            try:
                found = self._groups.of(queue, read=self._now() <= until)
            except LakeQueueError as error:
                _log.warning("a scrape leaves the groups of %s out: %s", queue.name, error)
                continue
            if found is not None and found.groups:
                noisy.add_metric([queue.name], found.noisy)
                visible.add_metric([queue.name], found.quiet_visible)
                oldest.add_metric([queue.name], found.quiet_oldest_age)
        return [noisy, visible, oldest]

    def _count(self) -> list[Metric]:
        """Returns totals by label. An event stays in the total in which it was counted first, even if its queue
        gets another label later: for Prometheus, no total may fall.
        """
        newest = tallies(self._lake)
        labels = {*self._chosen, OTHER}
        self._totals = {label: self._totals.get(label, Counter()) for label in labels}
        for queue, amounts in newest.items():
            label = queue if queue in self._chosen else OTHER
            self._totals[label] += amounts - self._seen.get(queue, Counter())
        self._seen = newest
        found: list[Metric] = []
        for event, what in _TOTALS.items():
            family = _counter(event, what)
            for label in sorted(labels):
                family.add_metric([label], self._totals[label][event])
            found.append(family)
        return found


def _unreceived(queue: Queue, now: Depth, busy: Sequence[ActiveConsumer]) -> float:
    seconds = unreceived(queue, now, busy)
    # only then: the files of running consumers cost requests
    return unreceived(queue, now, consumers(queue)) if busy and seconds > UNREAD_SECONDS else seconds


def _gauge(name: str, what: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"lakequeue_queue_{name}", what, labels=["queue", *labels])


def _counter(name: str, what: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"lakequeue_queue_{name}", what, labels=["queue", *labels])


def _add_shards(family: GaugeMetricFamily | CounterMetricFamily, queue: str, numbers: Mapping[int, int]) -> None:
    labelled = Counter[str]()
    for shard, number in numbers.items():
        labelled[str(shard) if shard < SHARDS else OTHER] += number
    for label, number in labelled.items():
        family.add_metric([queue, label], number)


def readable(value: float) -> Metric:
    return GaugeMetricFamily("lakequeue_storage_readable", "1 if the catalog can be read, else 0.", value)
