"""Converts a root of layout 5 to layout 6. A later call continues a killed call."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakequeue.errors import QueueClientError
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.failures import Attempts, DeadLetterReason, dead_letter_note, parse_note, parse_reason
from lakequeue.runtime.calls import logged
from lakequeue.runtime.root import Root
from lakequeue.shard.runs import IN_FLIGHT, MOVING, Destination, MovePart, Run
from lakequeue.storage import layout
from lakequeue.storage.delta_log import LiveFile, entry_name, is_table, listed, read_checkpoint, read_entry
from lakequeue.storage.engines import entries
from lakequeue.storage.engines.locks import committing
from lakequeue.storage.engines.log_trimming import trim_below
from lakequeue.storage.engines.point import Engine, Table
from lakequeue.storage.ledger import ledger_files, read_head
from lakequeue.storage.parquet_files import ANY
from lakequeue.storage.roots import local_path

Progress = Callable[[int, int, str], None]
"""Arguments: number of converted tables, number of all tables, and queue of the next table ("" at the end)."""
_FORMER = 5
_EMPTIED = -1.0
"""Value of ``delay_seconds`` that marks an emptied message in layout 5."""
_TOGETHER = re.compile(r'\{"together": ([1-9][0-9]{0,9}), ')
_WATCH = re.compile(r"inotify wd:\w+ ino:(\w+) ")


def upgrade(root: Root, progress: Progress) -> int:
    """Converts all queues of a root. Returns how many queues were converted; see ``LakeQueue.upgrade``."""
    engine, path = Engine(root.engine.store), root.path
    with logged("upgrade", ""), root.storage_errors():
        try:
            root.rows()
            return 0
        except QueueClientError:
            if not is_table(engine.store.folder(layout.queues_path(path))):
                raise
            catalog = engine.open(layout.queues_path(path))
            files = catalog.files()
            parts = catalog.read(files)
            if {version for part in parts for version in part["layout_version"].to_pylist()} != {_FORMER}:
                raise
        _check_alone(path)
        with committing(layout.queues_path(path), exclusive=True):
            rows = [row for part in parts for row in part.to_pylist()]
            queues = [row for row in rows if row["deleted_at"] is None]
            tables = [
                (queue, shard, convert)
                for queue in queues
                for shard in range(queue["shards"])
                for convert in (_convert_log, _convert_ledger)
            ]
            for number, (queue, shard, convert) in enumerate(tables):
                progress(number, len(tables), queue["name"])
                convert(engine, path, queue["key"], shard, {row["key"]: row for row in rows})
            progress(len(tables), len(tables), "")
            named = [
                layout.with_column(
                    part, "layout_version", pa.array([layout.LAYOUT_VERSION] * len(part), pa.int32())
                )
                for part in parts
            ]
            _commit(catalog, files, named)
        return len(queues)


def _check_alone(root: str) -> None:
    """Raises QueueClientError if another process uses a local root. Without Linux's ``/proc``, does nothing."""
    local = local_path(root)
    if local is None or not os.path.isdir("/proc/self/fd"):
        return
    top = os.path.realpath(local)
    inodes = {os.stat(folder).st_ino for folder, _, _ in os.walk(top)}
    own = {*_ancestors(os.getpid())}
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in own):
        with suppress(OSError):
            if _has_open(pid, top, inodes) or _names(pid, top):
                raise QueueClientError(f"process {pid} uses {root}; end all processes that do, and upgrade again")


def _ancestors(pid: int) -> Iterator[int]:
    """Yields the ids of a process and its ancestors, such as a shell whose arguments contain the root."""
    while pid:
        yield pid
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:
            return


def _has_open(pid: int, top: str, inodes: set[int]) -> bool:
    """True if a process has opened a file below the directory ``top``, or watches a directory below it."""
    for number in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            target = os.readlink(f"/proc/{pid}/fd/{number}")
            if target.startswith(f"{top}/"):
                return True
            if target == "anon_inode:inotify":
                with open(f"/proc/{pid}/fdinfo/{number}", encoding="ascii") as info:
                    if not inodes.isdisjoint(int(found, 16) for found in _WATCH.findall(info.read())):
                        return True
    return False


