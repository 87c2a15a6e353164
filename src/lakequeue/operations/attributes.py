"""The attributes and tags of a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import attrs

from lakequeue.errors import QueueDoesNotExist
from lakequeue.model import redrive_policies
from lakequeue.model.arguments import check_tag_count
from lakequeue.model.attributes import HIDDEN, QueueAttributes, selected
from lakequeue.model.clock import MICROS, from_micros
from lakequeue.operations.depth import depth
from lakequeue.operations.shard_tables import make_tables
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.root import Root
from lakequeue.runtime.steps import Steps
from lakequeue.storage.catalog import QueueRow


@attrs.frozen
class _TablesMissing(Exception):
    """The tables of shards that a queue is to get; from ``first`` on they are not made yet."""

    row: QueueRow
    first: int


def read(queue: OpenQueue, names: Sequence[str]) -> dict[str, str]:
    """Attributes and counts by their SQS names, as strings (QUE-23)."""
    with queue.service("attributes"):
        queue.reload()
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
        return selected(known, names)


def update(queue: OpenQueue, changes: Callable[[QueueAttributes], Mapping[str, Any]]) -> None:
    """Changes attributes in the catalog, then in every shard (QUE-25).

    Args:
        queue: the queue.
        changes: returns the changes, given the current attributes.
    """
    with queue.service("set_attributes"):
        made = 0

        def change(newest: QueueRow) -> QueueRow:
            attributes = QueueAttributes.from_wire(newest.attributes)
            wanted = redrive_policies.located(changes(attributes), queue.region)
            changed = attributes.with_changes(**wanted)
            if {"redrive_policy", "RedrivePolicy"} & wanted.keys():
                check_redrive(queue.root, queue.region, queue.name, changed)
            row, first = attrs.evolve(newest, shards=changed.shards), max(newest.shards, made)
            if first < row.shards:
                raise _TablesMissing(row, first)
            # every shard must have applied the last change: what that removed stays removed (RWD-8, RET-6)
            queue.adopt(newest)
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


def min_rewind_time(queue: OpenQueue) -> datetime | None:
    """The earliest instant to which a rewind can go now; None without rewind (RWD-24)."""
    with queue.service("min_rewind_time"):
        queue.reload()
        if not queue.attributes.rewind_micros:
            return None
        longest = min(queue.attributes.rewind_micros, queue.attributes.retention_micros)
        return from_micros(queue.now() - longest)


def tags(queue: OpenQueue) -> dict[str, str]:
    """The queue's tags (QUE-28)."""
    with queue.service("tags"):
        queue.reload()
        return dict(queue.row.tags)


def add_tags(queue: OpenQueue, added: Mapping[str, str]) -> None:
    """Adds or overwrites tags; InvalidParameterValue if there would be too many (QUE-28)."""

    def add(row: QueueRow) -> QueueRow:
        tags = dict(row.tags) | dict(added)
        check_tag_count(row.name, tags)
        return attrs.evolve(row, tags=tags)

    with queue.service("set_tags"):
        queue.update(add)


def remove_tags(queue: OpenQueue, keys: Iterable[str]) -> None:
    """Removes tags; ignores keys that the queue does not have (QUE-28)."""
    removed = set(keys)
    with queue.service("remove_tags"):
        queue.update(lambda row: attrs.evolve(row, tags={k: v for k, v in row.tags.items() if k not in removed}))


def move_tasks(queue: OpenQueue) -> str | None:
    """Records of redrives requested through the SQS API, in the server's format."""
    with queue.service("move_tasks"):
        queue.reload()
        return queue.row.move_tasks


def update_move_tasks(queue: OpenQueue, change: Callable[[str | None], str]) -> None:
    """Replaces these records; ``change`` is applied to the newest."""
    with queue.service("update_move_tasks"):
        queue.update(lambda row: attrs.evolve(row, move_tasks=change(row.move_tasks)))


def check_redrive(root: Root, region: str, name: str, attributes: QueueAttributes) -> None:
    """Raises an error if the redrive policy of a queue is refused (DLQ-2, DLQ-3, DLQ-6)."""
    policy, given = attributes.redrive, attributes.redrive_policy
    if policy is None:
        return
    place = redrive_policies.place(policy.dead_letter_queue)
    if place is None or place.region != region:
        raise redrive_policies.refused("RedrivePolicy", given, "The dead-letter queue must be of the same region.")
    row = root.living_at(place)
    if row is None:
        raise QueueDoesNotExist(f"The dead-letter queue {place.name} does not exist.")
    target = QueueAttributes.from_wire(row.attributes)
    if target.fifo != attributes.fifo:
        kind = "FIFO" if attributes.fifo else "standard"
        reason = f"The dead-letter queue of a {kind} queue must be a {kind} queue too."
        raise redrive_policies.refused("RedrivePolicy", given, reason)
    if not target.redrive_allow.allows(redrive_policies.arn(region, name)):
        raise redrive_policies.refused("RedrivePolicy", given, f"Queue {place.name} does not allow it.")
