"""Ways to damage a queue's tables, as disks, power cuts and other programs do."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, TableFeatures

from insides import engine_of, forget
from lakequeue import LakeQueue, Message, Queue
from lakequeue.model.clock import MICROS, from_micros
from lakequeue.storage import layout
from lakequeue.storage.bulk import commit_files
from lakequeue.storage.delta_log import entry_name
from lakequeue.storage.engines.entries import encoded, entry
from lakequeue.storage.engines.point import write_file
from lakequeue.storage.ledger import Ledger
from lakequeue.storage.messages.merge_segments import _segment_rows
from lakequeue.storage.messages.read import log_files
from lakequeue.storage.repair.steps import commit_once
from lakequeue.testing import ManualClock


@attrs.define
class Victim:
    """A queue with one shard in a root, and the files of its tables."""

    root: str
    clock: ManualClock
    name: str = "orders"

    def lake(self) -> LakeQueue:
        """A new entry, as in another process."""
        forget()
        return LakeQueue(self.root, clock=self.clock)

    @property
    def queue(self) -> Queue:
        return self.lake().queue(self.name)

    @property
    def key(self) -> str:
        [row] = [row for row in self.lake()._runtime.rows() if row.name == self.name and row.deleted_at is None]
        return row.key

    @property
    def messages(self) -> Path:
        return Path(layout.messages_path(self.root, self.key, 0))

    @property
    def receipts(self) -> Path:
        return Path(layout.receipts_path(self.root, self.key, 0))

    def send(self, *bodies: str) -> None:
        """One commit for each body."""
        queue = self.queue
        for body in bodies:
            queue.send(body)

    def receive(self, limit: int = 1000) -> list[Message]:
        return self.queue.receive(limit, wait_time=0)

    def drain(self) -> list[str]:
        """Receives and deletes everything that is visible, in the order of arrival."""
        queue, found = self.queue, list[str]()
        while messages := queue.receive(100, wait_time=0):
            found += [message.body for message in messages]
            queue.delete_batch(messages).raise_for_failures()
        return found


_seven: list[tempfile.TemporaryDirectory[str]] = []


def victim_of_seven(folder: Path, clock: ManualClock) -> Victim:
    """A queue with seven messages: the first deleted, the next two in flight; on a clock that just began.

    Made once in a process; a copy is in the state of the original, as nothing on disk names its place.
    """
    if not _seven:
        _seven.append(tempfile.TemporaryDirectory())
        victim = Victim(f"{_seven[0].name}/root", ManualClock())
        victim.lake().create_queue("orders")
        victim.send(*"0123456")
        victim.queue.delete(victim.receive(3)[0])
    shutil.copytree(f"{_seven[0].name}/root", folder / "root")
    return Victim(str(folder / "root"), clock)


def entries(table: Path) -> list[Path]:
    """The log entries of a table, oldest first."""
    return sorted((table / "_delta_log").glob("*.json"))


def live(table: Path) -> list[Path]:
    """The data files of a table, in the order of writing."""
    paths = [Path(uri.removeprefix("file://")) for uri in DeltaTable(str(table)).file_uris()]
    return sorted(paths, key=lambda path: path.stat().st_mtime_ns)


def contents(root: str) -> dict[str, bytes]:
    """Every file of a root but locks and stamps of the clock."""
    return {
        str(path): path.read_bytes()
        for path in Path(root).rglob("*")
        if path.is_file() and ".lock" not in str(path) and path.name != "_clock"
    }


def empty(path: Path) -> None:
    path.write_bytes(b"")


def tear(path: Path) -> None:
    """Cuts the second half off."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def permute(path: Path) -> None:
    """Writes a file's rows in the opposite order."""
    rows = pq.read_table(path)
    pq.write_table(rows.take(list(range(len(rows)))[::-1]), path)


def truncated_checkpoint(victim: Victim) -> None:
    """The entries that it replaces are there."""
    table = engine_of(victim.lake()).open(str(victim.messages))
    table.checkpoint()
    [checkpoint] = (victim.messages / "_delta_log").glob("*.checkpoint.parquet")
    tear(checkpoint)


def lose_catalog_row(victim: Victim) -> None:
    root = victim.lake()._runtime
    row = root.catalog.live("local", victim.name)
    assert row is not None
    root.remove(row)


def change(table: Path, how: Callable[[DeltaTable], object]) -> None:
    """Lets delta-rs change a table, as a person with a notebook does."""
    how(DeltaTable(str(table)))


def give_twice(victim: Victim, back: int) -> None:
    """Sends a message, "twice", at the offset of another one, ``back`` before the last.

    A process did so that was paused in the middle of a send while a backup was restored.
    """
    table = engine_of(victim.lake()).open(str(victim.messages))
    file = log_files(table)[-1 - back]
    rows = layout.message_rows(file.rows_of(table, layout.FILES["messages"].names))
    rows = layout.with_column(rows, "message_id", pa.array(["twice"], pa.string()))
    rows = layout.with_column(rows, "body", pa.array(["twice"], pa.string()))
    data = write_file(
        table.folder, _segment_rows(rows, file.first, file.base, file.opened_at), layout.MESSAGE_PARTITIONS
    )
    ids = {layout.SEND_ID: file.last + 1, layout.CLOCK_ID: table.transaction(layout.CLOCK_ID)}
    table.folder.create(entry_name(table.version + 1), encoded(entry("WRITE", [data], [], ids, "late")))


