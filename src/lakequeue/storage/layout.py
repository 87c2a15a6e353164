"""Schemas, partitions, table properties, paths and application ids of a root.

A root has the tables ``queues``, ``stats`` and maybe ``schedules``. Each shard of a queue has the tables
``messages`` and ``receipts``, below ``q/<key>``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import attrs
import pyarrow as pa

LAYOUT_VERSION = 6
"""Version of the layout, in every row of ``queues``. Readers refuse any other layout version."""
HANDLE_KEY_BYTES = 32

CLOSED = 2**62
"""Number that is added to the version of the application id ``send``, to mark a shard as closed to sends."""

INSTANT = pa.timestamp("us", "UTC")

ATTRIBUTE_VALUE = pa.struct([("type", pa.string()), ("string_value", pa.string()), ("binary_value", pa.binary())])

QUEUES = pa.schema(
    [
        ("name", pa.string()),
        ("region", pa.string()),
        ("key", pa.string()),
        ("created_at", INSTANT),
        ("modified_at", INSTANT),
        ("deleted_at", INSTANT),
        ("attributes", pa.map_(pa.string(), pa.string())),
        ("attributes_version", pa.int64()),
        ("tags", pa.map_(pa.string(), pa.string())),
        ("move_tasks", pa.string()),
        ("shards", pa.int32()),
        ("handle_key", pa.binary()),
        ("layout_version", pa.int32()),
    ]
)

# Packing columns into a struct, as in RECEIPTS, would not speed up appends.
MESSAGES = pa.schema(
    [
        ("base_offset", pa.int64()),
        ("opened_at", INSTANT),
        ("position", pa.int64()),
        ("message_id", pa.string()),
        ("body", pa.string()),
        ("message_attributes", pa.map_(pa.string(), ATTRIBUTE_VALUE)),
        ("group_id", pa.string()),
        ("dedup_id", pa.string()),
        ("sender_id", pa.string()),
        ("trace_header", pa.string()),
        ("sent_at", INSTANT),
        ("delay_seconds", pa.float64()),
        ("send_id", pa.string()),  # Of a bulk send.
        # For a message from another queue: that queue's ARN, and the history of a dead letter (DLQ-4, RET-7).
        ("source_queue", pa.string()),
        ("source_receive_count", pa.int32()),
        ("first_sent_at", INSTANT),
        ("first_received_at", INSTANT),
        ("dead_letter_note", pa.string()),  # JSON; see `model.failures`.
        ("moved_at", INSTANT),
        ("emptied", pa.bool_()),  # True if the compactor removed the content; see `emptied_rows`.
        ("only_for", pa.string()),
    ]
)
MESSAGE_PARTITIONS = ["base_offset", "opened_at"]
ADDED = {"first_received_at", "dead_letter_note", "moved_at", "emptied", "only_for"}
"""Columns that older files may lack. A missing column is read as NULL. Add the name of each new column here."""


def message_rows(rows: pa.Table) -> pa.Table:
    """Returns rows with the columns that a file of ``messages`` has, in the same order and with the same types."""
    file = FILES["messages"]
    return rows if rows.schema.equals(file) else rows.select(file.names).cast(file)


def rows_of(columns: Sequence[pa.Array], kind: pa.StructType) -> pa.Table:
    """Builds a table from arrays, with the columns of ``kind``. Skips Arrow's slow comparison of each type."""
    rows = pa.Array.from_buffers(kind, len(columns[0]), [None], children=columns)
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(rows)])


class ColumnArrays:
    """Builds Arrow arrays of the columns ``fields`` from lists of values."""

    def __init__(self, fields: Iterable[pa.Field]) -> None:
        self._kinds = [(field.name, field.type) for field in fields]
        self._nulls = lru_cache(8)(lambda count: [pa.nulls(count, kind) for _, kind in self._kinds])

    def arrays(self, values: Mapping[str, Sequence[Any]], count: int) -> list[pa.Array]:
        """Returns an array for each column. A column without values gets an array of NULLs."""
        return [
            pa.array(found, kind) if found.count(None) < len(found) else null
            for (name, kind), null in zip(self._kinds, self._nulls(count), strict=True)
            for found in [values.get(name, ())]
        ]


