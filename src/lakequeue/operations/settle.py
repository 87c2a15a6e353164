"""Settling receipts of one queue by handle: one or many, a commit per shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from lakequeue.errors import QueueClientError, QueueServiceError
from lakequeue.model import receipt_handles
from lakequeue.model.messages import BatchFailure, BatchResult, BatchSuccess
from lakequeue.runtime.shard_service import Now, ShardService
from lakequeue.shard import ChangeVisibility, Command
from lakequeue.storage.catalog import QueueRow

Maker = Callable[[int, str, str], Command]
"""Makes a command of offset, lease id and the text of the handle."""


def change_to(timeout: int) -> Maker:
    """Makes changes of visibility to so many microseconds from the commit."""
    return lambda offset, lease_id, text: ChangeVisibility(offset, lease_id, timeout, text)


class Settler:
    """Deletes and changes by receipt handle. Thread-safe."""

    def __init__(
        self,
        row: QueueRow,
        shards: Sequence[ShardService],
        storage_errors: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._row = row
        self._shards = shards
        self._storage_errors = storage_errors

    def one(self, text: str, make: Maker, now: Now) -> None:
        """Settles one receipt or raises why not."""
        shard, command = self._command(text, make)
        error = self._shards[shard].command([command], now)[0].error
        if error is not None:
            raise error

    def batch(self, texts: Sequence[str], makers: Sequence[Maker | QueueServiceError], now: Now) -> BatchResult:
        """Settles many; entry ids are indexes. A maker that is an error refuses its entry (BAT-4)."""
        refusals: dict[int, QueueServiceError | QueueClientError | None] = {}
        by_shard: dict[int, list[tuple[int, Command]]] = {}
        for index, (text, make) in enumerate(zip(texts, makers, strict=True)):
            try:
                if isinstance(make, QueueServiceError):
                    raise make
                shard, command = self._command(text, make)
            except QueueServiceError as error:
                refusals[index] = error
            else:
                by_shard.setdefault(shard, []).append((index, command))
        for shard, commands in by_shard.items():
            try:
                with self._storage_errors():
                    results = self._shards[shard].command([command for _, command in commands], now)
            except (QueueServiceError, QueueClientError) as error:  # what other shards did stays done
                if len(by_shard) == 1 and isinstance(error, QueueClientError):
                    raise
                refusals.update((index, error) for index, _ in commands)
                continue
            refusals.update((index, result.error) for (index, _), result in zip(commands, results, strict=True))
        batch = BatchResult()
        for index, text in enumerate(texts):
            refusal = refusals[index]
            if refusal is None:
                batch.successful.append(BatchSuccess(str(index), receipt_handle=text))
            else:
                batch.failed.append(BatchFailure.of(str(index), refusal))
        return batch

    def _command(self, text: str, make: Maker) -> tuple[int, Command]:
        handle = receipt_handles.decode(text, self._row.key, self._row.handle_key)
        return handle.shard, make(handle.offset, handle.lease_id, text)
