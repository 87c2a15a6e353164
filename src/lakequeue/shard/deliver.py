"""Deliveries into a table: marks, and the decision about marks whose receipts have ended (TAB-2 to TAB-8).

When the receipt of marked messages ends, the messages are undecided: no claim, move, expiry or redrive takes them
until the log of the table shows whether their rows arrived. ``Head.delivery_table`` is ``DELIVERY_ID:TABLE_ID``,
or ``DELIVERY_ID:`` while the table's id is unknown. If the queue's attributes have another delivery id, only an
operator decides the marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, islice

import attrs

from lakequeue.model.clock import MICROS
from lakequeue.model.deliveries import DeliveryTarget, Mark, Undecided
from lakequeue.shard.commands import Decide, RecordTable, Remark
from lakequeue.shard.expire import expire
from lakequeue.shard.runs import VISIBLE, Head, Run, joined_runs
from lakequeue.shard.state import ShardState

DECIDE_EVERY = 30 * MICROS
"""Microseconds between two attempts to decide a delivery."""


def target(state: ShardState) -> DeliveryTarget:
    """Returns the table of the marked messages. Without marks, returns the table of the next delivery."""
    attributes = state.attributes
    owner, _, table_id = (state.head.delivery_table or "").partition(":")
    changed = bool(state.marked.size and owner and owner != attributes.delivery_id)
    known = table_id if changed or owner == attributes.delivery_id else ""
    mine = owner if changed else attributes.delivery_id
    return DeliveryTarget(attributes.table, attributes.delivery_id, known or None, changed, mine)


def keep_target(state: ShardState, delivery_id: str | None) -> None:
    """Called after a change of attributes. If the delivery id has changed, stores the earlier ``delivery_id`` in
    the head, because existing marks belong to it.
    """
    known = state.head.delivery_table
    if state.attributes.delivery_id != delivery_id:
        left = (known or f"{delivery_id}:") if state.marked.size else None
        state.head = attrs.evolve(state.head, delivery_table=left)


def begun(state: ShardState) -> None:
    """Called when a delivery begins. Drops the recorded table if it belongs to an earlier delivery id."""
    owner, _, _ = (state.head.delivery_table or "").partition(":")
    if owner and owner != state.attributes.delivery_id:
        state.head = attrs.evolve(state.head, delivery_table=None)


def new_marks(state: ShardState, nonce: int, number: int) -> list[Mark]:
    """Returns ``number`` new marks for the coming commit. Each mark takes the lowest unused slot (TAB-2)."""
    used = {mark.slot for mark in marks(state)}
    slots = islice((slot for slot in count() if slot not in used), number)
    return [Mark.of(slot, state.head.epoch + 1, nonce) for slot in slots]


def marks(state: ShardState) -> list[Mark]:
    return sorted({run.mark for run in _marked(state) if run.mark is not None})


def undecided(state: ShardState) -> list[Undecided]:
    """Returns the undecided deliveries, whose receipts have ended (TAB-5). The first that ended comes first."""
    found: dict[Mark, Undecided] = {}
    for span in state.undecided:
        for run in state.runs.pieces(*span):
            assert run.mark is not None
            known = found.get(run.mark) or Undecided(run.mark, run.lease_id or "", 0, run.visible_at or 0)
            since = min(known.since, run.visible_at or 0)
            found[run.mark] = known._replace(messages=known.messages + run.size, since=since)
    return sorted(found.values(), key=lambda each: (each.since, each.mark))


def decide(state: ShardState, command: Decide) -> tuple[int, bool]:
    """Deletes a delivery's messages if their rows arrived in the table. Else makes the messages visible."""
    runs = _of(state, Mark(command.slot, command.number))
    if command.unrecorded and target(state).table_id is not None:
        return 0, False
    size = sum(run.size for run in runs)
    for run in runs:
        if command.delivered:
            state.remove(run)
            continue
        state.leave(run)
        back = run._replace(mark=None)
        back = back.unattempted() if command.failure is None else back.failed(command.failure)
        together = size if size > 1 else None
        back = back._replace(state=VISIBLE, lease_id=None, visible_at=state.now)
        state.set_runs([back._replace(consumer=None, failed_together=together)])
    state.serve_groups()
    expire(state)  # marks kept messages past their retention
    return size, size > 0


def remark(state: ShardState, command: Remark) -> tuple[tuple[Mark, ...] | None, bool]:
    """Gives each part of a delivery a mark with a new number. The first part keeps the slot (TAB-7)."""
    runs = _of(state, Mark(command.slot, command.number))
    runs = [run for run in runs if run.lease_id == command.lease_id]
    wanted = [span for part in command.parts for span in part]
    held = {offset for run in runs if state.live(run) for offset in range(run.first, run.last + 1)}
    offsets = [offset for first, last in wanted for offset in range(first, last + 1)]
    if not offsets or not all(command.parts) or len({*offsets} & held) < len(offsets):
        return None, False
    others = new_marks(state, command.nonce, len(command.parts) - 1)
    marks = Mark.of(command.slot, state.head.epoch + 1, command.nonce), *others
    for mark, part in zip(marks, command.parts, strict=True):
        for span in part:
            for run in list(state.runs.pieces(*span)):
                state.runs.put(run._replace(mark=mark))
    for run in _of(state, Mark(command.slot, command.number)):
        if run.lease_id == command.lease_id:
            state.hand_back(run._replace(mark=None), command.failure)
    expire(state)
    return marks, True


def record_table(state: ShardState, command: RecordTable) -> tuple[str | None, bool]:
    """Records the id of the delivery table before the first rows are appended (TAB-4)."""
    known = target(state)
    if known.changed or not _of(state, Mark(command.slot, command.number)):
        return None, False
    if known.table_id is not None:
        return known.table_id, False
    state.head = attrs.evolve(state.head, delivery_table=f"{known.delivery_id}:{command.table_id}")
    return command.table_id, True


def without_marks(head: Head, runs: Sequence[Run]) -> tuple[Head, list[Run], int]:
    """Removes the marks from a copied or restored ledger. Also returns the number of marked messages (TAB-11)."""
    marked = sum(run.size for run in runs if run.mark is not None)
    kept = [run if run.mark is None else run._replace(mark=None, lease_id=None) for run in runs]
    return attrs.evolve(head, delivery_table=None), joined_runs(kept), marked


def _marked(state: ShardState) -> Iterator[Run]:
    return (run for span in state.marked for run in state.runs.pieces(*span))


def _of(state: ShardState, mark: Mark) -> list[Run]:
    return [run for run in _marked(state) if run.mark == mark]
