"""One round of a consumer: settles finished messages and claims new messages, in one commit per shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

import attrs

from lakequeue.errors import QueueClientError, QueueServiceError
from lakequeue.model import receipt_handles
from lakequeue.model.clock import Duration
from lakequeue.model.failures import DeadLetterReason
from lakequeue.model.messages import Message
from lakequeue.operations import receive
from lakequeue.operations.claim import ClaimPlan
from lakequeue.operations.settle import Settling, visibility
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.shard.commands import Claim


@attrs.frozen
class Exchanged:
    """Results of an exchange: for each receipt, its error, or None if it was settled; and the claimed messages. If
    the claim failed, ``refused`` is its error.
    """

    errors: Sequence[QueueServiceError | QueueClientError | None]
    messages: Sequence[Message] = ()
    refused: QueueServiceError | QueueClientError | None = None


def exchange(
    queue: OpenQueue,
    wanted: Sequence[tuple[str, Duration | None]],
    request: receive.Request | None = None,
    failures: Mapping[str, DeadLetterReason] = MappingProxyType({}),
) -> Exchanged:
    """Settles receipts, and claims messages without waiting, in one commit per shard. If ``request`` is None,
    claims nothing. ``failures`` maps receipt handles to the reasons why the handler failed.
    """
    settling = Settling(queue, wanted, failures)
    claimed: list[Message] = []
    refused: QueueServiceError | QueueClientError | None = None
    if request is not None:
        try:
            with queue.service("exchange") as call:
                queue.follow()
                given, lease_id = request.visibility_timeout, receipt_handles.new_lease_id()
                timeout = None if given is None else visibility(queue, given)
                size, consumer, one_each = request.max_messages or 1, request.consumer, request.one_each
                command = Claim(size, timeout, lease_id, consumer=consumer, one_each=one_each)
                parts, refused = ClaimPlan(queue, command, request.enough, request.hands, settling).run()
                claimed = receive.read(queue, parts, lease_id=lease_id)
                receive.count(queue, claimed)
                call.messages = len(claimed)
        except (QueueServiceError, QueueClientError) as error:
            refused = error
            for shard in list(settling.waiting):
                settling.fail(shard, error)
    if settling.waiting:
        with suppress(QueueServiceError, QueueClientError), queue.service("exchange"):
            for failure in [settling.commit(shard) for shard in list(settling.waiting)]:
                if failure is not None:
                    raise failure  # so that a deletion that was interrupted is completed
    return Exchanged(settling.errors, claimed, None if claimed else refused)
