"""The views as SQL text, which names the paths of the tables.

Catalogs use these views, and so do sessions whose tasks lack lakequeue. Other sessions use ``task_views``, which
needs 0.9 s for 16 shards instead of 7 s. A catalog cannot use tables ``USING lakequeue`` instead of these views:
Spark 4.2 can create such tables in a catalog, but cannot read them there.

Each query sees the newest snapshots. The views show the queues that existed when the views were registered. Queue
names are literals, so that a filter on ``queue`` skips other queues.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from lakequeue.errors import InvalidParameterValue, QueueClientError
from lakequeue.model.attributes import HIDDEN
from lakequeue.model.clock import from_micros, to_micros
from lakequeue.operations import group_depth
from lakequeue.operations.message_states import SCHEMA, log_columns
from lakequeue.operations.relations import SCHEMAS, shown_queues
from lakequeue.runtime.root import Root
from lakequeue.storage import layout, past_versions
from lakequeue.storage.bulk.lease_batches import SEQUENCE_NUMBER
from lakequeue.storage.catalog import QueueRow
from lakequeue.storage.delta_log import is_table
from lakequeue.storage.engines.spark_access import quoted
from lakequeue.storage.roots import spark_uri
from lakequeue.storage.store_failures import first_line
from lakequeue.storage.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TEMPORARY = "CREATE OR REPLACE TEMPORARY VIEW "
MOST_SHARDS = 100
"""Maximum number of shards. The number is limited because Spark scans each shard with separate jobs."""
_CHUNK = 100_000
"""Number of consecutive offsets whose messages one task of Spark joins with their runs."""

_TYPES = {
    **{pa.string(): "STRING", layout.INSTANT: "TIMESTAMP", pa.bool_(): "BOOLEAN"},
    **{pa.int32(): "INT", pa.int64(): "BIGINT", pa.float64(): "DOUBLE"},
}


def sql_type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"ARRAY<{sql_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<{sql_type(kind.key_type)}, {sql_type(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{field.name}: {sql_type(field.type)}' for field in kind)}>"
    return _TYPES[kind]


_RUN_FIELDS = (
    *("settled", "last_offset", "state", "receive_count"),
    *("visible_at", "first_received_at", "consumer", "failed_attempts", "delivery_number"),
)
_MESSAGE_FIELDS = ["message_id", *(name for name in log_columns(SCHEMA.names) if name != "message_id"), "emptied"]
_ATTEMPTS = sql_type(SCHEMA.field("attempts").type)


def _later(instant: str, seconds: str) -> str:
    return f"timestamp_micros(unix_micros({instant}) + CAST(round({seconds} * 1e6D) AS BIGINT))"


_RELEASED = "'visible', 'in_flight', 'delayed'"
_STORED = f"{_RELEASED}, 'held', 'moving', 'undecided'"
_AVAILABLE_AT = f"""coalesce(run.visible_at, CASE
    WHEN coalesce(delay_seconds, head.delay) > 0 THEN {_later("sent_at", "coalesce(delay_seconds, head.delay)")}
END)"""
_SENT_AT = "coalesce(first_sent_at, sent_at)"
_GONE_AT = _later(_SENT_AT, "head.retention")


def create(spark: SparkSession, statements: Sequence[str]) -> None:
    """Runs the statements in a session. Raises QueueClientError without Delta, or if a catalog refuses a view."""
    from pyspark.errors import PySparkException

    for statement in statements:
        try:
            spark.sql(statement)
        except PySparkException as error:
            said = f"the views cannot be created: {first_line(error)}"
            if not spark.conf.get("spark.sql.catalog.spark_catalog", None):
                said = (
                    "SQL views need Delta in the session: its jar, "
                    "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension and "
                    "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog"
                )
            if "to length 32700" in str(error):  # Derby, which Hive uses where no other database is set up
                said = (
                    "the views cannot be created: the metastore's database is Derby, which keeps 32,700 "
                    f"characters of a view, and one has {len(statement):,}; another database keeps longer ones"
                )
            raise QueueClientError(said) from error


def statements_of(
    root: Root, now: datetime | None, as_of: datetime | None, schema: str | None = None
) -> list[str]:
    """Returns SQL that creates or replaces the views (DLT-5). The session needs Delta's extension and catalog.

    Register the views again after a cap on delayed messages was set. Otherwise the views do not show held
    messages.

    Args:
        root: the root whose queues the views show.
        now: the instant at which states are computed. Default: ``as_of`` if given, else the time of each query.
        as_of: instant of the table versions and queues; None for now.
        schema: schema of persistent views, with or without its catalog; None for temporary views.

    Raises:
        InvalidParameterValue: ``schema`` is not a valid name of a schema.
        QueueClientError: the log of a table begins after ``as_of``, or there are more than ``MOST_SHARDS`` shards.
    """
    create = _TEMPORARY if schema is None else f"CREATE OR REPLACE VIEW {_place(schema)}."
    queues, now, store, path = shown_queues(root, now, as_of), now or as_of, root.engine.store, root.path
    shards = sum(queue.shards for queue in queues)
    if shards > MOST_SHARDS:
        raise QueueClientError(
            f"the SQL of views names each table, for at most {MOST_SHARDS} shards, and the queues of {path} have "
            f"{shards:,}: use register_views where Spark's tasks have lakequeue, or DuckDB"
        )
    with root.storage_errors():
        versions = {} if as_of is None else _versions_at(store, queues, as_of)
        compacted = is_table(store.folder(layout.stats_path(path)))
    if as_of is not None:
        queues = [queue for queue in queues if layout.receipts_path(path, queue.key, 0) in versions]
    instant = "current_timestamp()" if now is None else f"timestamp_micros({to_micros(now)})"
    receipts = ", ".join(SCHEMAS["receipts"].names[2:])
    branches: dict[str, Callable[[QueueRow], str]] = {
        "messages": lambda queue: f"SELECT {_columns('messages')} FROM ({_judged(path, queue, instant)})",
        "receipts": lambda queue: f"SELECT {_names(queue)}, {receipts} FROM ({_ledgers(path, queue)})",
        "history": lambda queue: (
            f"SELECT {_columns('history')} FROM ({_judged(path, queue, instant)}) WHERE rewindable"
        ),
        "queues": lambda queue: _queue(path, queue, instant),
        "groups": lambda queue: group_depth.statement(_judged(path, queue, instant), _is_fifo(queue)),
    }
    statements = []
    for view, branch in branches.items():
        text = " UNION ALL ".join(branch(queue) for queue in queues) or _nothing(SCHEMAS[view])
        for table, version in versions.items():  # tables are named by nothing else
            text = text.replace(_table(table), f"{_table(table)} VERSION AS OF {version}")
        statements.append(f"{create}{view} AS {text}")
    rows = f"SELECT {_columns('stats')} FROM {_table(layout.stats_path(path))}"
    return [*statements, f"{create}stats AS {rows if compacted else _nothing(SCHEMAS['stats'])}"]


def _versions_at(store: Store, queues: Sequence[QueueRow], as_of: datetime) -> dict[str, int]:
    found: dict[str, int] = {}
    for queue in queues:
        if from_micros(queue.created_at) <= as_of:
            shards, tables = range(queue.shards), (layout.messages_path, layout.receipts_path)
            paths = [table(store.root, queue.key, shard) for shard in shards for table in tables]
            numbers = {path: past_versions.version_at(store, path, to_micros(as_of)) for path in paths}
            if None not in numbers.values():  # else the queue was just being created
                found |= {path: number for path, number in numbers.items() if number is not None}
    catalog = layout.queues_path(store.root)
    number = past_versions.version_at(store, catalog, to_micros(as_of)) if found else None
    return {} if number is None else found | {catalog: number}


def _place(schema: str) -> str:
    parts = schema.split(".") if isinstance(schema, str) else []
    if not 1 <= len(parts) <= 2 or not all(parts):
        raise InvalidParameterValue.of(schema, "schema", "Must be SCHEMA or CATALOG.SCHEMA.")
    return ".".join(map(quoted, parts))


def _columns(view: str) -> str:
    return ", ".join(map(quoted, SCHEMAS[view].names))


def _nothing(schema: pa.Schema) -> str:
    nulls = ", ".join(f"CAST(NULL AS {sql_type(field.type)}) AS {quoted(field.name)}" for field in schema)
    return f"SELECT {nulls} WHERE false"


def _queue(root: str, queue: QueueRow, now: str) -> str:
    hidden = ", ".join(map(_text, HIDDEN))
    return f"""
        SELECT {_names(queue)}, created_at, modified_at,
            map_filter(attributes, (name, value) -> name NOT IN ({hidden})) AS attributes, tags, shards,
            visible, in_flight, delayed, held, rewindable, oldest_age, undecided
        FROM {_table(layout.queues_path(root))}
        CROSS JOIN (
            SELECT count_if(state = 'visible') AS visible,
                count_if(state IN ('in_flight', 'moving')) AS in_flight,
                count_if(state = 'delayed') AS delayed,
                count_if(state = 'held') AS held,
                count_if(state = 'undecided') AS undecided,
                count_if(rewindable) AS rewindable,
                max(CASE WHEN state IN ({_STORED}) THEN age END) AS oldest_age
            FROM ({_judged(root, queue, now)})
        )
        WHERE key = {_text(queue.key)}
    """


def _judged(root: str, queue: QueueRow, now: str) -> str:
    """Returns a query for messages with states. ``rewindable`` is True if a rewind may restore the message."""
    # Spark reads the ledger earlier than the log, so emptied rows of stored messages are omitted
    number = SEQUENCE_NUMBER if _is_fifo(queue) else "CAST(NULL AS STRING)"
    return f"""
        SELECT {_names(queue)}, message_id, state, group_id, {_SENT_AT} AS sent_at,
            CASE WHEN state IN ({_RELEASED}) THEN coalesce(available_at, sent_at) END AS visible_at,
            CASE
                WHEN state IN ({_STORED}) THEN coalesce(run.receive_count, source_receive_count, 0)
                WHEN state = 'deleted' AND run.visible_at IS NOT NULL THEN run.receive_count
            END AS receive_count,
            run.first_received_at,
            CASE WHEN state = 'deleted' THEN run.visible_at END AS settled_at,
            (unix_micros(instant) - unix_micros({_SENT_AT})) / 1e6D AS age,
            coalesce(body, '') AS body, coalesce(message_attributes, map()) AS message_attributes, dedup_id,
            delay_seconds, substring_index(source_queue, ':', -1) AS source_queue, moved_at,
            get_json_object(dead_letter_note, '$.reason') AS dead_letter_reason,
            coalesce(
                run.failed_attempts, from_json(dead_letter_note, 'attempts {_ATTEMPTS}').attempts
            ) AS attempts,
            CASE WHEN state = 'in_flight' THEN run.consumer END AS consumer,
            {number} AS sequence_number, shard, `offset` AS log_offset,
            coalesce(state = 'deleted' AND run.settled AND sent_at >= rewindable_from, false) AS rewindable
        FROM (
            SELECT *,
                CASE
                    WHEN gone_at <= instant AND run.delivery_number IS NULL THEN 'expired'
                    WHEN run IS NULL AND `offset` < head_offset THEN 'deleted'
                    WHEN run.settled THEN 'deleted'
                    WHEN run.state = 'moving' THEN 'moving'
                    WHEN run IS NULL AND `offset` >= held_from THEN 'held'
                    WHEN available_at <= instant AND run.delivery_number IS NOT NULL THEN 'undecided'
                    WHEN available_at IS NULL OR available_at <= instant THEN 'visible'
                    WHEN run.state = 'in_flight' THEN 'in_flight'
                    ELSE 'delayed'
                END AS state
            FROM (
                SELECT /*+ BROADCAST(head) */ message.*, head.head_offset, head.held_from, head.instant,
                    {_later("head.instant", "-head.rewind")} AS rewindable_from,
                    {_AVAILABLE_AT} AS available_at,
                    {_GONE_AT} AS gone_at
                FROM ({_with_runs(root, queue)}) AS message
                JOIN ({_heads_with_held(root, queue, now)}) AS head ON message.shard = head.shard
                WHERE `offset` >= head.purged_offset
            )
        )
        WHERE emptied IS NULL OR state IN ('deleted', 'expired')
    """


def _heads_with_held(root: str, queue: QueueRow, now: str) -> str:
    """Returns a query for the heads of shards, with the offset of the first held message, or NULL (INF-9)."""
    heads = _heads(root, queue, now)
    if "MaxDelayedMessages" not in queue.attributes:
        return f"SELECT *, CAST(NULL AS BIGINT) AS held_from FROM ({heads})"
    return f"""
        SELECT head.*,
            CASE WHEN last_delayed IS NOT NULL THEN greatest(last_delayed + 1, released_offset) END AS held_from
        FROM ({heads}) AS head
        LEFT JOIN (
            SELECT shard, `offset` AS last_delayed
            FROM (
                SELECT /*+ BROADCAST(head) */ message.shard, `offset`, head.delayed_limit,
                    row_number() OVER (PARTITION BY message.shard ORDER BY `offset`) AS place
                FROM ({_with_runs(root, queue, "delay_seconds IS NULL OR delay_seconds > 0")}) AS message
                JOIN ({heads}) AS head ON message.shard = head.shard
                WHERE `offset` >= head.purged_offset AND {_GONE_AT} > instant
                    AND {_AVAILABLE_AT} > instant AND run.visible_at IS NULL
                    AND (run.state = 'visible' OR `offset` >= head.head_offset)
            )
            WHERE place = delayed_limit
        ) AS filled ON head.shard = filled.shard
    """


def _with_runs(root: str, queue: QueueRow, only: str = "true") -> str:
    """Returns a query for messages, each with its run or NULL. A ledger filter would cost 15 more Spark jobs."""
    fields = ", ".join(_MESSAGE_FIELDS)
    no_fields = ", ".join(f"NULL AS {name}" for name in _MESSAGE_FIELDS)
    run = ", ".join(f"'{name}', {name}" for name in _RUN_FIELDS)
    # Spark's base64 breaks lines, and the one of `browse` does not
    base64 = "translate(base64(value.binary_value), concat(char(13), char(10)), '')"
    shown = {
        "sent_at": "coalesce(sent_at, opened_at) AS sent_at",
        "message_attributes": "transform_values(message_attributes, (name, value) -> "
        f"coalesce(value.string_value, {base64})) AS message_attributes",
    }
    fields_of_messages = ", ".join(shown.get(name, name) for name in _MESSAGE_FIELDS)
    return f"""
        SELECT shard, `offset`, {fields}, CASE WHEN last_run.last_offset >= `offset` THEN last_run END AS run
        FROM (
            SELECT *, last_value(begun, true) OVER (
                PARTITION BY shard, `offset` DIV {_CHUNK} ORDER BY `offset`, is_message
                ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
            ) AS last_run
            FROM (
                SELECT shard, base_offset + position AS `offset`, true AS is_message, {fields_of_messages},
                    NULL AS begun
                FROM ({_logs(root, queue)})
                WHERE {only}
                UNION ALL
                SELECT shard, greatest(first_offset, chunk * {_CHUNK}) AS `offset`, false AS is_message,
                    {no_fields}, named_struct({run}) AS begun
                FROM ({_ledgers(root, queue)})
                LATERAL VIEW explode(sequence(first_offset DIV {_CHUNK}, last_offset DIV {_CHUNK})) AS chunk
                WHERE chunk + first_offset >= 0
            )
        )
        WHERE is_message
    """


def _heads(root: str, queue: QueueRow, now: str) -> str:
    attributes = "try_element_at(first(attributes, true), "
    return f"""
        SELECT shard, max(head_offset) AS head_offset, max(purged_offset) AS purged_offset,
            greatest({now}, max(committed_at)) AS instant, coalesce(max(released_offset), 0) AS released_offset,
            CAST({attributes}'MaxDelayedMessages') AS BIGINT) DIV {queue.shards} AS delayed_limit,
            CAST({attributes}'MessageRetentionPeriod') AS DOUBLE) AS retention,
            CAST({attributes}'DelaySeconds') AS DOUBLE) AS delay,
            CAST({attributes}'RewindSeconds') AS DOUBLE) AS rewind
        FROM ({_ledgers(root, queue)})
        GROUP BY shard
    """


def _logs(root: str, queue: QueueRow) -> str:
    return " UNION ALL ".join(
        f"SELECT {shard} AS shard, * FROM {_table(layout.messages_path(root, queue.key, shard))}"
        for shard in range(queue.shards)
    )


def _ledgers(root: str, queue: QueueRow) -> str:
    fields = [f"run.{field.name}" for field in layout.RUN]
    fields += [f"head.{field.name}" for field in layout.HEAD if field.name not in layout.RUN.names]
    return " UNION ALL ".join(
        f"SELECT {shard} AS shard, settled, first_offset, last_offset, state, {', '.join(fields)} "
        f"FROM {_table(layout.receipts_path(root, queue.key, shard))}"
        for shard in range(queue.shards)
    )


def _is_fifo(queue: QueueRow) -> bool:
    return queue.attributes.get("FifoQueue") == "true"


def _names(queue: QueueRow) -> str:
    return f"{_text(queue.name)} AS queue, {_text(queue.region)} AS region"


def _table(path: str) -> str:
    return f"delta.{quoted(spark_uri(path))}"


def _text(value: str) -> str:
    """Returns a text as an SQL literal. A text that may need escapes is written in hex."""
    if re.fullmatch(r"[A-Za-z0-9_.-]*", value):
        return f"'{value}'"
    return f"decode(unhex('{value.encode().hex()}'), 'UTF-8')"
