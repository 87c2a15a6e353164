"""One wrong digit in a log: `check` says so where a call would, and wherever an answer would be another."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import attrs
import pyarrow as pa
import pytest

from conformance.damage import Victim, change, entries
from conformance.harness import batch
from insides import engine_of
from lakequeue import DamagedTable, LakeQueueError
from lakequeue.model.clock import to_micros
from lakequeue.storage.delta_log import read_checkpoint, read_entry, signed
from lakequeue.storage.engines.point import Table
from lakequeue.storage.folder import Folder
from lakequeue.storage.inspection.shards import find_shard, shard_findings
from lakequeue.storage.messages.read import log_files
from lakequeue.testing import ManualClock

PLACE = b'"checksum": "'
HARMLESS = re.compile(
    # whom, and when by which machine; names of files that were removed; what describes a table to people
    rb'"(modificationTime|createdTime|id)": "?[0-9a-f-]*$|"commitInfo"[^\n]*$|"remove"[^\n]*$'
    rb"|[0-9a-f]{8}-[0-9a-f-]*$"
)


@pytest.fixture
def victim(tmp_path: Path, clock: ManualClock) -> Victim:
    """Three segments, one by a bulk send; two messages have a delay, and one has been received."""
    victim = Victim(str(tmp_path / "root"), clock)
    queue = victim.lake().create_queue("orders")
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
def test_a_wrong_digit_makes_an_entry_unreadable(victim: Victim, table: str) -> None:
    path = getattr(victim, table)
    for entry in entries(path):
        good, version = entry.read_bytes(), int(entry.stem)
        assert PLACE in good
        for place, wrong in digits(good):
            entry.write_bytes(wrong)
            with pytest.raises(DamagedTable):
                read_entry(Folder(str(path)), version)
                pytest.fail(f"digit at {place} of {entry.name}: {good[place - 40 : place + 9]!r}")
        entry.write_bytes(good)


@pytest.mark.spec("DUR-9")
def test_check_finds_what_calls_refuse(victim: Victim) -> None:
    entry = entries(victim.messages)[1]
    good = entry.read_bytes()
    for place, wrong in list(digits(good))[::40]:
        entry.write_bytes(wrong)
        with pytest.raises(DamagedTable):
            victim.queue.send("g")
        assert any(each.damage for each in victim.lake().check()), f"digit at {place}"
    entry.write_bytes(good)
    assert victim.lake().check() == []


def answers(victim: Victim) -> object:
    """What calls tell of the messages, changing nothing."""
    table = Table(engine_of(victim.lake()).store, str(victim.messages))
    files = [attrs.astuple(file, recurse=False)[1:] for file in log_files(table)]
    return victim.queue.peek(limit=100), table.state.transactions, files


@pytest.mark.spec("DUR-9", "DUR-30")
def test_entries_without_a_checksum_are_judged_by_their_rows(victim: Victim) -> None:
    """As lakequeue 0.2 and Spark write them."""
    path, clock = victim.messages, victim.clock
    for entry in entries(path):
        entry.write_bytes(entry.read_bytes().replace(b', "checksum"', b', "other"'))
    store, expected = engine_of(victim.lake()).store, answers(victim)
    assert victim.lake().check() == []
    key, missed = victim.key, []
    for entry in entries(path)[1:]:
        good = entry.read_bytes()
        for place, wrong in list(digits(good))[::3]:
            if HARMLESS.search(good[:place]):
                continue
            entry.write_bytes(wrong)
            found = find_shard(store, victim.root, key, 0)
            if any(each.damage for each in shard_findings(found, "orders", "local", to_micros(clock.now()))):
                continue
            try:
                same = answers(victim) == expected
            except (LakeQueueError, ValueError):
                same = False
            if not same:
                missed.append((entry.name[-7:], good[max(0, place - 30) : place + 12]))
        entry.write_bytes(good)
    assert not missed, "\n".join(map(str, missed))


@pytest.mark.spec("DUR-9")
def test_a_wrong_digit_in_a_checkpoint_is_found(victim: Victim) -> None:
    engine_of(victim.lake()).open(str(victim.messages)).checkpoint()
    [checkpoint] = (victim.messages / "_delta_log").glob("*.checkpoint.parquet")
    good, version = checkpoint.read_bytes(), int(checkpoint.name.partition(".")[0])
    expected = read_checkpoint(Folder(str(victim.messages)), version)
    for place, wrong in list(digits(good))[::9]:
        checkpoint.write_bytes(wrong)
        try:
            found = read_checkpoint(Folder(str(victim.messages)), version)
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
def test_a_table_without_a_name_is_used_where_it_is(victim: Victim) -> None:
    for entry in entries(victim.messages)[0], entries(victim.receipts)[0]:
        text = re.sub(r'"name": "[^"]*/0/\w+"', '"name": null', entry.read_text())
        assert text != entry.read_text()
        entry.write_bytes(signed(text.encode()))
    assert victim.receive(1) and victim.lake().check() == []


@pytest.mark.spec("DUR-10")
@pytest.mark.parametrize(
    "values", [{"state": "'x'"}, {"first_offset": "NULL"}, {"last_offset": "NULL"}, {"run": "NULL"}]
)
def test_a_ledger_that_another_program_updated_is_refused(victim: Victim, values: dict[str, str]) -> None:
    change(victim.receipts, lambda table: table.update(values, predicate="first_offset >= 0"))
    with pytest.raises(DamagedTable):
        victim.receive(1)
    assert any(each.damage for each in victim.lake().check())


@pytest.mark.spec("DUR-10")
@pytest.mark.parametrize("values", [{"position": "position + 1"}, {"position": "NULL"}, {"message_id": "NULL"}])
def test_a_log_that_another_program_updated_is_refused(victim: Victim, values: dict[str, str]) -> None:
    change(victim.messages, lambda table: table.update(values))
    with pytest.raises(DamagedTable):
        for _ in range(9):
            victim.receive(1)
    assert any(each.damage for each in victim.lake().check())


@pytest.mark.spec("DUR-31")
def test_what_is_lost_before_all_that_is_known_was_sent_before_it(victim: Victim) -> None:
    change(victim.messages, lambda table: table.update({"position": "position + 1"}, predicate="base_offset = 0"))
    victim.lake().repair(apply=True)
    assert victim.lake().check() == []
