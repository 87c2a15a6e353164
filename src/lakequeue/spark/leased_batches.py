"""The micro-batches of a stream from a queue: each is a lease, deleted as soon as Spark has finished the batch."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from typing import Any

import attrs

from lakequeue.errors import InvalidOptions, InvalidParameterValue, LeaseLost
from lakequeue.lease import Lease
from lakequeue.model.clock import MICROS
from lakequeue.operations import lease as leases
from lakequeue.operations import resume_lease
from lakequeue.operations.lease import LeasedMessages
from lakequeue.queue import Queue
from lakequeue.renewal.policies import ComputedRenewal
from lakequeue.spark.options import Options

_log = logging.getLogger("lakequeue")

Offset = dict[str, Any]
"""The id of a lease, and the key of its queue."""
START: Offset = {"lease": ""}
"""Where every stream begins."""


@attrs.frozen
class _Kept:
    """A lease that this process extends until it ends."""

    leased: LeasedMessages
    lease: Lease
    renewal: ExitStack


class LeasedBatches:
    """Claims, plans and deletes the leases of one running query. Not thread-safe: Spark makes one call at a time.

    Spark asks for the next offset only once the batch before it has ended, was written to the commit log, and will
    not be repeated. So that call deletes the lease of the offset where the next batch starts; Spark's own `commit`
    comes with the next batch that has messages, which may be hours later.
    """

    def __init__(self, queue: Queue, options: Options) -> None:
        self._queue = queue
        self._options = options
        self._renewal = ComputedRenewal(options.visibility_timeout, options.lease_seconds)
        self._kept: dict[str, _Kept] = {}
        self._deleted = ""
        self._offered: tuple[Offset, Offset] | None = None
        self.reached = START
        """End of the batch that was planned last."""
        self._left: int | None = None
        self._quiet_until = 0.0

    def stop_at_present(self) -> None:
        """Lets the stream end once as many messages were leased as are visible now."""
        self._left = self._queue.counts().visible

    def next(self, start: Offset) -> Offset:
        """The offset after the next batch; the same one if there is nothing to receive.

        Raises:
            InvalidOptions: the checkpoint is not of such a stream.
            QueueDoesNotExist: the queue was deleted.
        """
        self.finish(start)
        if self._offered is not None and self._offered[0] == start:
            return self._offered[1]  # claimed already, and not planned yet
        # without a pause, an idle stream would poll a hundred times a second
        if self._left == 0 or time.monotonic() < self._quiet_until:
            return start
        most = self._options.max_messages if self._left is None else min(self._left, self._options.max_messages)
        leased = leases.lease(self._queue._runtime, most, self._options.visibility_timeout)
        if leased is None:
            self._quiet_until = time.monotonic() + self._queue._runtime.root.poll_interval / MICROS
            return start
        if self._left is not None:
            self._left -= leased.count
        self._keep(leased)
        end = {"lease": leased.lease_id, "queue": leased.queue.key}
        self._offered = start, end
        return end

    def plan(self, start: Offset, end: Offset) -> LeasedMessages | None:
        """The messages of a batch.

        Of a batch that a process before this one began, these are the messages that its lease still holds: the
        others come with later batches.
        """
        self._offered = None
        self.finish(start)
        self.reached = end
        if start == end:
            return None
        kept = self._kept.get(end["lease"])
        if kept is not None:
            return kept.leased
        leased = self._resumed(end)
        if leased is None:
            _log.warning("nothing is left of the batch that was interrupted; its messages come in later ones")
            return None
        self._keep(leased)
        return leased

    def finish(self, end: Offset) -> None:
        """Deletes the messages of a batch that has ended; a repetition does nothing."""
        if "lease" not in end:
            raise InvalidOptions(
                ["option checkpointLocation: the checkpoint is of another kind of stream; use a new one"]
            )
        lease_id = end["lease"]
        if lease_id in ("", self._deleted):
            return
        kept, lost = self._kept.pop(lease_id, None), 0
        try:
            if kept is not None:
                with kept.renewal:
                    lost = kept.lease.delete().lost
            else:
                leased = self._held(end)
                if leased is not None:
                    leases.delete(leased)
        except LeaseLost as error:
            # the function of a batch may have deleted them, or the process before this one
            lost = error.lost if kept is not None and resume_lease.stored(kept.leased) else 0
        if lost:
            _log.warning("%d messages were lost to a timeout; they will be received again", lost)
        self._deleted = lease_id

    def _keep(self, leased: LeasedMessages) -> None:
        lease, renewal = Lease(leased), ExitStack()
        renewal.enter_context(lease.keep_alive(self._renewal))
        self._kept[leased.lease_id] = _Kept(leased, lease, renewal)

    def _held(self, end: Offset) -> LeasedMessages | None:
        queue = self._queue._runtime
        return resume_lease.held(queue, end["lease"]) if end["queue"] == queue.key else None

    def _resumed(self, end: Offset) -> LeasedMessages | None:
        """Extends the lease of a batch, and leaves out what it no longer holds; None if that is all."""
        leased, timeout = self._held(end), self._options.visibility_timeout
        if leased is None:
            return None
        if timeout is None:
            timeout = leased.queue.attributes.visibility_timeout_micros / MICROS
        try:
            leases.extend(leased, timeout)
        except LeaseLost:
            return None
        except InvalidParameterValue:  # twelve hours have passed since the messages were received
            leases.release(leased)  # or the end of this empty batch would delete them
            return None
        return resume_lease.held(leased.queue, leased.lease_id)
