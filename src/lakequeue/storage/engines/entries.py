"""Log entries of the point engine. A commit to an object store takes one request, while delta-rs sends five.

The commit fails if another process has committed the same version.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from lakequeue.storage import layout
from lakequeue.storage.delta_log import ACTIONS, ANSWERS, BASE, NEWEST, LiveFile, TableState, signed
from lakequeue.storage.engines.data_files import DataFile, partition_text

PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
_ENGINE = "lakequeue"
_TYPES = {
    **{pa.string(): "string", pa.binary(): "binary", pa.bool_(): "boolean", pa.date32(): "date"},
    **{pa.int32(): "integer", pa.int64(): "long", pa.float64(): "double", layout.INSTANT: "timestamp"},
}


def entry(
    operation: str,
    added: Iterable[DataFile],
    removed: Iterable[LiveFile],
    transactions: Mapping[str, int],
    token: str,
    metadata: Mapping[str, Any] | None = None,
    base: TableState | None = None,
    answers: str | None = None,
) -> list[Mapping[str, Any]]:
    """Returns the actions of a commit that follows ``base`` (DUR-86). ``answers`` is JSON, by request id."""
    now = _now()
    return _with_info(
        operation,
        now,
        token,
        base,
        [
            *([] if metadata is None else [{"metaData": metadata}]),
            *({"add": add_action(file, now)} for file in added),
            *({"remove": _remove(file)} for file in removed),
            *_ids(transactions),
        ],
        answers,
    )


def first_entry(
    path: str,
    schema: pa.Schema,
    partitions: Sequence[str],
    properties: Mapping[str, str],
    files: Iterable[DataFile] = (),
    transactions: Mapping[str, int] | None = None,
) -> bytes:
    """Returns the log entry that creates a table, with its first files and application ids if any."""
    now = _now()
    metadata = {
        "id": str(uuid.uuid4()),
        "name": layout.table_name(path),
        "description": None,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema_text(schema),
        "partitionColumns": list(partitions),
        "createdTime": now,
        "configuration": dict(properties),
    }
    created = _with_info(
        "CREATE TABLE",
        now,
        "created",
        None,
        [
            {"protocol": PROTOCOL},
            {"metaData": metadata},
            *({"add": add_action(file, now)} for file in files),
            *_ids(transactions or {}),
        ],
    )
    return encoded(created)


def schema_text(schema: pa.Schema) -> str:
    return json.dumps(_struct(schema))


def _struct(fields: Iterable[pa.Field]) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [
            {"name": field.name, "type": _type(field.type), "nullable": field.nullable, "metadata": {}}
            for field in fields
        ],
    }


def _type(type_: pa.DataType) -> Any:
    if pa.types.is_struct(type_):
        return _struct(type_)
    if pa.types.is_list(type_):
        return {"type": "array", "elementType": _type(type_.value_type), "containsNull": True}
    if pa.types.is_map(type_):
        key, value = _type(type_.key_type), _type(type_.item_type)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    return _TYPES[type_]


def _with_info(
    operation: str,
    now: int,
    token: str,
    base: TableState | None,
    others: Sequence[Mapping[str, Any]],
    answers: str | None = None,
) -> list[Mapping[str, Any]]:
    """Returns a commit's actions: first the action that describes the commit, then ``others``."""
    newest = None if base is None else next(reversed(base.live), None)
    named = {BASE: base and base.token, NEWEST: newest, ANSWERS: answers}
    metrics = {
        ACTIONS: str(1 + len(others)),  # an entry that was cut off at the end of a line is torn, too
        "checksum": "00000000",
        **{name: text for name, text in named.items() if text is not None},
    }
    info = {
        "timestamp": now,
        "operation": operation,
        "operationParameters": {},
        "engineInfo": _ENGINE,
        "userMetadata": token,
        "operationMetrics": metrics,
    }
    return [{"commitInfo": info}, *others]


def _ids(transactions: Mapping[str, int]) -> list[dict[str, Any]]:
    return [{"txn": {"appId": app_id, "version": version}} for app_id, version in transactions.items()]


def add_action(file: DataFile, now: int) -> dict[str, Any]:
    """Returns the action that adds a file to the table. ``now`` is in milliseconds."""
    return {
        "path": quote(file.path, safe="/="),
        "partitionValues": dict(file.partition),
        "size": file.size,
        "modificationTime": now,
        "dataChange": True,
        "stats": file.statistics(),
    }


def _remove(file: LiveFile) -> dict[str, Any]:
    # without the time of removal: with it, a checkpoint lists all that was removed within a day, and 100,000 files
    # cost 130 ms each time
    return {
        "path": file.path,
        "dataChange": True,
        "extendedFileMetadata": True,
        "partitionValues": {name: partition_text(value) for name, value in file.partition.items()},
        "size": file.size,
    }


def encoded(actions: Iterable[Mapping[str, Any]]) -> bytes:
    return signed("".join(f"{json.dumps(action)}\n" for action in actions).encode())


def _now() -> int:
    return int(time.time() * 1000)
