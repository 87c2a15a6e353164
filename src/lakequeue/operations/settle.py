"""Settles one or many receipts by their handles, in one commit per shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from lakequeue.errors import CMQ_ALL_FAILED, CMQ_SOME_FAILED, QueueClientError, QueueServiceError
from lakequeue.model import receipt_handles
from lakequeue.model.arguments import check_visibility_timeout
from lakequeue.model.clock import Duration
from lakequeue.model.messages import BatchFailure, BatchResult, BatchSuccess, check_batch_ids
from lakequeue.runtime.calls import Call
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.shard.commands import ChangeVisibility, Command, Delete

_Maker = Callable[[int, str, str], Command]
"""Makes a command from offset, lease id and receipt handle."""


@attrs.frozen
class Settler:
    """Settles the messages of one receive."""

    queue: OpenQueue

    def delete(self, receipt_handle: str) -> None:
        delete(self.queue, receipt_handle)

    def change_visibility(self, receipt_handle: str, visibility_timeout: Duration) -> None:
        change_visibility(self.queue, receipt_handle, visibility_timeout)


def delete(queue: OpenQueue, receipt_handle: str) -> None:
    """Deletes a received message (RCP-6, RCP-10)."""
    with queue.service("delete") as call:
        _settle_one(queue, receipt_handle, Delete)
        call.messages = 1


def delete_batch(queue: OpenQueue, handles: Sequence[str]) -> BatchResult:
    """Deletes several messages, with a result for each (DEL-10)."""
    with queue.service("delete_batch") as call:
        result = _settle(call, queue, list(handles), [Delete] * len(handles))
        if queue.attributes.profile != "cmq":
            return result
        failed = CMQ_SOME_FAILED if result.successful else CMQ_ALL_FAILED
        return attrs.evolve(result, cmq_code=failed if result.failed else 0)


def change_visibility(queue: OpenQueue, receipt_handle: str, visibility_timeout: Duration) -> None:
    """Changes when a message becomes visible again (VIS-1, VIS-4)."""
    with queue.service("change_visibility") as call:
        timeout = visibility(queue, visibility_timeout)
        _settle_one(queue, receipt_handle, _change_to(timeout))
        call.messages = 1


def change_visibility_batch(queue: OpenQueue, changes: Sequence[tuple[str, Duration]]) -> BatchResult:
    """Changes when several messages become visible again, with a result for each (BAT-3)."""
    with queue.service("change_visibility_batch") as call:
        makers: list[_Maker | QueueServiceError] = []
        for _, visibility_timeout in changes:
            try:
                timeout = visibility(queue, visibility_timeout)
            except QueueServiceError as error:
                makers.append(error)
            else:
                makers.append(_change_to(timeout))
        return _settle(call, queue, [handle for handle, _ in changes], makers)


def visibility(queue: OpenQueue, given: Duration) -> int:
    """A visibility timeout in microseconds, checked against the newest attributes if it is refused."""
    return queue.validated(lambda: check_visibility_timeout(queue.attributes, given))[1]


def _change_to(timeout: int) -> _Maker:
    """A maker of visibility changes with a timeout in microseconds, counted from the commit."""
    return lambda offset, lease_id, text: ChangeVisibility(offset, lease_id, timeout, text)


def _settle_one(queue: OpenQueue, text: str, make: _Maker) -> None:
    """Settles one receipt or raises its error."""
    shard, command = _command(queue, text, make)
    _count(queue, [(command, queue.command(queue.shards[shard], command))])


def _settle(
    call: Call, queue: OpenQueue, texts: list[str], makers: Sequence[_Maker | QueueServiceError]
) -> BatchResult:
    """Settles many receipts; entry ids are indexes. A maker that is an error refuses its entry (BAT-4)."""
    check_batch_ids([str(index) for index in range(len(texts))], queue.attributes)
    refusals: dict[int, QueueServiceError | QueueClientError | None] = {}
    by_shard: dict[int, list[tuple[int, Command]]] = {}
    for index, (text, make) in enumerate(zip(texts, makers, strict=True)):
        try:
            if isinstance(make, QueueServiceError):
                raise make
            shard, command = _command(queue, text, make)
        except QueueServiceError as error:
            refusals[index] = error
        else:
            by_shard.setdefault(shard, []).append((index, command))
    for shard, commands in by_shard.items():
        try:
            with queue.root.storage_errors():
                results = queue.shards[shard].command([command for _, command in commands], queue.now)
        except (QueueServiceError, QueueClientError) as error:  # other shards have committed
            if len(by_shard) == 1 and isinstance(error, QueueClientError):
                raise
            refusals.update((index, error) for index, _ in commands)
            continue
        done = [(command, result) for (_, command), result in zip(commands, results, strict=True)]
        _count(queue, [(command, result.value) for command, result in done if result.error is None])
        refusals.update((index, result.error) for (index, _), result in zip(commands, results, strict=True))
    batch = BatchResult()
    for index, text in enumerate(texts):
        refusal = refusals[index]
        if refusal is None:
            batch.successful.append(BatchSuccess(str(index), receipt_handle=text))
        else:
            batch.failed.append(BatchFailure.of(str(index), refusal, queue.attributes.profile))
    call.messages = len(batch.successful)
    return batch


def _count(queue: OpenQueue, done: Sequence[tuple[Command, Any]]) -> None:
    """Counts what commands did: a delete by an older handle removes nothing, a timeout of 0 extends nothing."""
    queue.tally(
        deleted=sum(isinstance(command, Delete) and bool(removed) for command, removed in done),
        extended=sum(isinstance(command, ChangeVisibility) and command.timeout > 0 for command, _ in done),
    )


def _command(queue: OpenQueue, text: str, make: _Maker) -> tuple[int, Command]:
    handle = receipt_handles.decode(text, queue.key, queue.row.handle_key)
    return handle.shard, make(handle.offset, handle.lease_id, text)
