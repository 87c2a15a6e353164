"""Finds, lists and deletes the queues of a root."""

from __future__ import annotations

from difflib import get_close_matches

from lakequeue.errors import QueueDoesNotExist
from lakequeue.model.redrive_policies import QueueLocation
from lakequeue.runtime.calls import logged
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.root import Root
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.reserve import reserve

COMPARED = 1_000
"""Maximum number of existing names that are compared with a missing name to suggest a similar name."""


def find(root: Root, name: str) -> OpenQueue:
    """Opens the queue with this name in the root's region. Raises QueueDoesNotExist (QUE-27)."""
    with root.storage_errors():
        queue = _opened(root, name)
    with queue.service("queue"):
        queue.announce_attributes()
    return queue


def _opened(root: Root, name: str) -> OpenQueue:
    row = root.living_at(QueueLocation(root.region, name))
    if row is None:
        raise missing(root, name)
    return OpenQueue(root, row)


def missing(root: Root, name: str) -> QueueDoesNotExist:
    """Returns the error for a missing queue. The error suggests similar names."""
    rows = root.rows()[:COMPARED]
    names = {row.name.lower(): row.name for row in rows if row.deleted_at is None and row.region == root.region}
    nearest = [names[each] for each in get_close_matches(name.lower(), names)]
    if nearest:
        like = f"; did you mean {' or '.join(nearest)}?"
    else:
        like = "; `lakequeue list` shows its queues" if names else ", which has no queues"
    return QueueDoesNotExist(hint=f"there is no {name} in {root.path}, region {root.region}{like}")


def listed(root: Root, prefix: str, limit: int | None, after: str | None) -> tuple[list[OpenQueue], bool]:
    """Returns up to ``limit`` queues with names after ``after``, and True if there are more (QUE-11, QUE-12)."""
    rows = [row for row in _living(root) if row.name.startswith(prefix) and (after is None or row.name > after)]
    rows.sort(key=lambda row: row.name)
    return [OpenQueue(root, row) for row in rows[:limit]], len(rows) > len(rows[:limit])


def _living(root: Root) -> list[QueueRow]:
    return [row for row in root.rows() if row.deleted_at is None and row.region == root.region]


def dead_letter_sources(queue: OpenQueue) -> list[OpenQueue]:
    """Opens the queues whose dead-letter queue is ``queue``, sorted by name (DLQ-7)."""

    def names_it(row: QueueRow) -> bool:
        return row.redrive is not None and row.redrive.dead_letter_queue == queue.arn

    with queue.service("dead_letter_sources"):
        queue.reload()
        rows = sorted(filter(names_it, _living(queue.root)), key=lambda row: row.name)
        return [OpenQueue(queue.root, row) for row in rows]


def delete(root: Root, name: str) -> None:
    """Deletes a queue with all its messages, even a damaged queue (QUE-13, QUE-14, QUE-38)."""
    with logged("delete_queue", name), root.storage_errors(), reserve(root.path):
        _opened(root, name).delete()
