"""Mutations of what notices damage: checksums of pages and entries, names of tables, rows of ledgers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from conformance import test_page_checksums as pages
from conformance import test_wrong_digits as digits
from conformance.damage import Victim
from lakequeue import LakeQueueError
from lakequeue.storage import layout, ledger, parquet_files
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, Patch, each_case, replace, verify_no_checksums


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
    pages.test_one_wrong_byte_is_never_a_wrong_value(*_of(folder, clock), pages.by_small_sends)


def check_finds_what_calls_refuse(folder: Path, clock: ManualClock) -> None:
    [victim] = _of(folder, clock)
    for body in "abc":
        victim.send(body)
        clock.advance(7)
    digits.test_check_finds_what_calls_refuse(victim)


def tables_of_another_shard_are_refused(folder: Path, clock: ManualClock) -> None:
    digits.test_swapped_tables_of_two_shards_are_refused(folder, clock, "messages")


def a_ledger_with_another_state_is_refused(folder: Path, clock: ManualClock) -> None:
    [victim] = _of(folder, clock)
    victim.send("a")
    victim.receive()
    digits.test_a_ledger_that_another_program_updated_is_refused(victim, {"state": "'x'"})


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
