"""Operations that ``lakequeue.spark`` calls on public objects, such as queues. Not part of the public API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import pyarrow as pa

from lakequeue.entry_verbs import of_face
from lakequeue.lease import Lease, failed_of
from lakequeue.model.clock import MICROS
from lakequeue.operations import chosen_messages, compact, planned_sends, spark_tasks, undecided
from lakequeue.operations import lease as leases
from lakequeue.operations.compact import Passed as Passed
from lakequeue.operations.compact import QueuePass as QueuePass
from lakequeue.operations.lease import LeasedMessages
from lakequeue.operations.message_states import SCHEMA, names_are
from lakequeue.operations.planned_sends import PlannedSend
from lakequeue.queue import Queue
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.shard.commands import LeaseCounts
from lakequeue.storage.bulk.arrow_files import Written
from lakequeue.storage.bulk.bad_rows import OnBadRow, option_problems
from lakequeue.storage.bulk.lease_batches import SCHEMA as LEASE_COLUMNS
from lakequeue.storage.bulk.lease_batches import LeaseTask, message_table
from lakequeue.storage.bulk.message_rules import spelled
from lakequeue.storage.bulk.write_files import case_matters, columns_of, respelled
from lakequeue.storage.engines.spark_access import arrow_schema as arrow_schema
from lakequeue.storage.engines.spark_access import quiet_about_pandas as quiet_about_pandas
from lakequeue.storage.roots import root_of
from lakequeue.storage.store_failures import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LEASE_COLUMNS", "LeaseTask", "OnBadRow", "PlannedSend", "Written", "option_problems"]
__all__ += [
    "case_matters",
    "columns_of",
    "failed_of",
    "first_line",
    "message_table",
    "names_are",
    "respelled",
    "root_of",
    "spelled",
]

_OF_SQL = ("queue", "region", "state", "visible_at", "first_received_at", "age", "source_queue", "moved_at")
COLUMNS = pa.schema([*LEASE_COLUMNS, *(SCHEMA.field(name) for name in _OF_SQL)])
"""Columns of the data source: the columns of ``Lease.messages``, then further columns of SQL's ``messages``.

A batch read has no receipt handles: ``receipt_handle`` is NULL. Of the further columns, a stream fills only
``queue``, ``region`` and ``state``. SQL's ``log_offset`` is ``offset`` here. Message attributes have types and
values; in SQL, message attributes are texts.
"""

_P = ParamSpec("_P")


def _taken_up(
    operation: Callable[Concatenate[OpenQueue, _P], LeasedMessages | None],
) -> Callable[Concatenate[Queue, _P], Lease | None]:
    def verb(queue: Queue, /, *args: _P.args, **kwargs: _P.kwargs) -> Lease | None:
        leased = operation(queue._runtime, *args, **kwargs)
        return None if leased is None else Lease(leased)

    return verb


# --- sessions, and how another process opens the same queue


def allow(queue: Queue, spark: SparkSession) -> None:
    queue._runtime.root.allow(spark)


def require_spark(queue: Queue, verb: str) -> SparkSession:
    return queue._runtime.root.require_spark(verb)


def place_of(queue: Queue) -> tuple[str, Mapping[str, str]]:
    """Returns a queue's root and storage options, including options from the environment."""
    root = queue._runtime.root
    return root.path, root.engine.store.portable_options


def poll_interval(queue: Queue) -> float:
    """Returns the seconds between polls for changes by other processes."""
    return queue._runtime.root.poll_interval / MICROS


# --- leases of micro-batches

held_lease = _taken_up(leases.held)
resumed_lease = _taken_up(leases.resumed)
lease_of_handle = _taken_up(leases.of_handle)
release_failed = of_face(leases.release)
is_taken = of_face(leases.taken)
failed_together = of_face(leases.messages_failed_together)
lease_tasks = of_face(leases.tasks_of)
claimed_lease = _taken_up(leases.lease)
decide_in_catalog = of_face(undecided.decide_in_catalog)
decide_all = of_face(undecided.decide_all)


def deliver(lease: Lease, rows: Any, failed: Mapping[str, str | None]) -> LeaseCounts:
    """Appends rows to the delivery table. Releases failed messages, and deletes the others."""
    return lease._deliver(() if rows is None else rows, failed)[1]


def lease_id(lease: Lease) -> str:
    return lease._runtime.lease_id


# --- messages with their states

message_tasks = of_face(spark_tasks.tasks_of)
tasks_of_message = of_face(chosen_messages.tasks_of_message)
read_messages = of_face(spark_tasks.read)

# --- compaction

compact_root = of_face(compact.compact_root)
why_only_here = of_face(compact.why_only_here)
can_be_dealt = of_face(compact.can_be_dealt)
why_tasks_cannot_read = of_face(spark_tasks.why_tasks_cannot_read)

# --- sends

plan_send = of_face(planned_sends.plan)
complete_send = of_face(planned_sends.complete)
discard_send = of_face(planned_sends.discard)
