"""Creates queues."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import attrs

from lakequeue.errors import QueueDeletedRecently, QueueNameExists, coded_for
from lakequeue.model import redrive_policies
from lakequeue.model.arguments import check_tag_count, check_tags
from lakequeue.model.attributes import FIXED, QueueAttributes
from lakequeue.model.clock import from_micros
from lakequeue.model.names import new_key, validate_name
from lakequeue.model.pauses import started
from lakequeue.model.redrive_policies import QueueLocation
from lakequeue.operations import attributes as queue_attributes
from lakequeue.operations import deliveries
from lakequeue.operations.attributes import check_redrive, make_tables, warn_of_small_burst
from lakequeue.operations.queues import find
from lakequeue.runtime.calls import Steps, logged
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.root import Root
from lakequeue.storage import layout
from lakequeue.storage.catalog import QueueRow, lost_row
from lakequeue.storage.engines.transaction import Answer, Decision, Ids


def create(
    root: Root,
    name: str,
    fifo: bool,
    tags: Mapping[str, str] | None,
    attributes: Mapping[str, Any],
    update: bool = False,
) -> OpenQueue:
    """Creates a queue, or opens an equal queue (QUE-15). With ``update``, changes an existing queue (QUE-36)."""
    given = dict(attributes)
    profile_name = given.pop("profile", None) or given.pop("Profile", None)
    given = deliveries.located(redrive_policies.located(given, root.region), root)
    given |= {"fifo": fifo} if fifo else {}
    wanted = QueueAttributes.create(**({"profile_name": profile_name} if profile_name else {}), **given)
    rules = wanted.profile_rules
    validate_name(name, rules, wanted.fifo)
    if profile_name:
        given["profile"] = profile_name
    checked_tags = check_tags({} if tags is None else tags)
    check_tag_count(name, checked_tags)
    with coded_for(rules.name), logged("create_queue", name), root.storage_errors():
        root.prepare()
        with root.lock:
            found = root.catalog.live(root.region, name)
            # from the snapshot in which the queue does not exist; the checks load newer ones
            fence = root.catalog.fence(QueueLocation(root.region, name))
            if found is None:
                _check_new(root, name, wanted)
        if found is None:
            row = _new_row(root, name, wanted, checked_tags)
            found = _added(root, row, fence, lambda: _check_new(root, name, wanted))
            if found is None:
                return create(root, name, fifo, tags, attributes, update)
            if found is row:
                created = OpenQueue(root, row)
                warn_of_small_burst(created)
                return created
        if not update:
            _compare(found, given, rules.existing_name == "error")
            return OpenQueue(root, found)
    return _updated(find(root, name), given, checked_tags)


def _check_new(root: Root, name: str, attributes: QueueAttributes) -> None:
    if hidden := root.catalog.hidden(root.region, name):
        raise lost_row(root.path, hidden[0], name)
    check_redrive(root, root.region, name, attributes)
    check_cooldown(root, name, attributes.profile_rules.recreate_cooldown)
    root.check_clock(name)


def _added(root: Root, row: QueueRow, checked: Ids, check: Callable[[], None]) -> QueueRow | None:
    """Creates the tables and the row of a new queue, and returns the row. If another process created the queue
    first, returns that process's row. Returns None if the creation took too long: a compactor may then already
    have removed the new tables.

    Args:
        checked: state of the name in the catalog's log at the last ``check``. If it has changed, checks again.
        check: raises an error if the queue must not be created.

    Raises:
        RequestThrottled: too many queues of this name are created concurrently. Nothing was changed.
    """
    # others go on while tables are made, unless they could not commit: they would wait with root.lock
    with root.lock if root.engine.commits_alone else nullcontext(), root.catalog.creating() as in_time:
        make_tables(root, row)

        def added() -> Decision[QueueRow | None]:
            known = root.catalog.live(row.region, row.name)
            if known is not None:
                return Answer(known)
            if not in_time():
                return Answer(None)
            if (fence := root.catalog.fence(row.place)) != checked:
                check()
            return root.catalog.put([row], fence, row)

        with root.lock:
            return root.catalog.transact(added, "too many queues of this name are being created")


def _updated(queue: OpenQueue, given: Mapping[str, Any], tags: Mapping[str, str]) -> OpenQueue:
    check_tag_count(queue.name, dict(queue.row.tags) | dict(tags))  # before anything is changed
    steps = Steps("create_queue")
    if queue.attributes.differences(given):
        with steps.step():
            queue_attributes.update(queue, lambda current: current.changes(given))
    if not tags.items() <= dict(queue.row.tags).items():
        with steps.step():
            queue_attributes.add_tags(queue, tags)
    return queue


def _compare(row: QueueRow, given: dict[str, Any], always_refused: bool) -> None:
    """Raises QueueNameExists if attributes differ, or if the profile opens no existing queues (QUE-15, QUE-16)."""
    differences = QueueAttributes.from_wire(row.attributes).differences(given)
    if always_refused or row.attributes.get("Profile") == "cmq":
        raise QueueNameExists(f"A queue named {row.name} already exists.")
    if differences:
        template = "A queue already exists with the same name and a different value for attribute {}"
        hint = "create_queue(update=True) changes it"
        if differences[0] in FIXED:
            hint = "it is fixed when a queue is created; create another queue, and drain this queue into it"
        raise QueueNameExists(template, names=differences[:1], hint=hint)


def check_cooldown(root: Root, name: str, seconds: float) -> None:
    """Raises QueueDeletedRecently if a queue of this name was deleted less than ``seconds`` ago (QUE-14)."""
    if not seconds:
        return
    deleted = [
        row.deleted_at
        for row in root.catalog.rows()
        if (row.region, row.name) == (root.region, name) and row.deleted_at is not None
    ]
    if deleted and root.clock.now().timestamp() - from_micros(max(deleted)).timestamp() < seconds:
        raise QueueDeletedRecently(
            f"You must wait {seconds:g} seconds after deleting a queue before you can create "
            "another with the same name."
        )


def _new_row(root: Root, name: str, attributes: QueueAttributes, tags: dict[str, str]) -> QueueRow:
    now = root.now()
    attributes = attrs.evolve(deliveries.identified(attributes), paused_since=started(attributes.pauses, (), now))
    return QueueRow(
        name=name,
        region=root.region,
        key=new_key(root.region, name),
        created_at=now,
        modified_at=now,
        attributes=attributes.to_stored(),
        attributes_version=0,
        tags=tags,
        shards=attributes.shards,
        handle_key=secrets.token_bytes(layout.HANDLE_KEY_BYTES),
    )
