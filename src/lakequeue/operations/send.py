"""Sends messages: chooses the shard of each message, and builds the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any, TypeAlias, cast

import attrs

from lakequeue.errors import OverLimit, QueueClientError, QueueServiceError
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.messages import (
    BatchFailure,
    BatchResult,
    BatchSuccess,
    SendEntry,
    SendResult,
    ValidEntry,
    md5_of_attributes,
    md5_of_body,
    new_message_ids,
)
from lakequeue.model.names import sequence_number, shard_of_group
from lakequeue.model.validation import validate_batch, validate_entry
from lakequeue.runtime.calls import CallCounters
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.open_shard import OpenShard, in_home_order
from lakequeue.runtime.send_places import Placed, ShardSend
from lakequeue.storage.engines.commit_failures import StaleAttributes
from lakequeue.storage.layout import stream_id
from lakequeue.storage.messages.append import NewMessage

Entries = Mapping[int, ValidEntry]
"""Messages, keyed by their index in the caller's batch."""

Send: TypeAlias = SendEntry | Sequence[SendEntry]
"""One message, or a batch of messages."""
Outcome: TypeAlias = SendResult | BatchResult | QueueServiceError | QueueClientError
"""Result of one send: the result of a message or of a batch, or an error."""

Tracing: TypeAlias = Callable[[str, str, Sequence[SendEntry]], AbstractContextManager[Sequence[SendEntry]]]
tracing: Tracing | None = None
"""If set, called for each send with verb, queue name and entries. Returns a context that yields the entries to
send. ``lakequeue.otel`` sets this function.
"""


def send(queue: OpenQueue, entry: SendEntry) -> SendResult:
    with traced("send", queue, [entry]) as [entry], queue.service("send") as call:
        return cast(SendResult, _only(_each(queue, [entry], call)))


def send_batch(queue: OpenQueue, entries: Sequence[SendEntry]) -> BatchResult:
    """Sends a batch. Returns a result for each entry (BAT-4)."""
    with traced("send_batch", queue, entries) as entries, queue.service("send_batch") as call:
        return cast(BatchResult, _only(_each(queue, [entries], call)))


def send_each(queue: OpenQueue, sends: Sequence[Send]) -> list[Outcome]:
    """Makes the sends of separate callers. Returns an outcome for each send. Raises an error if all failed."""
    with queue.service("send_each") as call:
        return _each(queue, sends, call)


def send_once(queue: OpenQueue, sends: Sequence[tuple[SendEntry, str, int]]) -> list[Outcome | None]:
    """Sends messages of streams, in one commit per shard. ``sends`` has each message with its stream and batch
    number, in the order of the stream. A batch adds nothing if this batch or a later batch of its stream was sent
    before. Returns an outcome for each message; None if the message was sent before.

    Raises:
        QueueServiceError, QueueClientError: no message was sent.
    """

    def check() -> list[Any]:
        found: list[Any] = []
        for entry, stream, number in sends:
            try:
                valid = validate_entry(entry, queue.attributes)
                found.append(attrs.evolve(valid, batch=(stream_id(stream), number + 1)))
            except QueueServiceError as error:
                found.append(error)
        return found

    with queue.service("send_once") as call:
        outcomes = [None if outcome is _SENT_BEFORE else outcome for outcome in _deliver(queue, check)]
        call.messages = sum(isinstance(outcome, SendResult) for outcome in outcomes)
        return cast("list[Outcome | None]", outcomes)


_SENT_BEFORE = SendResult("", "", None, None)


def _each(queue: OpenQueue, sends: Sequence[Send], call: CallCounters) -> list[Outcome]:
    sizes = [1 if isinstance(given, SendEntry) else len(given) for given in sends]
    refused: dict[int, QueueServiceError] = {}

    def check() -> list[Any]:
        refused.clear()
        found: list[Any] = []
        for index, given in enumerate(sends):
            try:
                if isinstance(given, SendEntry):
                    found.append(validate_entry(given, queue.attributes))
                else:
                    found += validate_batch(given, queue.attributes)
            except QueueServiceError as error:
                refused[index] = error
                found += [error] * sizes[index]
        return found

    delivered = iter(_deliver(queue, check))
    outcomes: list[Outcome] = []
    for index, given in enumerate(sends):
        part = list(islice(delivered, sizes[index]))
        call.messages += sum(isinstance(outcome, SendResult) for outcome in part)
        if index in refused:
            outcomes.append(refused[index])
        elif isinstance(given, SendEntry):
            outcomes.append(cast(Outcome, part[0]))
        else:
            outcomes.append(_batch_result(queue, given, part))
    return outcomes


def _only(outcomes: list[Outcome]) -> SendResult | BatchResult:
    [outcome] = outcomes
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _batch_result(queue: OpenQueue, entries: Sequence[SendEntry], outcomes: Sequence[Any]) -> BatchResult:
    result = BatchResult()
    for index, (entry, outcome) in enumerate(zip(entries, outcomes, strict=True)):
        id = str(index) if entry.id is None else entry.id
        if isinstance(outcome, SendResult):
            result.successful.append(BatchSuccess(id, **attrs.asdict(outcome)))
        elif isinstance(outcome, BatchFailure):
            result.failed.append(outcome)
        else:
            result.failed.append(BatchFailure.of(id, outcome, queue.attributes.profile))
    return result