def _names(pid: int, top: str) -> bool:
    """True if a process runs lakequeue with the root ``top``, according to its arguments or environment."""
    with open(f"/proc/{pid}/cmdline", "rb") as line, open(f"/proc/{pid}/environ", "rb") as environment:
        given = os.fsdecode(line.read()).split("\0")
        variables = os.fsdecode(environment.read()).split("\0")
    if not any("lakequeue" in each for each in given):
        return False
    paths = [each.removeprefix("--root=") for each in given if each]
    paths += [each.partition("=")[2] for each in variables if each.startswith("LAKEQUEUE_ROOT=")]
    folder = os.readlink(f"/proc/{pid}/cwd")
    return any(os.path.realpath(os.path.join(folder, each)) == top for each in paths if "\n" not in each)


# --- tables

Rows = Mapping[str, Mapping[str, Any]]
"""Rows of the catalog, keyed by the key of the queue."""


def _is_converted(table: Table, schema: pa.Schema) -> bool:
    return bool(table.state.metadata["schemaString"] == entries.schema_text(schema))


def _commit(
    table: Table, removed: Sequence[LiveFile], rows: Sequence[pa.Table], schema: pa.Schema | None = None
) -> None:
    """Replaces a table's ``removed`` files by ``rows``. Raises QueueClientError after a concurrent change."""
    metadata = schema and dict(table.state.metadata) | {
        "schemaString": entries.schema_text(schema),
        "configuration": dict(table.state.metadata["configuration"]),
        "format": {"provider": "parquet", "options": {}},
    }
    added = [table.write_file(each) for each in rows]
    data = entries.encoded(entries.entry("UPGRADE", added, removed, {}, "upgrade", metadata))
    table.sync_entries()
    if table.folder.create(entry_name(table.version + 1), data, new_folder=False) is None:
        reason = "was changed meanwhile; end all processes that use it, and upgrade again"
        raise QueueClientError(f"{table.path} {reason}")
    table.refresh()


def _begin_here(table: Table) -> None:
    """Removes all earlier versions from a table's log, and the files that only earlier versions name."""
    folder, found = table.folder, listed(table.folder)
    before = [file.name for number in found.entries for file in read_entry(folder, number).added]
    before += [file.name for number in found.checkpoints for file in read_checkpoint(folder, number).files()]
    if table.version not in found.checkpoints:
        table.checkpoint()
    with committing(table.path, exclusive=True):
        folder.remove(sorted({*before} - {file.name for file in table.files()}))
        trim_below(folder, table.version)


def _convert_log(engine: Engine, root: str, key: str, shard: int, queues: Rows) -> None:
    path = layout.messages_path(root, key, shard)
    if not is_table(engine.store.folder(path)):
        return
    table = engine.open(path)
    if not _is_converted(table, layout.MESSAGES):
        for file in table.files():
            [coded] = table.read([file], ["source_queue", "delay_seconds", "moved_at"])
            moved = pc.and_(pc.is_valid(coded["source_queue"]), pc.is_null(coded["moved_at"]))
            if pc.any(pc.or_kleene(moved, pc.equal(coded["delay_seconds"], _EMPTIED))).as_py():
                [rows] = table.read([file])
                _commit(table, [file], [_messages(layout.message_rows(rows), file)])
        _commit(table, [], [], layout.MESSAGES)
    _begin_here(table)


def _messages(rows: pa.Table, file: LiveFile) -> pa.Table:
    moved, letters = (pc.is_valid(rows[name]) for name in ("source_queue", "source_receive_count"))
    emptied = pc.fill_null(pc.equal(rows["delay_seconds"], _EMPTIED), False)
    notes = [
        note if note is None else _note(note) for note in pc.if_else(letters, rows["send_id"], None).to_pylist()
    ]
    for name, values in {
        "dead_letter_note": pa.array(notes, pa.string()),
        "moved_at": pc.if_else(moved, rows["sent_at"], None),
        "emptied": pc.if_else(emptied, True, pa.scalar(None, pa.bool_())),
        "send_id": pc.if_else(letters, None, rows["send_id"]),
        "delay_seconds": pc.if_else(emptied, None, rows["delay_seconds"]),
    }.items():
        rows = layout.with_column(rows, name, values)
    for name in layout.MESSAGE_PARTITIONS:
        field = layout.MESSAGES.field(name)
        rows = rows.append_column(field, pa.repeat(pa.scalar(file.partition[name], field.type), len(rows)))
    return rows.select(layout.MESSAGES.names)


