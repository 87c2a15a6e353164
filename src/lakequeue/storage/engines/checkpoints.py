"""Checkpoints of a Delta log, as the point engine writes them: a version as one Parquet file.

A checkpoint lists no removed files: entries name them without the time of removal, so none is kept for readers of
older versions; see ``cleaning`` for how long they stay.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakequeue.storage.delta_log import LAST_CHECKPOINT, LiveFile, Snapshot, checkpoint_name
from lakequeue.storage.engines.entries import text
from lakequeue.storage.folder import Folder

_TEXTS = pa.map_(pa.string(), pa.string())
_LIST = pa.list_(pa.string())
_ACTIONS = {
    "protocol": {
        **{"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32()},
        **{"readerFeatures": _LIST, "writerFeatures": _LIST},
    },
    "metaData": {
        **{"id": pa.string(), "name": pa.string(), "description": pa.string()},
        "format": pa.struct({"provider": pa.string(), "options": _TEXTS}),
        **{"schemaString": pa.string(), "partitionColumns": _LIST, "configuration": _TEXTS},
        "createdTime": pa.int64(),
    },
    "txn": {"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()},
    "add": {
        **{"path": pa.string(), "partitionValues": _TEXTS, "size": pa.int64(), "modificationTime": pa.int64()},
        **{"dataChange": pa.bool_(), "stats": pa.string()},
    },
    # readers expect the column
    "remove": {"path": pa.string(), "deletionTimestamp": pa.int64(), "dataChange": pa.bool_()},
}


def write_checkpoint(folder: Folder, snapshot: Snapshot) -> None:
    """Writes the checkpoint of a snapshot, and names it as the newest."""
    actions: dict[str, list[Mapping[str, Any]]] = {
        "protocol": [snapshot.protocol],
        "metaData": [snapshot.metadata],
        "txn": [{"appId": app_id, "version": version} for app_id, version in snapshot.transactions.items()],
        "add": list(map(_add, snapshot.files())),
        "remove": [],
    }
    number, before, columns = sum(map(len, actions.values())), 0, {}
    for name, found in actions.items():
        type_ = pa.struct(_ACTIONS[name])
        rest = pa.nulls(number - before - len(found), type_)
        columns[name] = pa.concat_arrays([pa.nulls(before, type_), pa.array(found, type_), rest])
        before += len(found)
    target = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), target, store_schema=False)
    content = target.getvalue().to_pybytes()
    folder.replace(checkpoint_name(snapshot.version), content)
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        if json.loads(folder.read(LAST_CHECKPOINT))["version"] > snapshot.version:
            return  # this process was stopped meanwhile
    newest = {"version": snapshot.version, "size": number, "sizeInBytes": len(content)}
    folder.replace(LAST_CHECKPOINT, json.dumps(newest | {"numOfAddFiles": len(actions["add"])}).encode())


def _add(file: LiveFile) -> dict[str, Any]:
    return {
        "path": file.path,  # as it was written: a removal must name the same
        "partitionValues": {name: text(value) for name, value in file.partition.items()},
        "size": file.size,
        "modificationTime": file.modified,
        "dataChange": False,
        "stats": file.statistics,
    }
