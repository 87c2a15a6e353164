"""Batches as Arrow tables, for handlers that work on columns (JOB-4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from lakequeue.frame_verbs import LEASE_COLUMNS
from lakequeue.model.messages import AttributeValue, Message

COLUMNS = pa.schema([field for field in LEASE_COLUMNS if field.name not in ("delay_seconds", "shard", "offset")])
"""The columns of ``Lease.arrow`` that a received message has."""


def table_of(messages: Sequence[Message]) -> pa.Table:
    """Returns messages as rows with ``COLUMNS``, in the same order."""
    columns: dict[str, Any] = {name: [getattr(message, name) for message in messages] for name in COLUMNS.names}
    columns["message_attributes"] = [
        [(name, _cell(value)) for name, value in attributes.items()]
        for attributes in columns["message_attributes"]
    ]
    return pa.Table.from_pydict(columns, schema=COLUMNS)


def _cell(value: AttributeValue) -> dict[str, str | bytes]:
    kind = "string_value" if isinstance(value.value, str) else "binary_value"
    return {"type": value.type, kind: value.value}
