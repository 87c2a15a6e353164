"""The micro-batches of a stream from a queue: each is a lease, deleted as soon as Spark has finished the batch."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack, nullcontext, suppress
from typing import Any

from lakequeue import frame_verbs
from lakequeue.errors import InvalidOptions, LeaseLost
from lakequeue.lease import Lease
from lakequeue.queue import Queue
from lakequeue.renewal.policies import ComputedRenewal
from lakequeue.spark.options import Options

_log = logging.getLogger("lakequeue")

Offset = dict[str, Any]
"""The id of a lease, and the key of its queue."""
START: Offset = {"lease": ""}
"""Where every stream begins."""


class LeasedBatches:
    """Claims, plans and deletes the leases of one running query. Not thread-safe: Spark makes one call at a time.

    Spark asks for the next offset only once the batch before it has ended, was written to the commit log, and will
    not be repeated. So that call deletes the lease of the offset where the next batch starts. Spark's own
    ``commit`` comes with the next batch that has messages, which may be hours later.
    """

    def __init__(self, queue: Queue, options: Options) -> None:
        self._queue = queue
        self._options = options
        self._renewal = ComputedRenewal(options.visibility_timeout, options.lease_seconds)
        self._kept: dict[str, tuple[Lease, ExitStack]] = {}
        """Leases that this process extends until they end."""
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
            InvalidOptions: the checkpoint is not of such a stream, or of another queue.
            QueueDoesNotExist: the queue was deleted.
        """
        self.finish(start)
        if self._offered is not None and self._offered[0] == start:
            return self._offered[1]  # claimed already, and not planned yet
        # without a pause, an idle stream would poll a hundred times a second
        if self._left == 0 or time.monotonic() < self._quiet_until:
            return start
        most = self._options.max_messages if self._left is None else min(self._left, self._options.max_messages)
        lease = self._queue.lease(most, self._options.visibility_timeout)
        if lease is None:
            self._quiet_until = time.monotonic() + frame_verbs.poll_interval(self._queue)
            return start
        if self._left is not None:
            self._left -= lease.message_count
        self._keep(lease)
        end = {"lease": frame_verbs.lease_id(lease), "queue": self._queue.key}
        self._offered = start, end
        return end

    def plan(self, start: Offset, end: Offset) -> Lease | None:
        """The messages of a batch.

        Of a batch that a process before this one began, these are the messages that its lease still holds: the
        others come with later batches.
        """
        self._offered = None
        self.finish(start)
        self.reached = end
        if start == end:
            return None
        lease_id = self._lease_of(end)
        if lease_id in self._kept:
            return self._kept[lease_id][0]
        lease = frame_verbs.resumed_lease(self._queue, lease_id, self._options.visibility_timeout)
        if lease is None:
            _log.warning("nothing is left of the batch that was interrupted; its messages come in later ones")
            return None
        self._keep(lease)
        return lease

    def finish(self, end: Offset) -> None:
        """Deletes the messages of a batch that has ended; a repetition does nothing."""
        lease_id = self._lease_of(end)
        if lease_id in ("", self._deleted):
            return
        kept, renewal = self._kept.pop(lease_id, (None, nullcontext()))
        # what the function of the batch has handed back is not held: it stays
        lease = frame_verbs.held_lease(self._queue, lease_id)
        with renewal, suppress(LeaseLost):
            if lease is not None:
                lease.delete()
        if kept is not None and frame_verbs.is_taken(kept):
            _log.warning("messages were lost to a timeout; they will be received again")
        if self._left is not None:
            self._left += frame_verbs.failed_together(self._queue, lease_id)
        self._deleted = lease_id

    def _keep(self, lease: Lease) -> None:
        renewal = ExitStack()
        renewal.enter_context(lease.keep_alive(self._renewal))
        self._kept[frame_verbs.lease_id(lease)] = lease, renewal

    def _lease_of(self, end: Offset) -> str:
        """The id of the lease of an offset; refuses one from the checkpoint of another stream."""
        if "lease" not in end:
            other = "another kind of stream"
        elif end["lease"] and end.get("queue") != self._queue.key:
            other = f"another queue than {self._queue.name}, or of one before it that was deleted"
        else:
            return str(end["lease"])
        raise InvalidOptions([f"option checkpointLocation: the checkpoint is of {other}; use a new one"])
