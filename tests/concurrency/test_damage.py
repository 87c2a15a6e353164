"""Files that are missing, torn, or written by other programs are named, and never taken for something else."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from deltalake import DeltaTable, TableFeatures
from deltalake.exceptions import CommitFailedError
from typer.testing import CliRunner

from concurrency.harness import apart, elsewhere
from concurrency.staged import abandoned, stages
from insides import place_of, reopen
from lakequeue import DamagedTable, LakeQueue, Queue, QueueClientError, RedrivePolicy
from lakequeue.cli import app
from lakequeue.operations.attributes import make_tables
from lakequeue.storage import layout
from lakequeue.storage.delta_log import TableState, checkpoint_name, entry_name
from lakequeue.storage.engines import log_trimming, point
from lakequeue.storage.engines.log_trimming import trim_log
from lakequeue.storage.engines.point import Engine, Table
from lakequeue.storage.folder import Folder
from lakequeue.storage.messages import append
from lakequeue.storage.stores import Store
from lakequeue.testing import ManualClock

TABLES = ["messages", "receipts"]
HARM = [Path.unlink, lambda path: path.write_bytes(b""), lambda path: os.truncate(path, 99)]


@pytest.fixture
def queue(lq: LakeQueue) -> Queue:
    """Ten messages, of which the first three are in flight."""
    queue = lq.create_queue("orders")
    for number in range(10):
        queue.send(f"body {number}")
    queue.receive(max_messages=3, visibility_timeout=600)
    return queue


def folder(queue: Queue, table: str = "messages") -> Path:
    return Path(layout.tables_path(place_of(queue), queue.key)) / "0" / table


def last_entry(path: Path, back: int = 0) -> Path:
    return sorted((path / "_delta_log").glob("*.json"))[-1 - back]


def data_file(path: Path, number: int = -1) -> Path:
    """A file that the newest version names."""
    return path / sorted(DeltaTable(path).file_uris(), key=os.path.getmtime)[number]


def refused(queue: Queue, *names: str) -> None:
    """Every verb names what is damaged, and changes nothing."""
    before = sorted(path for path in folder(queue).parent.rglob("*") if "lock" not in path.name)
    for verb in (lambda q: q.receive(), lambda q: q.counts(), lambda q: q.peek()):
        with pytest.raises(DamagedTable) as caught:
            verb(elsewhere(queue))
        for name in names:
            assert name in str(caught.value)
        assert "lakequeue check" in str(caught.value) and "\n" not in str(caught.value)
    assert sorted(path for path in folder(queue).parent.rglob("*") if "lock" not in path.name) == before


@pytest.mark.spec("DUR-2")
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("back", [0, 1])
def test_an_empty_entry_is_no_empty_commit(queue: Queue, table: str, back: int) -> None:
    entry = last_entry(folder(queue, table), back if table == "messages" else 0)
    entry.write_bytes(b"")
    refused(queue, table, f"_delta_log/{entry.name} is empty")


@pytest.mark.spec("DUR-2")
def test_an_entry_that_was_cut_anywhere_is_torn(queue: Queue) -> None:
    entry = last_entry(folder(queue))
    whole = entry.read_bytes()
    lines = [index + 1 for index, byte in enumerate(whole) if byte == ord("\n")]
    for length in [1, lines[0] - 7, *lines[:-1], lines[0] + 30]:
        entry.write_bytes(whole[:length])
        with pytest.raises(DamagedTable, match=f"{entry.name} is torn"):
            elsewhere(queue).counts()
    entry.write_bytes(whole)
    assert elsewhere(queue).counts().visible == 7


@pytest.mark.spec("DUR-2")
def test_a_gap_in_a_log_is_reported(queue: Queue) -> None:
    last_entry(folder(queue), 2).unlink()
    refused(queue, "messages", "gap")


@pytest.mark.spec("DUR-2")
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("harm", HARM, ids=["missing", "empty", "short"])
def test_a_damaged_data_file_is_named(queue: Queue, table: str, harm: Callable[[Path], Any]) -> None:
    file = data_file(folder(queue, table), 3 if table == "messages" else -1)
    harm(file)
    with pytest.raises(DamagedTable, match=rf"{table} is damaged: {file.name}"):
        elsewhere(queue).receive()


@pytest.mark.spec("DUR-2")
@pytest.mark.parametrize("harm", [b"", b"PAR1 torn"])
def test_an_older_checkpoint_or_the_entries_replace_a_damaged_one(queue: Queue, harm: bytes) -> None:
    path = folder(queue)
    for _ in range(2):
        DeltaTable(path).create_checkpoint()
        queue.send("more")
    numbers = sorted(path.glob("_delta_log/*.checkpoint.parquet"))
    for checkpoint in reversed(numbers):
        checkpoint.write_bytes(harm)
        (path / "_delta_log" / "_last_checkpoint").write_bytes(b"")
        assert elsewhere(queue).counts().visible == 9
    elsewhere(queue).send("commits go on")
    Engine(Store(place_of(queue))).open(str(path)).checkpoint()
    assert DeltaTable(path).version() == 13, "other programs can read it again"
    numbers = sorted(path.glob("_delta_log/*.checkpoint.parquet"))
    numbers[-1].write_bytes(harm)
    for number in range(int(numbers[-1].name.partition(".")[0])):
        (path / entry_name(number)).unlink()
    refused(queue, numbers[-1].name)


@pytest.mark.spec("DUR-2")
def test_a_checkpoint_that_fails_is_logged_and_the_commit_is_kept(
    lq: LakeQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = lq.create_queue("orders")

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(point, "write_checkpoint", fail)
    for number in range(100):
        queue.send(f"body {number}")
    assert "a checkpoint of" in caplog.text and "no space left" in caplog.text
    assert queue.counts().visible == 100


@pytest.mark.spec("DUR-3")
@pytest.mark.parametrize(
    "spoil",
    [
        lambda path, name: (path / name).write_bytes(b""),
        lambda path, name: os.truncate(path / name, 100),
        lambda path, name: (path / name).rename(path / name.replace(".parquet", ".0000000001.0000000002.parquet")),
    ],
    ids=["empty", "torn", "of several parts"],
)
def test_a_log_is_trimmed_only_below_a_checkpoint_that_can_be_read(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path, str], Any]
) -> None:
    monkeypatch.setattr(log_trimming, "READING", 0.0)
    monkeypatch.setattr(log_trimming, "LOG_ENTRIES", 0)
    path = folder(queue)
    table = Engine(Store(place_of(queue))).open(str(path))
    table.checkpoint()
    spoil(path, checkpoint_name(table.version))
    trim_log(Store().folder(str(path)), layout.MESSAGES_RETENTION, 1)
    assert (path / entry_name(0)).exists()
    assert elsewhere(queue).counts().visible == 7
    table.checkpoint()
    trim_log(Store().folder(str(path)), layout.MESSAGES_RETENTION, 1)
    assert not (path / entry_name(0)).exists()
    assert elsewhere(queue).counts().visible == 7


@pytest.mark.spec("DUR-3")
def test_a_file_beyond_the_last_version_makes_no_log_longer(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_trimming, "READING", 0.0)
    path = folder(queue)
    Engine(Store(place_of(queue))).open(str(path)).checkpoint()
    (path / entry_name(2**63)).touch()
    trim_log(Store().folder(str(path)), layout.MESSAGES_RETENTION, 1)
    assert (path / entry_name(0)).exists()


@pytest.mark.spec("DUR-3")
def test_a_checkpoint_is_on_disk_and_was_read_before_anything_below_it_is_removed(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_trimming, "READING", 0.0)
    monkeypatch.setattr(log_trimming, "LOG_ENTRIES", 0)
    path = folder(queue)
    store = Store(place_of(queue), durability="power")
    table = Engine(store).open(str(path))
    table.checkpoint()
    checkpoint, log = str(path / checkpoint_name(table.version)), str(path / "_delta_log")
    events = events_of(monkeypatch, lambda: trim_log(store.folder(str(path)), layout.MESSAGES_RETENTION, 1))
    removed = [("unlink", str(path / entry_name(number))) for number in range(table.version)]
    order = [event for event in events if event[1].startswith(log)]
    assert order == [("sync", checkpoint), ("sync", log), ("read", checkpoint), *removed]


@pytest.mark.spec("DUR-4")
def test_a_head_beyond_the_end_of_the_log_refuses_and_no_offset_is_given_twice(queue: Queue) -> None:
    queue.receive(max_messages=10)
    for _ in range(3):
        last_entry(folder(queue)).unlink()
    refused(queue, "receipts", "head is at offset 10", "log ends at 7")
    with pytest.raises(DamagedTable, match="log ends at 7"):
        elsewhere(queue).send("would never come")
    assert DeltaTable(folder(queue)).transaction_version(layout.SEND_ID) == 7


@pytest.mark.spec("DUR-4")
def test_an_idle_sender_compares_a_log_that_was_put_back_alone(queue: Queue, tmp_path: Path) -> None:
    """It knows nothing that the backup does not have."""
    shutil.copytree(folder(queue), tmp_path / "backup")
    other = elsewhere(queue)
    other.send("lost")
    other.receive(max_messages=10)
    other.receive(max_messages=10)
    shutil.rmtree(folder(queue))
    shutil.copytree(tmp_path / "backup", folder(queue))
    with pytest.raises(DamagedTable, match="log ends at 10"):
        queue.send("would never come")
    assert DeltaTable(folder(queue)).transaction_version(layout.SEND_ID) == 10


@pytest.mark.spec("DUR-4")
def test_no_dead_letter_is_delivered_below_a_head(lq: LakeQueue, queue: Queue) -> None:
    queue.receive(max_messages=10)
    source = lq.create_queue("source", redrive_policy=RedrivePolicy(queue.name, 1))
    source.send("dead")
    source.receive(visibility_timeout=0)
    for _ in range(3):
        last_entry(folder(queue)).unlink()
    assert reopen(lq).queue("source").receive() == []
    assert DeltaTable(folder(queue)).transaction_version(layout.SEND_ID) == 7
    lq.repair(apply=True, force=True)
    reopen(lq).queue("source").compact()
    assert [message.body for message in elsewhere(queue).receive(max_messages=10)] == ["dead"]


@pytest.mark.spec("DUR-5")
def test_the_handler_learns_at_once_that_another_program_deleted_its_message(queue: Queue) -> None:
    DeltaTable(folder(queue)).delete("body = 'body 5'")
    refused(queue, "messages", "does not hold the messages from offset 5 on")


@pytest.mark.spec("DUR-6")
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(
    "feature, name",
    [(TableFeatures.DeletionVectors, "deletionVectors"), (TableFeatures.ChangeDataFeed, "changeDataFeed")],
)
def test_a_feature_that_another_program_added_is_refused_by_name(
    queue: Queue, table: str, feature: TableFeatures, name: str
) -> None:
    DeltaTable(folder(queue, table)).alter.add_feature(feature, allow_protocol_versions_increase=True)
    refused(queue, table, name)
    with pytest.raises(DamagedTable, match=name):
        queue.send("now") if table == "messages" else queue.receive()


@pytest.mark.spec("DUR-6")
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("feature", ["rowTracking", "inCommitTimestamp"])
def test_a_feature_that_only_writers_need_ends_a_commit_at_its_first_attempt(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, table: str, feature: str
) -> None:
    asked = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["appendOnly", feature]}
    entry = folder(queue, table) / entry_name(DeltaTable(folder(queue, table)).version() + 1)
    attempts = attempts_of(monkeypatch, lambda: entry.write_text(json.dumps({"protocol": asked})))
    with pytest.raises(DamagedTable, match=f"{table}.*the feature {feature}"):
        queue.send("now") if table == "messages" else queue.receive()
    assert attempts == [str(folder(queue, table))]
    refused(queue, table, f"the feature {feature}")


@pytest.mark.spec("ERR-2", "ERR-9")
@pytest.mark.parametrize("verb", [lambda queue: queue.send("now"), lambda queue: queue.receive()])
@pytest.mark.parametrize("error", [CommitFailedError("not a conflict"), OSError(errno.EIO, "broken disk")])
def test_only_a_conflict_is_a_lost_race(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, verb: Callable[[Queue], Any], error: Exception
) -> None:
    with monkeypatch.context() as patch:
        attempts = attempts_of(patch, lambda: raised(error))
        with pytest.raises(QueueClientError, match=str(error.args[-1])):
            verb(queue)
    assert len(attempts) == 1
    verb(queue)


def raised(error: Exception) -> None:
    raise error


def attempts_of(patch: pytest.MonkeyPatch, before: Callable[[], Any]) -> list[str]:
    """The tables of the commits that are tried from now on, one for each attempt; ``before`` is called in each."""
    attempts: list[str] = []
    create = Table._create_entry

    def attempt(table: Table, *arguments: Any, **named: Any) -> None:
        attempts.append(table.path)
        before()
        create(table, *arguments, **named)

    patch.setattr(Table, "_create_entry", attempt)
    return attempts


@pytest.mark.spec("DUR-6")
def test_a_table_that_only_grows_is_refused(queue: Queue) -> None:
    DeltaTable(folder(queue)).alter.set_table_properties({"delta.appendOnly": "true"})
    refused(queue, "messages", "delta.appendOnly")


@pytest.mark.spec("DUR-7")
def test_compaction_keeps_messages_of_a_queue_whose_row_was_lost(lq: LakeQueue, queue: Queue) -> None:
    lq.create_queue("other")
    catalog = Path(lq.root) / "queues" / "_delta_log"
    for entry in sorted(catalog.glob("*.json"))[1:]:
        entry.unlink()
    [after] = apart(lq.root, lq.clock, 1)
    after.create_queue("new")
    empty = Path(lq.root) / "q" / "empty"
    made = next(row for row in after._runtime.rows() if row.name == "new")
    make_tables(after._runtime, attrs.evolve(made, key="empty"))
    after.compact()
    assert folder(queue).exists() and not empty.exists()


def events_of(monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]) -> list[tuple[str, str]]:
    """Links, unlinks and syncs that a call makes, and checkpoints that a trimming reads, with the paths."""
    events: list[tuple[str, str]] = []
    fsync, link, unlink, read = os.fsync, os.link, os.unlink, log_trimming.read_checkpoint

    def synced(descriptor: int) -> None:
        events.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def linked(source: str, target: str, *, src_dir_fd: int | None, dst_dir_fd: int | None) -> None:
        above = "" if dst_dir_fd is None else os.readlink(f"/proc/self/fd/{dst_dir_fd}") + "/"
        link(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        events.append(("link", above + target))

    def unlinked(path: str, *, dir_fd: int | None = None) -> None:
        above = "" if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}") + "/"
        unlink(path, dir_fd=dir_fd)
        events.append(("unlink", above + path))

    def was_read(table: Folder, version: int) -> TableState:
        events.append(("read", table.path(checkpoint_name(version))))
        return read(table, version)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", synced)
        patch.setattr(os, "link", linked)
        patch.setattr(os, "unlink", unlinked)
        patch.setattr(log_trimming, "read_checkpoint", was_read)
        call()
    return events


@pytest.mark.spec("DUR-1")
@pytest.mark.parametrize("verb", ["send", "staged send", "receive", "send_arrow"])
def test_a_call_returns_when_its_files_its_entry_and_their_folders_are_on_disk(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    import pyarrow as pa

    monkeypatch.setenv("LAKEQUEUE_DURABILITY", "power")
    queue = LakeQueue(str(tmp_path / "root"), clock=clock).create_queue("orders")
    calls = {
        "send": lambda: queue.send("body"),
        "staged send": lambda: queue.send("body"),
        "receive": lambda: queue.receive(),
        "send_arrow": lambda: queue.send_arrow(pa.table({"body": ["a", "b"]})),
    }
    queue.send("first")
    path = folder(queue, "receipts" if verb == "receive" else "messages")
    if verb == "staged send":  # it commits that of another process, too
        abandoned(apart(tmp_path / "root", clock, 1)[0].queue("orders"), "other")
        stages(queue)
    before = set(DeltaTable(path).file_uris())
    events = events_of(monkeypatch, calls[verb])
    entry = next(index for index, event in enumerate(events) if event == ("link", str(last_entry(path))))
    added = [str(path / uri) for uri in set(DeltaTable(path).file_uris()) - before]
    assert added
    for file in added:
        assert ("sync", file) in events[:entry]
        assert ("sync", os.path.dirname(file)) in events[events.index(("sync", file)) : entry]
        while verb == "staged send" and (file := os.path.dirname(file)) != str(path):
            assert ("sync", os.path.dirname(file)) in events[:entry], "who made it may not have"
    assert len(added) == (2 if verb == "staged send" else 1)
    assert ("sync", str(path / "_delta_log")) in events[entry:]


@pytest.mark.spec("DUR-1")
@pytest.mark.parametrize("opened_before", [True, False])
def test_what_another_process_wrote_is_on_disk_before_an_answer_relies_on_it(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, opened_before: bool
) -> None:
    """A duplicate is answered without a commit; the original may not have been synced yet."""
    root = str(tmp_path / "root")
    here, there = apart(root, clock)
    sender = LakeQueue(root, clock=clock, durability="process").create_queue("orders.fifo", fifo=True)
    queue = LakeQueue(root, clock=clock, durability="power").queue("orders.fifo")
    if opened_before:
        queue.send("first", group_id="g", dedup_id="1")
    original = sender.send("second", group_id="g", dedup_id="2")
    answers: list[Any] = []
    events = events_of(monkeypatch, lambda: answers.append(queue.send("second", group_id="g", dedup_id="2")))
    path = Path(layout.messages_path(root, queue.key, 0))
    assert answers[0].message_id == original.message_id
    assert events and ("sync", str(path / "_delta_log")) in events
    assert not [event for event in events if event[0] == "link"]


@pytest.mark.spec("DUR-1")
def test_durability_is_checked_and_can_be_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lakequeue import InvalidParameterValue

    with pytest.raises(InvalidParameterValue, match='durability.*"power" or "process"'):
        LakeQueue(str(tmp_path), durability="maybe")  # type: ignore[arg-type]
    monkeypatch.delenv("LAKEQUEUE_DURABILITY")
    root = str(tmp_path / "root")
    queue = LakeQueue(root, durability="process").create_queue("orders")
    path = folder(queue)

    def syncs(call: Callable[[], Any]) -> list[str]:
        events = events_of(monkeypatch, call)
        assert ("link", str(last_entry(path))) in events
        return [where for kind, where in events if kind == "sync"]

    def command(*options: str) -> None:
        done = CliRunner().invoke(app, ["--root", root, *options, "send", "orders", "body"])
        assert done.exit_code == 0, done.output

    assert syncs(lambda: queue.send("scratch")) == []
    assert syncs(lambda: command("--durability", "process")) == []
    assert str(path / "_delta_log") in syncs(lambda: LakeQueue(root).queue("orders").send("by default"))
    assert str(path / "_delta_log") in syncs(command)


def test_a_segment_has_no_folder_of_its_own(queue: Queue) -> None:
    assert append.SEGMENT_COMMITS > 1
    assert len(Engine(Store(place_of(queue))).open(str(folder(queue))).files()) == 10
    assert [path.name for path in folder(queue).iterdir() if path.is_dir()] == ["_delta_log"]
