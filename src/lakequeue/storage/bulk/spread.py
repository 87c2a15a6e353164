"""Which shards of a standard queue get which rows of a bulk send.

They are contiguous ranges of about the same size; or the rows of message groups that live there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lakequeue.model.names import shard_of_group
from lakequeue.storage.bulk import staged_files
from lakequeue.storage.bulk.manifests import WaitingFile
from lakequeue.storage.engines.interface import DataFile
from lakequeue.storage.folder import Folder

LEAST = 100
"""Rows of a shard below which no file is cut: a commit to one more shard costs more than it gains."""
NEAR = 0.1
"""Part of a shard's rows by which its range may be longer or shorter, so that fewer files are cut."""


def spread(messages: Folder, files: Sequence[DataFile], shards: Sequence[int]) -> list[WaitingFile]:
    """The files, in their order, each with its shard; files that lie across the end of a range are cut.

    Each cut costs another writing of the rows beside it: one file at most for each shard but the last.

    Args:
        messages: the folder in which the files are.
        files: all rows of the send.
        shards: in the order in which they get rows.
    """
    rows = sum(file.rows for file in files)
    number = min(len(shards), max(len(files), rows // LEAST, 1))
    if rows < number * LEAST:  # as they are, the same number of files for each
        return [WaitingFile(shards[place * number // len(files)], file) for place, file in enumerate(files)]
    ends = _ends([file.rows for file in files], number)
    placed: list[WaitingFile] = []
    start = 0
    for file in files:
        cuts = [start, *(end for end in ends if start < end < start + file.rows), start + file.rows]
        for first, last in zip(cuts, cuts[1:], strict=False):
            part = file
            if len(cuts) > 2:
                kept = np.zeros(file.rows, bool)
                kept[first - start : last - start] = True
                part = staged_files.rewrite(messages, file, kept)
            shard = sum(end <= first for end in ends)
            placed.append(WaitingFile(shards[shard], part))
        if len(cuts) > 2:
            messages.remove([file.path])
        start += file.rows
    return placed


def spread_by_group(messages: Folder, files: Sequence[DataFile], shards: Sequence[int]) -> list[WaitingFile]:
    """The files, in their order, each cut into the rows of each shard, which the message group determines (FAI-5).

    Args:
        messages: the folder in which the files are.
        files: all rows of the send.
        shards: all shards of the queue.
    """
    if len(shards) == 1:
        return [WaitingFile(shards[0], file) for file in files]
    placed: list[WaitingFile] = []
    for file in files:
        with messages.parquet(file.path, file.size) as parquet:
            names = parquet.read(["group_id"], use_threads=False)["group_id"].combine_chunks().fill_null("")
        coded = names.dictionary_encode()
        home = np.array([shard_of_group(name, len(shards)) for name in coded.dictionary.to_pylist()])
        homes = home[coded.indices.to_numpy()]
        placed += [
            WaitingFile(int(shard), staged_files.rewrite(messages, file, homes == shard))
            for shard in np.unique(homes)
        ]
        messages.remove([file.path])
    return placed


def _ends(sizes: Sequence[int], number: int) -> list[int]:
    """Where the ranges of all shards but the last end: between two files where that is near enough."""
    edges, share = np.cumsum(sizes), sum(sizes) / number
    ends = []
    for end in range(1, number):
        nearest = int(edges[np.abs(edges - end * share).argmin()])
        ends.append(nearest if abs(nearest - end * share) <= NEAR * share else round(end * share))
    return ends
