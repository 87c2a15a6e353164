"""One wrong byte in a file: what is read is what was written, or it is said which file is damaged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conformance.damage import Victim, live
from conformance.harness import batch
from insides import engine_of
from lakequeue import DamagedTable
from lakequeue.storage import layout, parquet_files
from lakequeue.storage.delta_log import checkpoint_name, read_checkpoint, signed
from lakequeue.storage.engines import point
from lakequeue.storage.folder import Folder
from lakequeue.testing import ManualClock

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
        return read_checkpoint(Folder(str(path.parents[1])), version)
    table = next(each for each in path.parents if each.name in layout.FILES)
    with Folder(str(table)).parquet(str(path.relative_to(table)), path.stat().st_size) as file:
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
    assert lost in caplog.text and "is damaged" in caplog.text
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
