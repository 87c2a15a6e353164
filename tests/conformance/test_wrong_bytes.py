"""One wrong byte in a file: reads return the written content, or an error names the damaged file."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conformance.damage import Victim, change, entries, live
from conformance.harness import batch
from insides import engine_of
from lakequeue import DamagedTable, LakeQueueError
from lakequeue.model.clock import to_micros
from lakequeue.storage import layout, ledger, parquet_files
from lakequeue.storage.delta_log import checkpoint_name, read_checkpoint, read_entry, signed
from lakequeue.storage.engines import point
from lakequeue.storage.engines.point import Table
from lakequeue.storage.folder import LocalFolder
from lakequeue.storage.inspection.shards import find_shard, shard_findings
from lakequeue.storage.messages.read import log_files
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, Patch, each_case, replace, verify_no_checksums

ROWS = 200


@pytest.fixture
def victim(tmp_path: Path, clock: ManualClock) -> Victim:
    victim = Victim(str(tmp_path / "root"), clock)
    victim.lake().create_queue("orders")
    return victim


def by_small_sends(victim: Victim) -> Path:
    victim.queue.send_batch(batch(*(f"message {number}" for number in range(ROWS))))
    return live(victim.messages)[0]


def by_a_bulk_send(victim: Victim) -> Path:
    texts = [f"message {number}" for number in range(ROWS)]
    victim.queue.send_arrow(pa.table({"body": texts, "group_id": [text[-1] for text in texts]}), body="body")
    return live(victim.messages)[0]


def of_the_ledger(victim: Victim) -> Path:
    by_small_sends(victim)
    found = victim.receive(ROWS)
    victim.queue.delete_batch(found[::2]).raise_for_failures()
    return live(victim.receipts)[-1]


def a_checkpoint(victim: Victim) -> Path:
    victim.send(*"0123")
    engine_of(victim.lake()).open(str(victim.messages)).checkpoint()
    [path] = (victim.messages / "_delta_log").glob("*.checkpoint.parquet")
    return path


def content(path: Path) -> Any:
    """What lakequeue reads of a file."""
    if path.name.endswith(".checkpoint.parquet"):
        version = int(path.name.partition(".")[0])
        assert path.name == Path(checkpoint_name(version)).name
        return read_checkpoint(LocalFolder(str(path.parents[1])), version)
    table = next(each for each in path.parents if each.name in layout.FILES)
    with LocalFolder(str(table)).parquet(str(path.relative_to(table)), path.stat().st_size) as file:
        columns = layout.FILES[table.name]
        return file.read(columns.names, use_threads=False).cast(columns)


@pytest.mark.spec("DUR-8")
@pytest.mark.parametrize("make", [by_small_sends, by_a_bulk_send, of_the_ledger, a_checkpoint])
def test_one_wrong_byte_is_never_a_wrong_value(victim: Victim, make: Callable[[Victim], Path]) -> None:
    path = make(victim)
    good, expected = path.read_bytes(), content(path)
    refused = 0
    for place in range(0, len(good), max(1, len(good) // 800)):
        changed = bytearray(good)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            found = content(path)
        except DamagedTable as error:
            assert error.file and error.reason
            refused += 1
        else:
            assert found == expected, f"byte {place} of {len(good)}"
    assert refused > 100


@pytest.mark.spec("DUR-8")
def test_files_without_checksums_are_read(victim: Victim) -> None:
    path = by_small_sends(victim)
    rows = pq.read_table(path)
    size = path.stat().st_size
    pq.write_table(rows, path, store_schema=False, write_statistics=False, use_dictionary=False)
    path.write_bytes(path.read_bytes())
    entry = next((victim.messages / "_delta_log").glob("*01.json"))
    text = entry.read_text().replace(f'"size": {size}', f'"size": {path.stat().st_size}')
    entry.write_bytes(signed(text.encode()))
    assert victim.drain() == [f"message {number}" for number in range(ROWS)]


def spoil(path: Path, text: bytes) -> None:
    """Changes a letter of a text in a file."""
    data = path.read_bytes()
    assert data.count(text) == 1
    path.write_bytes(data.replace(text, b"?" + text[1:]))


@pytest.mark.spec("DUR-8", "RCV-2")
def test_a_receive_names_damaged_messages_and_returns_the_others(
    victim: Victim, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    victim.send("first", "second", "third")
    lost = victim.queue.send("fourth").message_id
    victim.send("fifth")
    spoil(live(victim.messages)[3], b"fourth")
    with caplog.at_level(logging.ERROR, "lakequeue"):
        found = victim.receive(10)
    assert [message.body for message in found] == ["first", "second", "third", "fifth"]
    assert lost in caplog.text and "repair it: lakequeue --root" in caplog.text
    victim.queue.delete_batch(found).raise_for_failures()
    clock.advance(60)
    with pytest.raises(DamagedTable, match=lost) as raised:
        victim.receive(10)
    assert raised.value.outcome_unknown
    victim.send("sixth")
    assert victim.drain() == ["sixth"]


@pytest.mark.spec("DUR-8")
def test_an_error_names_all_the_messages_of_a_claim(victim: Victim) -> None:
    ids = {sent.message_id for sent in victim.queue.send_batch(batch("a", "b", "spoilt", "d")).successful}
    spoil(live(victim.messages)[0], b"spoilt")
    with pytest.raises(DamagedTable) as raised:
        victim.receive(10)
    assert all(each in raised.value.reason for each in ids)


@pytest.mark.spec("DUR-8")
def test_what_lies_in_another_row_group_is_read(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read ahead of damage ends before it."""
    write = parquet_files.write_table
    monkeypatch.setattr(point, "write_table", lambda *given, **more: write(*given, **more | {"row_group_size": 2}))
    victim.queue.send_batch(batch("a", "b", "c", "spoilt"))
    spoil(live(victim.messages)[0], b"spoilt")
    assert sorted(message.body for message in victim.receive(10)) == ["a", "b"]