def _convert_ledger(engine: Engine, root: str, key: str, shard: int, queues: Rows) -> None:
    path = layout.receipts_path(root, key, shard)
    if not is_table(engine.store.folder(path)):
        return
    table = engine.open(path)
    if not _is_converted(table, layout.RECEIPTS):
        files, head, runs = table.files(), None, dict[bool, list[Run]]({False: [], True: []})
        for file in files:
            with table.folder.parquet(file.name, file.size, ANY) as parquet:
                read = parquet.read(use_threads=False)
            for row in read.to_pylist():
                if row["state"] == layout.HEAD_STATE:
                    paced_to = row["run"] and row["run"]["visible_at"]
                    head = read_head(
                        {**row["head"], "paced_to": paced_to, "emptying": None, "delivery_table": None}
                    )
                else:
                    runs[file.partition["settled"]].append(_run(row, queues))
        if head is None:
            raise QueueClientError(f"{path} has no head; repair it with the lakequeue that made it")
        rows = ledger_files(head, *map(sorted, (runs[False], runs[True])))
        _commit(table, files, rows, layout.RECEIPTS)
    _begin_here(table)


# --- columns with several meanings


def _run(row: Mapping[str, Any], queues: Rows) -> Run:
    """Converts a run of layout 5, in which the state and ``attempted_at`` decide what some columns mean:

    - ``attempt_id``: an attempt, the note of a move, ``{"consumer": NAME}``, or a failure.
    - ``attempt_place``: the rank in an answer, or the receives of a redriven message if ``receive_count`` is 0.
    - ``move_number``: the number of a move, or the number of earlier receives.
    - ``target_key``: the target of a move, or failed attempts.
    """
    cells = row["run"]
    visible_at, received_at, first = (
        _micros(cells[f"{name}_at"]) for name in ("visible", "received", "first_received")
    )
    known = row["state"], cells["lease_id"], cells["receive_count"], visible_at, received_at, first
    run = Run(row["first_offset"], row["last_offset"], *known)
    note, number, key = cells["attempt_id"], cells["move_number"] or 0, cells["target_key"]
    if run.state == MOVING:
        redrive = not run.receive_count
        move = MovePart(number, _destination(key or "", queues), note and _note(note), redrive)
        return run._replace(receive_count=cells["attempt_place"] or run.receive_count, move=move)
    run = run._replace(receives_before=number, failed_attempts=_attempts(key))
    if cells["attempted_at"] is not None:
        place = cells["attempt_place"]
        return run._replace(attempt_id=note, attempted_at=_micros(cells["attempted_at"]), attempt_place=place)
    found = _TOGETHER.match(note or "")
    text, together = (note, None) if found is None else ("{" + note[found.end() :], int(found[1]))
    consumer = _consumer(text) if run.state == IN_FLIGHT else None
    return run._replace(consumer=consumer, failure=parse_reason(text), failed_together=together)


def _micros(instant: Any) -> int | None:
    return None if instant is None else round(instant.timestamp() * 1_000_000)


def _destination(text: str, queues: Rows) -> Destination:
    key, _, place = text.partition("#")
    if place:
        return Destination(key, int(place.lstrip("g")), place.startswith("g"))
    row = queues.get(key)  # the move began in a root of layout 4
    attributes = None if row is None else QueueAttributes.from_wire(dict(row["attributes"]))
    return Destination(key, row["shards"] if row else 1, attributes.by_group if attributes else False)


def _consumer(text: str | None) -> str | None:
    with suppress(ValueError, TypeError, KeyError):
        name = json.loads(text or "")["consumer"]
        return name if isinstance(name, str) else None
    return None


def _attempts(text: str | None) -> Attempts:
    """Converts failed attempts. Layout 5 has one entry for equal attempts, with their times in ``earlier``."""

    def listed_apart() -> Iterator[Mapping[str, Any]]:
        for entry in json.loads(text or "[]"):
            for at in (*entry.pop("earlier", ()), entry["at"]):
                yield entry | {"at": at}

    with suppress(ValueError, TypeError, KeyError, AttributeError):
        return parse_note(json.dumps({"attempts": list(listed_apart())}))[1]
    return ()


def _note(text: str) -> str | None:
    """Converts a dead letter's note. The old note is a failure, maybe with ``attempts``, or only attempts."""
    found: dict[str, Any] = {}
    with suppress(ValueError, TypeError):
        found = json.loads(text)
    attempts = _attempts(json.dumps(found.pop("attempts", None)) if "attempts" in found else None)
    reason: DeadLetterReason | None = parse_reason(json.dumps(found)) if found else None
    return dead_letter_note(reason, attempts or ((reason,) if reason else ()))
