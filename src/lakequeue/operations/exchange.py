"""A round of a consumer: what it finished is settled and what comes next is claimed, in one commit per shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import attrs

from lakequeue.errors import QueueClientError, QueueServiceError
from lakequeue.model import receipt_handles
from lakequeue.model.clock import Duration
from lakequeue.model.messages import Message
from lakequeue.operations import receive
from lakequeue.operations.settle import Settling, visibility
from lakequeue.runtime.open_queue import OpenQueue


@attrs.frozen
class Exchanged:
    """What became of a round.

    Attributes:
        errors: why each receipt was not settled; None: it was.
        messages: what was claimed.
        refused: why nothing could be claimed.
    """

    errors: Sequence[QueueServiceError | QueueClientError | None]
    messages: Sequence[Message] = ()
    refused: QueueServiceError | QueueClientError | None = None


def exchange(
    queue: OpenQueue,
    wanted: Sequence[tuple[str, Duration | None]],
    max_messages: int,
    enough: int,
    visibility_timeout: Duration | None,
    failures: Mapping[str, str] | None = None,
    consumer: str | None = None,
    hands: receive.FreeHands | None = None,
) -> Exchanged:
    """Settles receipts, then claims messages without a wait, in the same commit if they are of the same shard.

    Args:
        wanted: handles with seconds until the message becomes visible; None: delete it.
        max_messages: maximum number of messages to claim; 0: none.
        enough: number of messages after which no further shard is asked.
        visibility_timeout: of the claim, in seconds; None: the queue's.
        failures: why handlers failed, by receipt handle; kept with the messages.
        consumer: name of who claims; kept with what is claimed.
        hands: handlers that can begin at once; None: messages are claimed for whomever.
    """
    settling = Settling(queue, wanted, failures)
    claimed: list[Message] = []
    refused: QueueServiceError | QueueClientError | None = None
    if max_messages:
        try:
            with queue.service("exchange") as call:
                queue.follow()
                timeout = None if visibility_timeout is None else visibility(queue, visibility_timeout)
                lease_id = receipt_handles.new_lease_id()
                parts, refused = receive.claim(
                    queue, max_messages, timeout, lease_id, None, consumer, enough, settling, hands
                )
                claimed = receive.read(queue, parts)
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
