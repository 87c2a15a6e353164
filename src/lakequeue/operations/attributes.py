"""The attributes and tags of a queue."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import attrs

from lakequeue.errors import InvalidParameterValue, QueueDoesNotExist
from lakequeue.model import redrive_policies
from lakequeue.model.arguments import check_tag_count
from lakequeue.model.attributes import HIDDEN, QueueAttributes, selected
from lakequeue.model.clock import MICROS, from_micros
from lakequeue.model.pauses import started
from lakequeue.operations import deliveries
from lakequeue.operations.depth import depth
from lakequeue.operations.pool import concurrently
from lakequeue.runtime.calls import Steps
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.root import Root
from lakequeue.shard.runs import Head
from lakequeue.storage import layout
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.ledger import create_ledger
from lakequeue.storage.roots import local_path

STORE_HOLDS = 5
"""Seconds. A burst is too small for an object store if the rate limit refills the burst in less time than this."""
_log = logging.getLogger("lakequeue")


@attrs.frozen
class _TablesMissing(Exception):
    """Raised if the tables of the shard ``first`` and of all later shards do not exist yet."""

    row: QueueRow
    first: int


class _ByName(dict[str, Any]):
    """Attributes of a queue by Python name. For an SQS name, returns the value that SQS would return."""

    def __init__(self, values: Mapping[str, Any], queue: OpenQueue) -> None:
        super().__init__(values)
        self._queue = queue

    def __missing__(self, name: str) -> Any:
        if name[:1].isupper() and name in (known := read(self._queue, ["All"], wire=True)):
            return known[name]
        raise KeyError(name)


def read(queue: OpenQueue, names: Sequence[str], wire: bool) -> dict[str, Any]:
    """Returns attributes of a queue. With ``wire``: SQS names, texts as values, and message counts (QUE-23)."""
    with queue.service("attributes"):
        queue.reload()
        if not wire and not any(name[:1].isupper() for name in {*names} - {"All"}):
            return _ByName(selected(queue.attributes.values(), names, wire), queue)
        counts = depth(queue).counts
        settings = queue.attributes.to_wire()
        known = {name: value for name, value in settings.items() if name not in HIDDEN} | {
            "ApproximateNumberOfMessages": str(counts.visible),
            "ApproximateNumberOfMessagesNotVisible": str(counts.in_flight),
            "ApproximateNumberOfMessagesDelayed": str(counts.delayed),
            "CreatedTimestamp": str(queue.row.created_at // MICROS),
            "LastModifiedTimestamp": str(queue.row.modified_at // MICROS),
            "QueueArn": queue.arn,
        }
        return selected(known, names, wire)


def update(queue: OpenQueue, changes: Callable[[QueueAttributes], Mapping[str, Any]]) -> None:
    """Changes attributes in the catalog, then in each shard (QUE-25). The function ``changes`` gets the newest
    attributes, and returns the new values by name. After a lost race, calls ``changes`` again.
    """
    with queue.service("set_attributes"):
        queue.root.check_clock(queue.name)
        made, before = 0, queue.attributes.pace

        def change(newest: QueueRow) -> QueueRow:
            attributes = QueueAttributes.from_wire(newest.attributes)
            wanted = redrive_policies.located(changes(attributes), queue.region)
            changed = attributes.with_changes(**deliveries.located(wanted, queue.root))
            if changed.table != attributes.table:
                deliveries.check_unmarked(queue)
                changed = deliveries.identified(changed)
            since = started(changed.pauses, attributes.pauses, queue.now(), attributes.paused_since)
            changed = attrs.evolve(changed, paused_since=since)
            if {"redrive_policy", "RedrivePolicy"} & wanted.keys():
                check_redrive(queue.root, queue.region, queue.name, changed)
            row, first = attrs.evolve(newest, shards=changed.shards), max(newest.shards, made)
            if first < row.shards:
                raise _TablesMissing(row, first)
            # every shard must have applied the last change: what that removed stays removed (RWD-8, RET-6)
            queue.adopt(newest)
            if not queue.catch_up():
                queue.announce_attributes()
            return attrs.evolve(
                row,
                attributes=changed.to_stored(),
                attributes_version=row.attributes_version + 1,
                modified_at=queue.now(),
            )

        steps = Steps("set_attributes")
        with steps.step():
            while True:
                try:
                    queue.update(change)
                    break
                except _TablesMissing as missing:  # others go on while they are made
                    make_tables(queue.root, missing.row, missing.first)
                    made = missing.row.shards
        with steps.step():
            queue.announce_attributes()
        if queue.attributes.pace != before:
            warn_of_small_burst(queue)


def warn_of_small_burst(queue: OpenQueue) -> None:
    """Logs a warning if a burst of the rate limit is small for an object store (JOB-11)."""
    pace = queue.attributes.pace
    if pace is None or pace.holds >= STORE_HOLDS or local_path(queue.root.path) is not None:
        return
    text = (
        "%s may get less than its rate limit of %s: on an object store receives can be seconds apart, "
        "and the bucket holds %.2g s; rate_burst=%d holds %d s"
    )
    limit, burst = queue.attributes.rate_limit, pace.burst_for(STORE_HOLDS)
    _log.warning(text, queue.name, limit, pace.holds, burst, STORE_HOLDS)


def min_rewind_time(queue: OpenQueue) -> datetime | None:
    """Returns the earliest instant for a rewind (RWD-24). Returns None if the queue keeps no history."""
    with queue.service("min_rewind_time"):
        queue.reload()
        if not queue.attributes.rewind_micros:
            return None
        longest = min(queue.attributes.rewind_micros, queue.attributes.retention_micros)
        return from_micros(queue.now() - longest)


def tags(queue: OpenQueue) -> dict[str, str]:
    """Returns the queue's tags (QUE-28)."""
    with queue.service("tags"):
        queue.reload()
        return dict(queue.row.tags)


