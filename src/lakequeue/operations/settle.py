"""Settles one or many receipts by their handles, in one commit per shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import attrs

from lakequeue.errors import (
    CMQ_ALL_FAILED,
    CMQ_SOME_FAILED,
    QueueClientError,
    QueueDoesNotExist,
    QueueServiceError,
)
from lakequeue.model import receipt_handles
from lakequeue.model.arguments import check_visibility_timeout
from lakequeue.model.clock import Duration
from lakequeue.model.failures import DeadLetterReason
from lakequeue.model.messages import BatchFailure, BatchResult, BatchSuccess
from lakequeue.model.validation import check_batch_ids
from lakequeue.runtime.calls import CallCounters, Steps
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.shard.commands import (
    ChangeVisibility,
    Command,
    Delete,
    LeaseDelete,
    LeaseRelease,
    RecordFailure,
    Result,
)
from lakequeue.shard.spans import ranges

Wanted: TypeAlias = tuple[str, Duration | None]
"""A receipt handle, and the seconds until its message becomes visible (None: the message is deleted)."""
Outcome: TypeAlias = QueueServiceError | QueueClientError | None
"""Error that kept a receipt from being settled. None if the receipt was settled."""


@attrs.frozen
class Settler:
    """Settles the messages of one receive."""

    queue: OpenQueue

    def delete(self, receipt_handle: str) -> None:
        delete(self.queue, receipt_handle)

    def change_visibility(self, receipt_handle: str, visibility_timeout: Duration) -> None:
        change_visibility(self.queue, receipt_handle, visibility_timeout)


class Settling:
    """Settles receipts in one commit per shard, and keeps the results.

    Args:
        failures: why the handler failed, by receipt handle. The reason is stored with the message.
        deletes: True to delete messages for which no timeout is given. False to refuse these receipts (VIS-10).

    Attributes:
        waiting: indexes and commands that were not committed yet, by shard.
        errors: for each receipt, why it was not settled. None if the receipt was settled, or still waits.
    """

    def __init__(
        self,
        queue: OpenQueue,
        wanted: Sequence[Wanted],
        failures: Mapping[str, DeadLetterReason] | None = None,
        deletes: bool = True,
    ) -> None:
        self.waiting: dict[int, list[tuple[list[int], Command]]] = {}
        self.errors: list[Outcome] = [None] * len(wanted)
        self._queue = queue
        # elsewhere a handle that is not the newest is an answer, not an error (RCP-6): one command for many
        together = not queue.attributes.strict_receipts
        leases: dict[tuple[int, str], list[tuple[int, int]]] = {}
        for index, (text, timeout) in enumerate(wanted):
            try:
                handle = _decoded(queue, text)
                removed = timeout is None and deletes
                micros = None if removed else visibility(queue, timeout)
            except QueueServiceError as error:
                self.errors[index] = error
                continue
            if removed and together:
                leases.setdefault((handle.shard, handle.lease_id), []).append((handle.offset, index))
            else:
                self.waiting.setdefault(handle.shard, []).append(([index], _command(handle, text, micros)))
        for (shard, lease_id), receipts in leases.items():
            spans = ranges(offset for offset, _ in sorted(receipts))
            indexes = [index for _, index in receipts]
            self.waiting.setdefault(shard, []).append((indexes, LeaseDelete(lease_id, spans)))
        for text, failure in (failures or {}).items():
            with suppress(QueueServiceError):  # of a queue that was made again: nobody waits for the answer
                handle = _decoded(queue, text)
                record = RecordFailure(handle.offset, handle.lease_id, failure)
                self.waiting.setdefault(handle.shard, []).append(([], record))

    def commands(self, shard: int) -> list[Command]:
        return [command for _, command in self.waiting.get(shard, ())]

    def commit(self, shard: int) -> QueueServiceError | QueueClientError | None:
        """Commits the commands that wait for a shard. Returns None, or the error if the commit failed."""
        try:
            with self._queue.root.storage_errors():
                ledger = self._queue.shards[shard].ledger
                self.settled(shard, ledger.command(self.commands(shard), self._queue.now))
        except (QueueServiceError, QueueClientError) as error:
            self.fail(shard, error)
            return error
        return None

    def settled(self, shard: int, results: Sequence[Result]) -> None:
        """Records the results of the commands that waited for a shard, in the order of the commands."""
        done = list(zip(self.waiting.pop(shard, ()), results, strict=True))
        for (indexes, _), result in done:
            for index in indexes:
                self.errors[index] = result.error
        _count(self._queue, [(command, result.value) for (_, command), result in done if result.error is None])

    def fail(self, shard: int, error: QueueServiceError | QueueClientError) -> None:
        for indexes, _ in self.waiting.pop(shard, ()):
            for index in indexes:
                self.errors[index] = error


def delete(queue: OpenQueue, receipt_handle: str) -> None:
    """Deletes a received message (RCP-6, RCP-10)."""
    with queue.service("delete") as call:
        _settle_one(queue, receipt_handle, None)
        call.messages = 1


def delete_batch(queue: OpenQueue, handles: Sequence[str]) -> BatchResult:
    """Deletes several messages. Returns a result for each message (DEL-10)."""
    with queue.service("delete_batch") as call:
        result = _settle(call, queue, [(handle, None) for handle in handles])
        if queue.attributes.profile != "cmq":
            return result
        failed = CMQ_SOME_FAILED if result.successful else CMQ_ALL_FAILED
        return attrs.evolve(result, cmq_code=failed if result.failed else 0)


def change_visibility(queue: OpenQueue, receipt_handle: str, visibility_timeout: Duration) -> None:
    """Changes when a message becomes visible again (VIS-1, VIS-4)."""
    with queue.service("change_visibility") as call:
        _settle_one(queue, receipt_handle, visibility(queue, visibility_timeout))
        call.messages = 1


def change_visibility_batch(queue: OpenQueue, changes: Sequence[tuple[str, Duration]]) -> BatchResult:
    """Sets new visibility timeouts for several messages (BAT-3). Returns a result for each message."""
    with queue.service("change_visibility_batch") as call:
        return _settle(call, queue, changes, deletes=False)


def give_back(queue: OpenQueue, handles: Sequence[str]) -> None:
    """Makes messages visible that no handler got. The receive of these messages does not count (HBN-23)."""
    with queue.service("give_back") as call:
        leases: dict[int, dict[str, list[int]]] = {}
        for handle in (_decoded(queue, text) for text in handles):
            leases.setdefault(handle.shard, {}).setdefault(handle.lease_id, []).append(handle.offset)
        steps = Steps("giving back")
        for shard, offsets in leases.items():  # in one commit, so that groups keep their order
            commands = [LeaseRelease(id, ranges(sorted(each)), unseen=True) for id, each in offsets.items()]
            with steps.step():
                queue.shards[shard].ledger.command(commands, queue.now)
        call.messages = len(handles)


def gone(queue: OpenQueue, handles: Sequence[str]) -> list[str]:
    """Returns those of the handles whose messages are no longer stored."""
    with queue.service("gone") as call:
        of_shards: dict[int, dict[int, str]] = {}
        for text in handles:
            handle = _decoded(queue, text)
            of_shards.setdefault(handle.shard, {})[handle.offset] = text
        found = list[str]()
        for shard, texts in of_shards.items():
            stored = queue.shards[shard].ledger.are_stored(list(texts), queue.now())
            found += [text for text, is_stored in zip(texts.values(), stored, strict=True) if not is_stored]
        call.messages = len(found)
        return found


def settle_each(queue: OpenQueue, wanted: Sequence[Wanted]) -> list[Outcome]:
    """Settles receipts. Returns the outcome of each. Raises QueueDoesNotExist, or QueueClientError if all fail."""
    with queue.service("settle") as call:
        outcomes = _settled(queue, wanted)
        for outcome in outcomes:
            if isinstance(outcome, QueueDoesNotExist):
                raise outcome
        call.messages = outcomes.count(None)
        return outcomes


def visibility(queue: OpenQueue, given: Duration | None) -> int:
    """Returns a visibility timeout in microseconds. Reads newer attributes before it refuses a timeout."""
    return queue.validated(lambda: check_visibility_timeout(queue.attributes, given))[1]


def _command(handle: receipt_handles.ReceiptHandle, text: str, timeout: int | None) -> Command:
    """Returns a Delete if ``timeout`` is None, else a ChangeVisibility. ``timeout`` is in microseconds."""
    if timeout is None:
        return Delete(handle.offset, handle.lease_id, text)
    return ChangeVisibility(handle.offset, handle.lease_id, timeout, text)


def _settle_one(queue: OpenQueue, text: str, timeout: int | None) -> None:
    handle = _decoded(queue, text)
    command = _command(handle, text, timeout)
    _count(queue, [(command, queue.command(queue.shards[handle.shard], command))])


def _settle(
    call: CallCounters, queue: OpenQueue, wanted: Sequence[Wanted], *, deletes: bool = True
) -> BatchResult:
    check_batch_ids([str(index) for index in range(len(wanted))], queue.attributes)
    batch = BatchResult()
    for index, ((text, _), refusal) in enumerate(zip(wanted, _settled(queue, wanted, deletes), strict=True)):
        if refusal is None:
            batch.successful.append(BatchSuccess(str(index), receipt_handle=text))
        else:
            batch.failed.append(BatchFailure.of(str(index), refusal, queue.attributes.profile))
    call.messages = len(batch.successful)
    return batch


def _settled(queue: OpenQueue, wanted: Sequence[Wanted], deletes: bool = True) -> list[Outcome]:
    settling = Settling(queue, wanted, deletes=deletes)
    shards = list(settling.waiting)
    for shard in shards:
        error = settling.commit(shard)
        if len(shards) == 1 and isinstance(error, QueueClientError):
            raise error
    return settling.errors


def _count(queue: OpenQueue, done: Sequence[tuple[Command, Any]]) -> None:
    queue.tally(
        deleted=sum(isinstance(command, Delete) and bool(removed) for command, removed in done)
        + sum(counts.done for command, counts in done if isinstance(command, LeaseDelete)),
        extended=sum(isinstance(command, ChangeVisibility) and command.timeout > 0 for command, _ in done),
    )


def _decoded(queue: OpenQueue, text: str) -> receipt_handles.ReceiptHandle:
    handle = receipt_handles.decode(text, queue.key, queue.row.handle_key)
    if handle.shard >= len(queue.shards):  # another process has added shards
        queue.reload()
    return handle
