"""The benchmark of Arrow without Spark. ``python arrow.py SIDE INPUT PATH`` runs one of its sides."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from time import perf_counter

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from lakequeue import LakeQueue

_BODY = 1_024


def ours(rows: pa.RecordBatchReader, path: str) -> int:
    queue = LakeQueue(path).create_queue("bulk")
    sent = queue.send_arrow(rows)
    lease = queue.lease(sent, 3_600)
    assert lease is not None
    found = _length(lease.batches())
    assert lease.delete().done == sent
    return found


def bare(rows: pa.RecordBatchReader, path: str) -> int:
    write_deltalake(path, rows)
    return _length(DeltaTable(path).to_pyarrow_dataset().to_batches())


def measured(side: str, data: str, path: str, rows: int) -> tuple[float, float]:
    """Runs a side in a process. Returns its seconds and its peak memory in MiB."""
    command = [sys.executable, __file__, side, data, path]
    done = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    assert done["bytes"] == rows * _BODY, f"{done['bytes']} bytes of {rows} rows"
    shutil.rmtree(path)
    return done["seconds"], done["peak"] / 1_024


def _length(batches: Iterator[pa.RecordBatch]) -> int:
    return sum(pc.sum(pc.binary_length(batch["body"])).as_py() for batch in batches if len(batch))


def _main(side: str, data: str, path: str) -> None:
    with pa.OSFile(data) as file:
        start = perf_counter()
        found = {"ours": ours, "bare": bare}[side](pa.ipc.open_stream(file), path)
        seconds = perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": seconds, "bytes": found, "peak": peak}))


if __name__ == "__main__":
    _main(*sys.argv[1:])