def add_tags(queue: OpenQueue, added: Mapping[str, str]) -> None:
    """Adds or overwrites tags. Raises InvalidParameterValue if the queue would have too many tags (QUE-28)."""

    def add(row: QueueRow) -> QueueRow:
        tags = dict(row.tags) | dict(added)
        check_tag_count(row.name, tags)
        return attrs.evolve(row, tags=tags)

    with queue.service("set_tags"):
        queue.update(add)


def remove_tags(queue: OpenQueue, keys: Iterable[str]) -> None:
    """Removes tags. Ignores keys that the queue does not have (QUE-28)."""
    removed = set(keys)
    with queue.service("remove_tags"):
        queue.update(lambda row: attrs.evolve(row, tags={k: v for k, v in row.tags.items() if k not in removed}))


def move_tasks(queue: OpenQueue) -> str | None:
    """Returns the JSON text about redrives that the SQS API has stored, or None if there were no redrives."""
    with queue.service("move_tasks"):
        queue.reload()
        return queue.row.move_tasks


def update_move_tasks(queue: OpenQueue, change: Callable[[str | None], str]) -> None:
    """Updates the JSON text about redrives. ``change`` gets the newest text, or None, and returns a new text."""
    with queue.service("update_move_tasks"):
        queue.root.check_clock(queue.name)
        queue.update(lambda row: attrs.evolve(row, move_tasks=change(row.move_tasks)))


def check_redrive(root: Root, region: str, name: str, attributes: QueueAttributes) -> None:
    """Checks a redrive policy (DLQ-2, DLQ-3, DLQ-6). Raises InvalidParameterValue or QueueDoesNotExist."""
    policy, refused = attributes.redrive, InvalidParameterValue.of
    if policy is None:
        return
    place = redrive_policies.parse_arn(policy.dead_letter_queue)
    if place is None or place.region != region:
        raise refused(policy, "redrive_policy", "The dead-letter queue must be of the same region.")
    if place.name == name:
        reason = "{} must name another queue."
        raise refused(policy, "redrive_policy", reason, "dead_letter_queue")
    row = root.living_at(place)
    if row is None:
        raise QueueDoesNotExist(f"The dead-letter queue {place.name} does not exist.", hint="create it first")
    target = QueueAttributes.from_wire(row.attributes)
    if target.fifo != attributes.fifo:
        kind = "FIFO" if attributes.fifo else "standard"
        reason = f"The dead-letter queue of a {kind} queue must be a {kind} queue too."
        raise refused(policy, "redrive_policy", reason)
    if not target.redrive_allow.allows(redrive_policies.arn(region, name)):
        raise refused(policy, "redrive_policy", f"Queue {place.name} does not allow it.")


def make_tables(root: Root, row: QueueRow, first: int = 0) -> None:
    """Creates the missing tables of the shard ``first`` and of all later shards."""
    head = Head(committed_at=row.created_at, attributes=dict(row.attributes))

    def make(shard: int) -> None:
        path = layout.messages_path(root.path, row.key, shard)
        root.engine.create(path, layout.MESSAGES, layout.MESSAGE_PARTITIONS, layout.MESSAGES_PROPERTIES)
        create_ledger(root.engine, layout.receipts_path(root.path, row.key, shard), head)

    list(concurrently(make, range(first, row.shards)))
