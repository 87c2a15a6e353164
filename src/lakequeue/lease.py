"""A lease: up to millions of messages received under one receipt, worked on as a DataFrame."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import attrs

from lakequeue.errors import (
    InvalidParameterValue,
    LeaseLost,
    QueueClientError,
    QueueDoesNotExist,
    QueueServiceError,
    RequestThrottled,
)
from lakequeue.model import receipt_handles
from lakequeue.model.attributes import check_visibility_timeout
from lakequeue.model.clock import Duration, duration_micros, from_micros, seconds
from lakequeue.operations.steps import Steps
from lakequeue.renewal.heartbeat import HeartbeatScheduler, Verdict
from lakequeue.renewal.policies import Hold, Renewal
from lakequeue.runtime.shard_service import ShardService
from lakequeue.shard import (
    ClaimResult,
    Command,
    LeaseCounts,
    LeaseDelete,
    LeaseExtend,
    LeaseRelease,
)
from lakequeue.storage.bulk.lease_frame import LeaseColumns, LeasePlace, lease_frame
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.layout import messages_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakequeue.queue import Queue

Spans = list[tuple[int, int]]

_log = logging.getLogger("lakequeue")


@attrs.frozen
class _Part:
    shard: ShardService
    claimed: ClaimResult

    @property
    def spans(self) -> Spans:
        return [(span.first, span.last) for span in self.claimed.spans]


class Lease:
    """Messages claimed at once; get one from ``Queue.lease``.

    Settling a lease is one commit per shard whatever its size, made by the point engine, so a busy
    cluster cannot hold up a heartbeat. Each verb answers ``LeaseCounts(done, lost)``; ``lost`` are
    messages that the lease holds no more.
    """

    def __init__(
        self, queue: Queue, row: QueueRow, lease_id: str, parts: Sequence[tuple[ShardService, ClaimResult]]
    ) -> None:
        self._queue = queue
        self._row = row
        self._lease_id = lease_id
        self._parts = [_Part(shard, claimed) for shard, claimed in parts]
        self._visible_at = min(part.claimed.visible_at for part in self._parts)
        received_at = min(part.claimed.received_at for part in self._parts)
        self._claimed = Hold.fresh(received_at, self._visible_at, queue.now_micros())
        self._heartbeat: HeartbeatScheduler[str] | None = None

    @property
    def message_count(self) -> int:
        """Messages that were claimed."""
        return sum(part.claimed.message_count for part in self._parts)

    @property
    def visible_at(self) -> datetime:
        """When the messages become visible again, unless extended."""
        return from_micros(self._visible_at)

    @property
    def messages(self) -> DataFrame:
        """The messages: message_id, body, receipt_handle, sent_at, message_attributes, group_id,
        delay_seconds, receive_count, shard, offset, dedup_id, sequence_number.

        Lazy; files that it reads stay for 24 hours.
        """
        owner = self._queue.owner
        spark = owner.require_spark("Lease.messages")
        key = receipt_handles.lease_key(self._row.handle_key, self._lease_id)
        columns = LeaseColumns(self._row.key, self._lease_id, key, self._queue.fifo)
        with self._queue.service():
            places = [place for part in self._parts for place in _places(owner.root, self._row.key, part)]
            return lease_frame(spark, places, columns)

    def extend(self, visibility_timeout: Duration) -> LeaseCounts:
        """Lets the lease end so many seconds from now.

        Raises:
            InvalidParameterValue: out of range, or more than 12 h in all (VIS-9).
            LeaseLost: nothing of the lease is held any more.
        """
        now = self._queue.now_micros()
        counts = self._extend(visibility_timeout)
        heartbeat, hold = self._heartbeat, self._heartbeat and self._heartbeat.get(self._lease_id)
        if heartbeat and hold:
            timeout = check_visibility_timeout(self._queue.rules, visibility_timeout)
            heartbeat.keep({self._lease_id: hold.extended(now, timeout)})
        return counts

    @contextmanager
    def keep_alive(self, policy: Renewal) -> Iterator[Lease]:
        """Extends the lease in the background for as long as the block runs, or until it is settled in it.

        Extensions are one commit per shard by the point engine, so they are made in time however busy Spark is.
        Once the lease is lost, the Spark jobs that the block has started in its thread are cancelled.

        Args:
            policy: `HeartbeatRenewal` or `ComputedRenewal`; the lease takes the place of the message, and its
                own timeout that of the queue.

        Raises:
            LeaseLost: at the end of the block, if nothing of the lease is held any more.
            QueueDoesNotExist: at the end of the block, if the queue was deleted.
        """
        if self._heartbeat is not None:
            raise RuntimeError("the lease is being kept already")
        trouble: list[BaseException] = []
        with _cancellable(self._queue.owner.spark) as cancel:

            def extend(wanted: Sequence[tuple[str, int]]) -> list[Verdict]:
                [(_, timeout)] = wanted
                try:
                    self._extend(seconds(timeout))
                except QueueDoesNotExist as error:
                    trouble.append(error)
                except (LeaseLost, InvalidParameterValue):
                    pass
                except (QueueServiceError, QueueClientError) as error:
                    _log.warning("extending a lease of %s failed: %s", self._queue.name, error)
                    return [Verdict.FAILED]
                else:
                    return [Verdict.EXTENDED]
                return [Verdict.LOST]

            def broken(error: BaseException) -> None:
                trouble.append(error)
                cancel()

            heartbeat = HeartbeatScheduler(
                self._queue.owner.clock,
                policy,
                extend,
                lambda _: broken(LeaseLost(0, self.message_count)),
                broken,
            )
            heartbeat.start()
            heartbeat.keep({self._lease_id: self._hold(policy)})
            self._heartbeat = heartbeat
            try:
                yield self
            except Exception as error:
                if trouble:
                    raise trouble[0] from error
                raise
            finally:
                self._heartbeat = None
                heartbeat.stop()
        if trouble:
            raise trouble[0]

    def _hold(self, policy: Renewal) -> Hold:
        own = policy.receive_timeout
        timeout = self._claimed.timeout if own is None else duration_micros(own)
        return attrs.evolve(self._claimed, visible_at=self._visible_at, timeout=timeout)

    def _extend(self, visibility_timeout: Duration) -> LeaseCounts:
        timeout = check_visibility_timeout(self._queue.rules, visibility_timeout)
        visible_at = self._queue.now_micros() + timeout
        counts = self._command(lambda part: LeaseExtend(self._lease_id, part.spans, timeout))
        self._visible_at = visible_at
        return counts

    def delete(self) -> LeaseCounts:
        """Deletes every message of the lease.

        Raises:
            LeaseLost: nothing of the lease is held any more.
        """
        return self._settle(lambda part: LeaseDelete(self._lease_id, part.spans))

    def release(self) -> LeaseCounts:
        """Makes every message of the lease visible at once.

        Raises:
            LeaseLost: nothing of the lease is held any more.
        """
        return self._settle(lambda part: LeaseRelease(self._lease_id, part.spans))

    def delete_except(self, failed: DataFrame | Iterable[str]) -> LeaseCounts:
        """Deletes all messages but these, which become visible at once.

        Args:
            failed: receipt handles of the lease, or a DataFrame with a column ``receipt_handle``.

        Raises:
            ReceiptHandleIsInvalid, InvalidParameterValue: a handle is not one of this lease.
            LeaseLost: nothing of the lease is held any more.
        """
        offsets: dict[int, list[int]] = {}
        for text in _texts(failed):
            handle = receipt_handles.decode(text, self._row.key, self._row.handle_key)
            if handle.lease_id != self._lease_id:
                raise InvalidParameterValue(
                    f"Value {text} for parameter ReceiptHandle is invalid. Reason: It is of another lease."
                )
            offsets.setdefault(handle.shard, []).append(handle.offset)
        return self._settle(
            lambda part: LeaseDelete(self._lease_id, part.spans, frozenset(offsets.get(part.shard.shard, [])))
        )

    def _settle(self, command: Any) -> LeaseCounts:
        """Ends the lease, and its heartbeat with it, unless it fails in a way that is worth another try."""
        heartbeat = self._heartbeat
        hold = heartbeat.drop(self._lease_id) if heartbeat else None
        try:
            return self._command(command)
        except (RequestThrottled, QueueClientError):
            if heartbeat and hold:
                heartbeat.keep({self._lease_id: hold})
            raise

    def _command(self, command: Any) -> LeaseCounts:
        done = lost = 0
        steps = Steps("settling the lease")
        with self._queue.service():
            for part in self._parts:
                wanted: Command = command(part)
                with steps.step():
                    result = part.shard.command([wanted], self._queue.now_micros)[0]
                    if result.error is not None:
                        raise result.error
                done, lost = done + result.value.done, lost + result.value.lost
        if done == 0:
            raise LeaseLost(done, lost)
        return LeaseCounts(done, lost)


def _places(root: str, key: str, part: _Part) -> Iterator[LeasePlace]:
    """Where the messages of a shard lie, in the newest snapshot of its log."""
    path, log = messages_path(root, key, part.shard.shard), part.shard.log()
    for span in part.claimed.spans:
        for file in log.overlapping(span.first, span.last):
            first, last = max(span.first, file.first), min(span.last, file.last)
            yield LeasePlace(
                f"{path}/{file.file.name}",
                (first, last) == (file.first, file.last),
                part.shard.shard,
                file.base,
                file.opened_at,
                first - file.base,
                last - file.base,
                span.receive_count,
            )


def _texts(failed: DataFrame | Iterable[str]) -> Iterable[str]:
    select = getattr(failed, "select", None)
    if select is None:
        return failed
    return [row["receipt_handle"] for row in select("receipt_handle").toLocalIterator()]


@contextmanager
def _cancellable(spark: SparkSession | None) -> Iterator[Callable[[], None]]:
    """Answers what cancels the Spark jobs that this thread starts in the block."""
    if spark is None:
        yield lambda: None
        return
    # a tag, and no job group: a thread has one group, which may be the user's
    context, tag = spark.sparkContext, f"lakequeue-{uuid.uuid4()}"
    context.addJobTag(tag)
    try:
        yield lambda: context.cancelJobsWithTag(tag)
    finally:
        context.removeJobTag(tag)