@pytest.mark.spec("DUR-8")
def test_a_damaged_message_that_was_received_too_often_holds_up_no_other(
    victim: Victim, clock: ManualClock
) -> None:
    victim.lake().create_queue("dead")
    victim.lake().create_queue("orders", update=True, dead_letter_queue="dead", max_receive_count=1)
    victim.send("spoilt", "good")
    spoil(live(victim.messages)[0], b"spoilt")
    with pytest.raises(DamagedTable):
        victim.receive(1)
    clock.advance(60)
    assert [message.body for message in victim.receive(10)] == ["good"]


# --- one wrong digit in a log: check says so where a call would, and wherever an answer would be another


PLACE = b'"checksum": "'
HARMLESS = re.compile(
    # whom, and when by which machine; names of files that were removed; what describes a table to people
    rb'"(modificationTime|createdTime|id)": "?[0-9a-f-]*$|"commitInfo"[^\n]*$|"remove"[^\n]*$'
    rb"|[0-9a-f]{8}-[0-9a-f-]*$"
)


@pytest.fixture
def history(victim: Victim, clock: ManualClock) -> Victim:
    """Three segments, one by a bulk send; two messages have a delay, and one has been received."""
    queue = victim.queue
    queue.send("a", delay=5)
    clock.advance(7)
    queue.send_batch(batch("b", "c"))
    queue.receive(1)
    clock.advance(7200)
    queue.send_arrow(pa.table({"body": ["d", "e"], "delay_seconds": [0.0, 9.0]}), body="body")
    clock.advance(7)
    queue.send("f")
    return victim