def traced(
    verb: str, queue: OpenQueue, entries: Sequence[SendEntry]
) -> AbstractContextManager[Sequence[SendEntry]]:
    """Yields the entries to send, with the caller's trace if there is one."""
    return nullcontext(entries) if tracing is None else tracing(verb, queue.name, entries)


def in_turn(queue: OpenQueue) -> list[OpenShard]:
    """Returns all shards in the order in which a send of this process tries them."""
    return [queue.shards[shard] for shard in in_home_order(queue.shards, queue.shards[0].shared.sends)]


def of_priority(queue: OpenQueue, shards: list[OpenShard], priority: int) -> list[OpenShard]:
    """Returns those of ``shards`` that take messages of this priority (JOB-5)."""
    return [shard for shard in shards if shard.number % queue.attributes.classes == priority]


def _deliver(
    queue: OpenQueue, check: Callable[[], list[Any]]
) -> list[SendResult | BatchFailure | QueueServiceError | QueueClientError]:
    """Appends the entries that ``check`` accepts, in one commit per shard. Returns the result of each entry."""
    version, checked = queue.validated(check)
    done: dict[int, SendResult | QueueServiceError] = {}
    failed: dict[int, QueueServiceError | QueueClientError] = {}
    while True:
        left = {
            n: e for n, e in enumerate(checked) if isinstance(e, ValidEntry) and n not in done and n not in failed
        }
        if not left:
            if done or failed or not queue.reload():
                break
            version, checked = queue.validated(check)
            continue
        stale = False
        for shards, entries in _by_shard(queue, left):
            try:
                with queue.root.storage_errors():
                    _append(queue, shards, entries, queue.attributes, version, done)
            except StaleAttributes:
                stale = True
            except (QueueServiceError, QueueClientError) as error:  # entries of other shards may be sent
                failed |= dict.fromkeys(entries.keys() - done.keys(), error)
        if stale:
            try:
                with queue.root.storage_errors():
                    queue.renew()
                version, checked = queue.validated(check)
            except (QueueServiceError, QueueClientError) as error:
                failed |= {index: error for index in left if index not in done and index not in failed}
    if failed and not done:
        raise next(iter(failed.values()))
    return [done.get(index) or failed.get(index) or entry for index, entry in enumerate(checked)]


def _by_shard(queue: OpenQueue, entries: Entries) -> Iterable[tuple[list[OpenShard], Entries]]:
    """Groups entries by their possible shards. A group or deduplication id leaves only one shard."""
    found: dict[tuple[int | None, int], dict[int, ValidEntry]] = {}
    for index, entry in entries.items():
        name = entry.group_id or "" if queue.attributes.by_group else entry.dedup_id
        shard = None if name is None else shard_of_group(name, len(queue.shards))
        if shard is None and entry.batch is not None:
            shard = entry.priority  # the first of its priority, however many shards are added
        found.setdefault((shard, entry.priority), {})[index] = entry
    order = in_turn(queue) if any(shard is None for shard, _ in found) else []
    return [
        (of_priority(queue, order, priority) if shard is None else [queue.shards[shard]], part)
        for (shard, priority), part in found.items()
    ]


def _append(
    queue: OpenQueue,
    shards: Sequence[OpenShard],
    entries: Entries,
    attributes: QueueAttributes,
    version: int,
    done: dict[int, SendResult | QueueServiceError],
) -> None:
    """Appends entries to the first of ``shards`` with space. After each commit, adds the results to ``done``."""
    id_format = attributes.profile_rules.message_id_format
    ids = new_message_ids(len(entries), queue.now(), id_format)
    left = {index: NewMessage(id, entry) for id, (index, entry) in zip(ids, entries.items(), strict=True)}
    for shard in shards:
        places = shard.sender.send(ShardSend(list(left.values()), queue.now, attributes, version))
        placed = {index: place for index, place in zip(left, places, strict=True) if place is not None}
        for index, place in placed.items():
            del left[index]
            sent = place.offset >= 0
            done[index] = _result(entries[index], place, shard.number, attributes.fifo) if sent else _SENT_BEFORE
        sizes = [len(entries[index].body.encode()) for index, place in placed.items() if place.offset >= 0]
        queue.tally(sent=len(sizes), sent_bytes=sum(sizes))
        if not left:
            return
    reason = "The queue stores as many messages as it may; delete some or raise {}."
    done |= dict.fromkeys(left, OverLimit(reason, names=["max_stored_messages"]))


def _result(entry: ValidEntry, place: Placed, shard: int, fifo: bool) -> SendResult:
    return SendResult(
        place.message_id,
        md5_of_body(entry.body),
        md5_of_attributes(entry.attributes),
        sequence_number(shard, place.offset) if fifo else None,
    )