def buffer_bytes(rows: pa.Table) -> int:
    """Returns the bytes of the buffers of ``rows``. A buffer that chunks share may count more than once."""
    return sum(batch.get_total_buffer_size() for batch in rows.to_batches())  # Faster than the table's own method.


def with_column(rows: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Returns the rows with other values in an existing column."""
    return rows.set_column(rows.schema.get_field_index(name), name, values)


FAILURE = pa.struct([("error", pa.string()), ("text", pa.string()), ("at", INSTANT), ("consumer", pa.string())])
"""Reason why a handler failed. The fields are those of ``model.failures.DeadLetterReason``."""
RUN = pa.struct(
    [
        ("lease_id", pa.string()),
        ("receive_count", pa.int32()),
        ("receives_before", pa.int32()),
        ("visible_at", INSTANT),
        ("received_at", INSTANT),
        ("first_received_at", INSTANT),
        ("attempt_id", pa.string()),
        ("attempted_at", INSTANT),
        ("attempt_place", pa.int32()),
        ("consumer", pa.string()),
        ("failure", FAILURE),
        ("failed_together", pa.int32()),
        ("failed_attempts", pa.list_(FAILURE)),
        ("move_number", pa.int64()),
        ("move_target", pa.struct([("key", pa.string()), ("shards", pa.int32()), ("by_group", pa.bool_())])),
        ("move_note", pa.string()),
        ("move_redrive", pa.bool_()),
        ("delivery_slot", pa.int32()),
        ("delivery_number", pa.int64()),
    ]
)
"""The state that all messages of a run share. See ``shard.runs.Run``. The head row has NULL instead."""
TRACKED = pa.list_(
    pa.struct(
        [
            ("track_id", pa.string()),
            ("first_offset", pa.int64()),
            ("last_offset", pa.int64()),
            ("ends", pa.map_(pa.string(), pa.int64())),
        ]
    )
)
"""For each tracked send: its offsets, and how many messages ended in each way, such as ``deleted``."""
HEAD = pa.struct(
    [
        ("epoch", pa.int64()),
        ("head_offset", pa.int64()),
        ("floor_offset", pa.int64()),
        ("purged_offset", pa.int64()),
        ("purged_at", INSTANT),
        ("closed", pa.bool_()),
        ("move_number", pa.int64()),
        ("committed_at", INSTANT),
        ("attributes", pa.map_(pa.string(), pa.string())),
        ("attributes_version", pa.int64()),
        ("released_offset", pa.int64()),
        ("paced_to", INSTANT),
        ("tracked", TRACKED),
        ("delivery_table", pa.string()),
        ("emptying", pa.string()),
    ]
)
"""State of the shard, on the head row only; see ``shard.runs.Head``. The field ``tracked`` is never written."""
# Each top-level column has its cost: a MERGE of 27 took delta-rs 51 ms, of the same data in these six 24-32 ms.
RECEIPTS = pa.schema(
    [
        ("settled", pa.bool_()),
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("state", pa.string()),
        ("run", RUN),
        ("head", HEAD),
    ]
)
RECEIPT_PARTITIONS = ["settled"]

STATS = pa.schema(
    [
        ("day", pa.string()),
        ("region", pa.string()),
        ("queue", pa.string()),
        ("key", pa.string()),
        ("minute", INSTANT),
        ("visible", pa.int64()),
        ("in_flight", pa.int64()),
        ("delayed", pa.int64()),
        ("rewindable", pa.int64()),
        ("oldest_age", pa.float64()),
        ("sent", pa.int64()),
        ("held", pa.int64()),
    ]
)
STATS_PARTITIONS = ["day"]

SCHEDULES = pa.schema(
    [
        ("name", pa.string()),
        ("region", pa.string()),
        ("queue", pa.string()),
        ("body", pa.string()),
        ("cron", pa.string()),
        ("tz", pa.string()),
        ("missed", pa.string()),
        ("group_id", pa.string()),
        ("priority", pa.int32()),
        ("created_at", INSTANT),
        ("next_due", INSTANT),
        ("id", pa.string()),
        ("paused", pa.bool_()),
        ("last_due", INSTANT),
        ("last_error", pa.string()),
    ]
)
PARTITIONS: tuple[list[str], ...] = ([], MESSAGE_PARTITIONS, RECEIPT_PARTITIONS, STATS_PARTITIONS)
"""All valid lists of partition columns. Each table has one of these lists."""


def _columns(schema: pa.Schema, partitions: Sequence[str] = ()) -> pa.Schema:
    return pa.schema([field for field in schema if field.name not in partitions])


FILES = {
    "queues": pa.schema([QUEUES.field("layout_version")]),  # The catalog checks the other columns by this version.
    "messages": _columns(MESSAGES, MESSAGE_PARTITIONS),
    "receipts": _columns(RECEIPTS, RECEIPT_PARTITIONS),
    "stats": _columns(STATS, STATS_PARTITIONS),
    "schedules": SCHEDULES,
}
"""Columns of each table's data files, by the name of the table. Data files have no partition columns."""

HEAD_STATE = "head"
HEAD_OFFSET = -1


@attrs.frozen
class Retention:
    """How long a table keeps files and log entries that its newest snapshot does not need."""

    file_minutes: int
    log_minutes: int = 10
    # Object stores have no lock. Only age protects files that a stopped process still needs.
    remote_file_hours: int = 48
    remote_log_minutes: int = 7 * 24 * 60


PINNED_HOURS = 24
"""Hours for which files are kept for running leases and bulk sends, which take at most 12 hours."""

# Readers read all files of their snapshot at once.
QUEUES_RETENTION = Retention(file_minutes=PINNED_HOURS * 60)
# Every operation leaves files. Readers that take longer call `cleaning.pin_files`.
MESSAGES_RETENTION = RECEIPTS_RETENTION = Retention(file_minutes=1)
STATS_RETENTION = Retention(file_minutes=PINNED_HOURS * 60)

_PROPERTIES = {
    # With a checkpoint every 100 commits, opening a table takes ~20 ms.
    "delta.checkpointInterval": "100",
    # The log is a part of the fence, so only `log_trimming` removes entries. Expired-log cleanup would also list
    # the log at each commit.
    "delta.enableExpiredLogCleanup": "false",
    # Only `cleaning` removes files. This limits a VACUUM by other programs.
    "delta.deletedFileRetentionDuration": f"interval {PINNED_HOURS} hours",
    # The point engine cannot read deletion vectors.
    "delta.enableDeletionVectors": "false",
}
OURS = {("delta.enableExpiredLogCleanup", "false")}
"""Property of tables whose log lakequeue trims itself."""
QUEUES_PROPERTIES = _PROPERTIES
MESSAGES_PROPERTIES = _PROPERTIES | {
    # Readers skip files by these five. Statistics on bodies would fill the log.
    "delta.dataSkippingStatsColumns": "position,sent_at,delay_seconds,source_receive_count,group_id",
}
RECEIPTS_PROPERTIES = _PROPERTIES | {"delta.dataSkippingStatsColumns": "first_offset,last_offset"}
SCHEDULES_PROPERTIES = _PROPERTIES
STATS_PROPERTIES = _PROPERTIES | {"delta.dataSkippingStatsColumns": "minute"}


RESERVE, RESERVE_FILES = "reserve", "reserve-files"
"""Names of the file and the directory that reserve space in a local root. See ``reserve``."""
CONSUMERS = "consumers"
"""Directory of the small files that show running consumers. The directory is not a table."""
ROOT_FOLDERS = {"queues", "stats", "schedules", "q", CONSUMERS, RESERVE, RESERVE_FILES}
"""Names of the files and directories that a root may have."""


def queues_path(root: str) -> str:
    return f"{root}/queues"


def stats_path(root: str) -> str:
    return f"{root}/stats"


def schedules_path(root: str) -> str:
    return f"{root}/schedules"


def tables_path(root: str, key: str) -> str:
    return f"{root}/q/{key}"


def messages_path(root: str, key: str, shard: int) -> str:
    return f"{root}/q/{key}/{shard}/messages"


def receipts_path(root: str, key: str, shard: int) -> str:
    return f"{root}/q/{key}/{shard}/receipts"


def table_name(path: str) -> str | None:
    """Returns the name that a shard's table has in its metadata. None if ``path`` is not such a table's path."""
    name = "/".join(path.rsplit("/", 3)[1:])
    return name if _TABLE_NAME.fullmatch(name) else None


def is_elsewhere(path: str, name: str | None) -> bool:
    """True if the table's name in its metadata belongs to another path. Older tables have no name."""
    return name is not None and _TABLE_NAME.fullmatch(name) is not None and name != table_name(path)


_TABLE_NAME = re.compile(r"[0-9a-z-]+/[0-9]+/(messages|receipts)")

COPYING = "copying"
"""Name of the file that marks an unfinished copy of a queue. Ignored once the queue has a row in the catalog."""

SEND_ID = "send"
"""Application id on ``messages``. Its version is the log's end offset, plus ``CLOSED`` if the log is closed."""
CLOCK_ID = "clock"
"""Application id on ``messages``. Its version is the last ``sent_at``, in microseconds."""
FILES_ID = "files"
"""Application id on ``messages``. Its version counts how often segments were merged or dropped."""
FORGOTTEN_ID = "forgotten"
"""Application id on ``messages``. Its version is the ledger epoch at which bodies were last removed."""
EMPTYING_ID = "emptying"
"""Application id on ``messages``. Its version is a random number, which identifies the last removal of bodies."""
ATTRIBUTES_ID = "attributes"
"""Application id on ``messages``. Its version is the version of the queue's attributes. Senders must validate
messages by this version of the attributes.
"""
PAUSE_ID = "pause"
"""Application id on ``messages`` and ``receipts``. Its version is the longest pause between two commits in
seconds, if a pause took a day or longer.
"""
RECEIPTS_ID = "receipts"
"""Application id on ``receipts``. Its version is the epoch of the ledger. The head row repeats the epoch."""

TURN_ID = "turn"
"""Application id on tables of object stores. Its version is the number of turns that processes have asked for."""


def stats_id(key: str) -> str:
    """Returns an application id on ``stats``. Its version is the minute since 1970 of the queue's last row."""
    return f"stats-{key}"


STATS_FILES_ID = "stats-files"
"""Application id on ``stats``. Its version is the number of times that files were merged."""
SCHEDULES_ID = "schedules"
"""Application id on ``schedules``. Its version is the number of changes."""


MOVE = "move-"


def move_id(source_key: str, shard: int) -> str:
    """Returns an application id on ``messages``. Its version is the number of the last move from this source."""
    return f"{MOVE}{source_key}-{shard}"


BULK = ("bulk-", "stream-")
"""Prefixes of the application ids of bulk sends on ``messages``."""


def bulk_id(send_id: str) -> str:
    """Returns an application id on ``messages``. Its version is 1 once the bulk send has landed."""
    return f"bulk-{send_id}"


def stream_id(stream: str) -> str:
    """Returns an application id on ``messages``. Its version is the stream's last batch number plus 1."""
    return f"stream-{stream}"


def end_of(version: int) -> int:
    """Returns the end offset of a log. The argument is the version of the application id ``send``."""
    return version - CLOSED if version >= CLOSED else version
