"""Every instant that a root stores, by the schemas of its tables; read without lakequeue's code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from deltalake import DeltaTable

from lakequeue.storage import layout

SCHEMAS = {
    "queues": layout.QUEUES,
    "messages": layout.MESSAGES,
    "receipts": layout.RECEIPTS,
    "stats": layout.STATS,
    "schedules": layout.SCHEDULES,
}
IDS = {"messages.clock", "messages.schedule", "stats.minute of the last row"}
"""Instants that tables store as versions of application ids."""
TEXTS = {"queues.move_tasks"}
"""Instants inside JSON."""
Instants: TypeAlias = "set[tuple[str, datetime]]"
"""Instants by the name of their table and column."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def columns() -> set[str]:
    """The names of all instants of the layout."""
    return {name for table, schema in SCHEMAS.items() for name in _instants(table, schema)} | IDS | TEXTS


def _instants(prefix: str, fields: Any) -> Iterator[str]:
    for field in fields:
        name = f"{prefix}.{field.name}"
        if pa.types.is_timestamp(field.type):
            yield name
        elif pa.types.is_struct(field.type):
            yield from _instants(name, field.type)
        elif pa.types.is_list(field.type) and pa.types.is_struct(field.type.value_type):
            yield from _instants(name, field.type.value_type)


def stored(root: object) -> Instants:
    """All instants in the newest versions of the tables of a local root, but not in those of deleted queues."""
    found: Instants = set()
    logs = sorted(Path(str(root)).rglob("_delta_log"))
    tables = {log.parent: DeltaTable(str(log.parent)) for log in logs}
    rows = {path: table.to_pyarrow_table().to_pylist() for path, table in tables.items()}
    schedules = [row["id"] for path, kept in rows.items() if path.name == "schedules" for row in kept]
    [queues] = [kept for path, kept in rows.items() if path.name == "queues"]
    living = {row["key"] for row in queues if not row["deleted_at"]}
    for path, table in tables.items():
        if path.parents[2].name == "q" and path.parents[1].name not in living:
            continue
        for row in rows[path]:
            found |= set(_values(path.name, row))
            if path.name == "queues" and row["move_tasks"]:
                for task in json.loads(row["move_tasks"]):
                    for name in ("started", "written"):
                        found.add(("queues.move_tasks", _EPOCH + timedelta(milliseconds=task[name])))
        ids = {"messages": {"clock": ("messages.clock", 1)}, "stats": {}}.get(path.name, {})
        if path.name == "messages":
            ids |= {layout.stream_id(f"schedule-{each}"): ("messages.schedule", 1) for each in schedules}
        if path.name == "stats":
            ids = {layout.stats_id(key): ("stats.minute of the last row", 60_000_000) for key in living}
        for app_id, (name, unit) in ids.items():
            if version := table.transaction_version(app_id):
                found.add((name, _EPOCH + timedelta(microseconds=version * unit)))
    return found


def _values(prefix: str, row: dict[str, Any]) -> Iterator[tuple[str, datetime]]:
    for name, value in row.items():
        if isinstance(value, datetime):
            yield f"{prefix}.{name}", value
        elif isinstance(value, dict):
            yield from _values(f"{prefix}.{name}", value)
        elif isinstance(value, list):
            for each in value:
                yield from _values(f"{prefix}.{name}", each if isinstance(each, dict) else {})