def digits(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The entry with each of its digits changed in turn, and where that was."""
    for found in re.finditer(rb"\d", data):
        place = found.start()
        yield place, data[:place] + (b"%d" % ((int(found[0]) + 1) % 10)) + data[place + 1 :]


@pytest.mark.spec("DUR-9")
@pytest.mark.parametrize("table", ["messages", "receipts"])
def test_a_wrong_digit_makes_an_entry_unreadable(history: Victim, table: str) -> None:
    path = getattr(history, table)
    for entry in entries(path):
        good, version = entry.read_bytes(), int(entry.stem)
        assert PLACE in good
        for place, wrong in digits(good):
            entry.write_bytes(wrong)
            with pytest.raises(DamagedTable):
                read_entry(LocalFolder(str(path)), version)
                pytest.fail(f"digit at {place} of {entry.name}: {good[place - 40 : place + 9]!r}")
        entry.write_bytes(good)


@pytest.mark.spec("DUR-9")
def test_check_finds_all_damage_that_calls_refuse(history: Victim) -> None:
    entry = entries(history.messages)[1]
    good = entry.read_bytes()
    for place, wrong in list(digits(good))[::40]:
        entry.write_bytes(wrong)
        with pytest.raises(DamagedTable):
            history.queue.send("g")
        assert any(each.damage for each in history.lake().check()), f"digit at {place}"
    entry.write_bytes(good)
    assert history.lake().check() == []


def answers(victim: Victim) -> object:
    """What calls tell of the messages, changing nothing."""
    table = Table(engine_of(victim.lake()).store, str(victim.messages))
    files = [attrs.astuple(file, recurse=False)[1:] for file in log_files(table)]
    return victim.queue.peek(limit=100), table.state.transactions, files


@pytest.mark.spec("DUR-9", "DUR-30")
def test_entries_without_a_checksum_are_judged_by_their_rows(history: Victim) -> None:
    """As Spark writes them."""
    path, clock = history.messages, history.clock
    for entry in entries(path):
        entry.write_bytes(entry.read_bytes().replace(b', "checksum"', b', "other"'))
    store, expected = engine_of(history.lake()).store, answers(history)
    assert history.lake().check() == []
    key, missed = history.key, []
    for entry in entries(path)[1:]:
        good = entry.read_bytes()
        for place, wrong in list(digits(good))[::3]:
            if HARMLESS.search(good[:place]):
                continue
            entry.write_bytes(wrong)
            found = find_shard(store, history.root, key, 0)
            if any(each.damage for each in shard_findings(found, "orders", "local", to_micros(clock.now()))):
                continue
            try:
                same = answers(history) == expected
            except (LakeQueueError, ValueError):
                same = False
            if not same:
                missed.append((entry.name[-7:], good[max(0, place - 30) : place + 12]))
        entry.write_bytes(good)
    assert not missed, "\n".join(map(str, missed))


@pytest.mark.spec("DUR-9")
def test_a_wrong_digit_in_a_checkpoint_is_found(history: Victim) -> None:
    engine_of(history.lake()).open(str(history.messages)).checkpoint()
    [checkpoint] = (history.messages / "_delta_log").glob("*.checkpoint.parquet")
    good, version = checkpoint.read_bytes(), int(checkpoint.name.partition(".")[0])
    expected = read_checkpoint(LocalFolder(str(history.messages)), version)
    for place, wrong in list(digits(good))[::9]:
        checkpoint.write_bytes(wrong)
        try:
            found = read_checkpoint(LocalFolder(str(history.messages)), version)
        except DamagedTable:
            continue
        assert found == expected, f"digit at {place}"
    checkpoint.write_bytes(good)


@pytest.mark.spec("DUR-10")
@pytest.mark.parametrize("table", ["messages", "receipts"])
def test_swapped_tables_of_two_shards_are_refused(tmp_path: Path, clock: ManualClock, table: str) -> None:
    victim = Victim(str(tmp_path / "root"), clock)
    queue = victim.lake().create_queue("orders", shards=2)
    for number in range(8):
        queue.send(str(number))
    assert victim.lake().check() == []
    [first, second] = [victim.messages.parents[1] / str(shard) / table for shard in range(2)]
    for source, target in (first, tmp_path / "aside"), (second, first), (tmp_path / "aside", second):
        source.rename(target)
    with pytest.raises(DamagedTable, match="was moved here"):
        for _ in range(8):
            victim.queue.send("8") if table == "messages" else victim.receive(1)
    assert sum("was moved here" in each.problem for each in victim.lake().check()) == 2


@pytest.mark.spec("DUR-10")
def test_a_table_without_a_name_is_used_where_it_is(history: Victim) -> None:
    for entry in entries(history.messages)[0], entries(history.receipts)[0]:
        text = re.sub(r'"name": "[^"]*/0/\w+"', '"name": null', entry.read_text())
        assert text != entry.read_text()
        entry.write_bytes(signed(text.encode()))
    assert history.receive(1) and history.lake().check() == []


@pytest.mark.spec("DUR-10")
@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("receipts", "state", "'x'"),
        *(("receipts", column, "NULL") for column in ("first_offset", "last_offset", "run")),
        ("messages", "position", "position + 1"),
        *(("messages", column, "NULL") for column in ("position", "message_id")),
    ],
)
def test_a_table_that_another_program_updated_is_refused(
    history: Victim, table: str, column: str, value: str
) -> None:
    runs = "first_offset >= 0" if table == "receipts" else None
    change(getattr(history, table), lambda delta: delta.update({column: value}, predicate=runs))
    with pytest.raises(DamagedTable):
        for _ in range(9):
            history.receive(1)
    assert any(each.damage for each in history.lake().check())


@pytest.mark.spec("DUR-31")
def test_what_is_lost_before_all_that_is_known_was_sent_before_it(history: Victim) -> None:
    change(history.messages, lambda table: table.update({"position": "position + 1"}, predicate="base_offset = 0"))
    history.lake().repair(apply=True)
    assert history.lake().check() == []


# --- mutations of what notices damage: checksums of pages and entries, names of tables, rows of ledgers


def write_no_checksums(patch: Patch) -> None:
    writes = {name: _without(getattr(pq, name)) for name in ("write_table", "ParquetWriter")}
    patch.setattr(parquet_files, "pq", SimpleNamespace(**vars(pq) | writes))


def _without(write: object) -> object:
    return lambda *given, write_page_checksum, **options: write(*given, **options)  # type: ignore[operator]


def _of(folder: Path, clock: ManualClock) -> tuple[Victim]:
    victim = Victim(str(folder / "root"), clock)
    victim.lake().create_queue("orders")
    return (victim,)


def a_wrong_byte_is_noticed(folder: Path, clock: ManualClock) -> None:
    test_one_wrong_byte_is_never_a_wrong_value(*_of(folder, clock), by_small_sends)


def check_finds_what_calls_refuse(folder: Path, clock: ManualClock) -> None:
    [victim] = _of(folder, clock)
    for body in "abc":
        victim.send(body)
        clock.advance(7)
    test_check_finds_all_damage_that_calls_refuse(victim)


def tables_of_another_shard_are_refused(folder: Path, clock: ManualClock) -> None:
    test_swapped_tables_of_two_shards_are_refused(folder, clock, "messages")


def a_ledger_with_another_state_is_refused(folder: Path, clock: ManualClock) -> None:
    [victim] = _of(folder, clock)
    victim.send("a")
    victim.receive()
    test_a_table_that_another_program_updated_is_refused(victim, "receipts", "state", "'x'")


MUTATIONS = [
    Mutation("verify no checksums", verify_no_checksums, {a_wrong_byte_is_noticed: "DUR-8"}),
    Mutation("write no checksums", write_no_checksums, {a_wrong_byte_is_noticed: "DUR-8"}),
    Mutation(
        "believe each entry",
        replace("lakequeue.storage.delta_log.signed", lambda data: data),
        {check_finds_what_calls_refuse: "DUR-9"},
    ),
    Mutation(
        "use a table wherever it is",
        replace(layout, "is_elsewhere", lambda *_: False),
        {tables_of_another_shard_are_refused: "DUR-10"},
    ),
    Mutation(
        "believe each run of a ledger",
        replace(ledger, "_STATES", {*ledger._STATES, "x"}),
        {a_ledger_with_another_state_is_refused: "DUR-10"},
    ),
]


@each_case(MUTATIONS)
def test_damage_is_noticed_only_by_its_safeguards(case: Case, tmp_path: Path, clock: ManualClock) -> None:
    case.run(lambda _: (tmp_path, clock), (LakeQueueError, pytest.fail.Exception))