def redate(victim: Victim, number: int, *, opened: int = 0, sent: int | None = 0, base: int = 0) -> None:
    """Gives a message another segment, opening and send time, in seconds from its own; None as in a bulk send.

    A process did so that sent by what it knew of a log, within a second after another state was restored.
    """
    table = engine_of(victim.lake()).open(str(victim.messages))
    file = log_files(table)[number]
    rows = _segment_rows(
        layout.message_rows(file.rows_of(table, layout.FILES["messages"].names)),
        file.first,
        base,
        file.opened_at + opened * MICROS,
    )
    at = None if sent is None else from_micros(file.opened_at + sent * MICROS)
    rows = layout.with_column(rows, "sent_at", pa.array([at], layout.INSTANT))
    table.exchange([file.file], [rows], {layout.FILES_ID: table.transaction(layout.FILES_ID) + 1}, "late")


def lose_and_repair(table: Path, number: int) -> None:
    """Lets delta-rs forget a file that is gone."""
    live(table)[number].unlink()
    change(table, lambda delta: delta.repair())


def lose_runs_and_repair(victim: Victim) -> None:
    """As for a large ledger: what stays has the head, and only lacks runs."""
    ledger = Ledger(engine_of(victim.lake()).open(str(victim.receipts)))
    head, runs, history = ledger.load()
    commit_once(ledger.table, ledger.rewrite(head.epoch, attrs.evolve(head, epoch=head.epoch + 1), runs, history))
    lose_and_repair(victim.receipts, -1)
    victim.clock.advance(1)
    assert [message.body for message in victim.receive(1)] == ["3"], "others go on"


def shift_run(victim: Victim, **values: str) -> None:
    """Gives the ledger two runs, at offsets 1 to 2 and 3, and lets delta-rs change the second."""
    victim.receive(1)
    change(victim.receipts, lambda table: table.update(values, predicate="first_offset = 3"))


DAMAGE: dict[str, Callable[[Victim], object]] = {
    "last entry of the log empty": lambda victim: empty(entries(victim.messages)[-1]),
    "three last entries of the log empty": lambda victim: [empty(each) for each in entries(victim.messages)[-3:]],
    "last entry of the log torn": lambda victim: tear(entries(victim.messages)[-1]),
    "entry in the middle of the log empty": lambda victim: empty(entries(victim.messages)[3]),
    "entry in the middle of the log gone": lambda victim: entries(victim.messages)[3].unlink(),
    "last entry of the ledger empty": lambda victim: empty(entries(victim.receipts)[-1]),
    "entry in the middle of the ledger empty": lambda victim: empty(entries(victim.receipts)[1]),
    "first entry of the ledger empty": lambda victim: empty(entries(victim.receipts)[0]),
    "first entry of the ledger gone": lambda victim: entries(victim.receipts)[0].unlink(),
    "file of the ledger gone": lambda victim: live(victim.receipts)[-1].unlink(),
    "file of the ledger empty": lambda victim: empty(live(victim.receipts)[-1]),
    "file of the ledger torn": lambda victim: tear(live(victim.receipts)[-1]),
    "ledger restored": lambda victim: change(victim.receipts, lambda table: table.restore(1)),
    "file of the ledger gone, and repaired by delta-rs": lambda victim: lose_and_repair(victim.receipts, -1),
    "runs of the ledger gone, and repaired by delta-rs": lose_runs_and_repair,
    "runs of the ledger overlap": lambda victim: shift_run(victim, first_offset="2"),
    "run of the ledger beyond its head": lambda victim: shift_run(victim, last_offset="99"),
    "ledger gone": lambda victim: shutil.rmtree(victim.receipts),
    "file of messages gone": lambda victim: live(victim.messages)[4].unlink(),
    "file of messages empty": lambda victim: empty(live(victim.messages)[4]),
    "file of messages torn": lambda victim: tear(live(victim.messages)[4]),
    "file of messages gone, and repaired by delta-rs": lambda victim: lose_and_repair(victim.messages, 4),
    "checkpoint torn": truncated_checkpoint,
    "offset given twice": lambda victim: give_twice(victim, 0),
    "older offset given twice": lambda victim: give_twice(victim, 2),
    "segment opened earlier for a message": lambda victim: redate(victim, 4, opened=-1),
    "segment opened later for a message": lambda victim: redate(victim, 4, opened=1),
    "message older than the one before": lambda victim: redate(victim, 4, opened=-1, sent=-1),
    "segment in two parts": lambda victim: redate(victim, 4, base=4),
    "segment in two parts by a bulk send": lambda victim: redate(victim, 4, sent=None, base=4),
    "row deleted": lambda victim: change(victim.messages, lambda table: table.delete("body = '4'")),
    "log restored": lambda victim: change(victim.messages, lambda table: table.restore(4)),
    "feature added": lambda victim: change(
        victim.messages,
        lambda table: table.alter.add_feature(
            TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
        ),
    ),
    "made append-only": lambda victim: change(
        victim.receipts, lambda table: table.alter.set_table_properties({"delta.appendOnly": "true"})
    ),
    "catalog row lost": lose_catalog_row,
    "last entry of the catalog empty": lambda victim: empty(entries(Path(victim.root) / "queues")[-1]),
}
"""Kinds of damage to a queue of seven messages, a commit each. The first three were received."""


def file_contents(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything below a directory by inode, time of change and content."""
    return {
        str(each): (found.st_ino, found.st_mtime_ns, b"" if each.is_dir() else each.read_bytes())
        for each in sorted(folder.rglob("*"))
        for found in [each.lstat()]
    }


def send_to_one_shard(queue: Queue, rows: pa.Table) -> None:
    """A bulk send that is killed after its first commit."""
    commits, commit = list[Any](), commit_files.ShardCommit.commit

    def killed(*given: Any, **more: Any) -> int:
        commits.append(given)
        if len(commits) == 2:
            raise SystemExit
        return commit(*given, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit_files.ShardCommit, "commit", killed)
        with pytest.raises(SystemExit):
            queue.send_arrow(rows, send_id="s1")
