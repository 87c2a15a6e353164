"""Relays of files: each new file becomes one message, however many were sent before."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from insides import engine_of
from lakequeue import LakeQueue, Queue, errors
from lakequeue.operations import relay_files
from lakequeue.storage.bulk import sent_files
from mutations import Case, Mutation, each_case, replace


class Landing:
    """A directory next to the root, where files arrive."""

    def __init__(self, lq: LakeQueue) -> None:
        self.path = f"{lq.root}-landing"
        self.folder = engine_of(lq).store.folder(self.path)

    def put(self, *names: str, data: bytes = b"{}") -> None:
        for name in names:
            self.folder.write(name, data)


@pytest.fixture
def landing(lq: LakeQueue) -> Landing:
    made = Landing(lq)
    made.put("first.txt")
    return made


@pytest.fixture
def queue(lq: LakeQueue) -> Queue:
    return lq.create_queue("orders")


def names_in(queue: Queue, landing: Landing) -> list[str]:
    found = [json.loads(message.body) for message in queue.peek(limit=1_000)]
    return sorted(each["path"].removeprefix(f"{landing.path}/") for each in found)


@pytest.mark.spec("RLY-6")
def test_each_file_becomes_one_message(lq: LakeQueue, queue: Queue, landing: Landing) -> None:
    pattern = f"{landing.path}/*.json"
    landing.put("a.json", "b.json", "c.csv", ".hidden.json", "below/d.json")
    assert lq.relay(files=pattern, queue=queue) == 2
    assert lq.relay(files=pattern, queue=queue) == 0
    landing.put("e.json", data=b"[1]")
    assert LakeQueue(lq.root, clock=lq.clock).relay(files=pattern, queue=queue) == 1
    assert names_in(queue, landing) == ["a.json", "b.json", "e.json"]
    body = json.loads(queue.peek(limit=9)[-1].body)
    assert body.keys() == {"path", "size", "modified_at"}
    assert body["size"] == 3 and body["modified_at"].endswith("Z")


@pytest.mark.spec("RLY-6")
def test_a_file_that_was_replaced_is_another(lq: LakeQueue, queue: Queue, landing: Landing) -> None:
    pattern = f"{landing.path}/*.json"
    landing.put("a.json")
    assert lq.relay(files=pattern, queue=queue) == 1
    landing.put("a.json", data=b"[1, 2]")
    assert lq.relay(files=pattern, queue=queue) == 1
    assert lq.relay(files=pattern, queue=queue) == 0
    assert names_in(queue, landing) == ["a.json", "a.json"]


@pytest.mark.spec("RLY-6")
@pytest.mark.parametrize(
    ("rest", "found"),
    [
        ("*.json", ["a.json", "b c.json"]),
        ("a.json", ["a.json"]),
        ("**/*.json", ["a.json", "b c.json", "x/d.json", "x/y/e.json"]),
        ("x/*/*.json", ["x/y/e.json"]),
        ("x/**", []),
        ("x/**/*", ["x/d.json", "x/y/e.json"]),
        ("*c.*", ["b c.json"]),
    ],
)
def test_patterns(lq: LakeQueue, queue: Queue, landing: Landing, rest: str, found: list[str]) -> None:
    landing.put("a.json", "b c.json", "x/d.json", "x/y/e.json", "x/.tmp/f.json")
    assert lq.relay(files=f"{landing.path}/{rest}", queue=queue) == len(found)
    assert names_in(queue, landing) == found


@pytest.mark.spec("RLY-6")
def test_files_may_be_grouped_and_come_in_batches(
    lq: LakeQueue, landing: Landing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sent_files, "BATCH", 3)
    queue = lq.create_queue(
        "files.fifo", fifo=True, shards=3, deduplication_scope="message_group", content_based_deduplication=True
    )
    landing.put(*(f"{number}.json" for number in range(10)))
    pattern = f"{landing.path}/*.json"
    assert lq.relay(files=pattern, queue=queue, group_column="path") == 10
    assert lq.relay(files=pattern, queue=queue, group_column="path") == 0
    assert names_in(queue, landing) == [f"{number}.json" for number in range(10)]


@pytest.mark.spec("RLY-6")
def test_many_passes_leave_few_parts_and_forget_nothing(
    lq: LakeQueue, queue: Queue, landing: Landing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sent_files, "MERGE", 3)
    pattern = f"{landing.path}/*.json"
    for number in range(24):
        landing.put(f"{number}.json")
        assert lq.relay(files=pattern, queue=queue) == 1
    parts = [entry.name for entry in engine_of(lq).store.folder(f"{lq.root}/q/{queue.key}/relays").files()]
    assert len(parts) <= 8 and any("sent-" in name for name in parts)
    assert lq.relay(files=pattern, queue=queue) == 0
    lq.compact()
    assert lq.check() == [] and lq.relay(files=pattern, queue=queue) == 0
    assert len(names_in(queue, landing)) == 24


# --- several processes, and kills


class Killed(BaseException):
    pass


STEPS = ["decided", "sent", "merged"]


def kill_at(patch: pytest.MonkeyPatch, step: str) -> None:
    def die(*_: Any) -> None:
        raise Killed()

    if step == "decided":
        patch.setattr(relay_files._FileRelay, "_send", die)
    elif step == "sent":
        patch.setattr(
            sent_files.SentFiles,
            "refresh",
            lambda self, of=sent_files.SentFiles.refresh: die() if hasattr(self, "last") else of(self),
        )
    else:
        patch.setattr(sent_files.SentFiles, "_merge", die)


@pytest.mark.spec("RLY-6")
@pytest.mark.parametrize("step", STEPS)
def test_a_killed_relay_goes_on(
    lq: LakeQueue, queue: Queue, landing: Landing, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sent_files, "MERGE", 2)
    pattern, sent = f"{landing.path}/*.json", 0
    for number in range(8):
        landing.put(f"{number}.json")
        if number % 2:
            with monkeypatch.context() as patch:
                kill_at(patch, step)
                try:
                    lq.relay(files=pattern, queue=queue)
                except Killed:
                    sent += 1
        lq.relay(files=pattern, queue=queue)
    assert sent
    assert names_in(queue, landing) == [f"{number}.json" for number in range(8)]


def others_were_first(lq: LakeQueue, patch: pytest.MonkeyPatch, merge: int = 32) -> None:
    """Another process decides, sends and merges while this one has its list of files."""
    queue, landing = lq.create_queue("orders"), Landing(lq)
    pattern = f"{landing.path}/*.json"
    patch.setattr(sent_files, "MERGE", merge)
    landing.put("0.json")
    lq.relay(files=pattern, queue=queue)
    decide, calls = sent_files.SentFiles.decide, 0

    def late(self: sent_files.SentFiles, *arguments: Any) -> bool:
        nonlocal calls
        calls += 1
        if calls == 1:
            for number in range(2, 8):
                landing.put(f"{number}.json")
                lq.relay(files=pattern, queue=queue)
        return decide(self, *arguments)

    landing.put("1.json")
    with patch.context() as within:
        within.setattr(sent_files.SentFiles, "decide", late)
        lq.relay(files=pattern, queue=queue)
    lq.relay(files=pattern, queue=queue)
    assert names_in(queue, landing) == [f"{number}.json" for number in range(8)]


def a_kill_after_the_decision(lq: LakeQueue, patch: pytest.MonkeyPatch) -> None:
    queue, landing = lq.create_queue("orders"), Landing(lq)
    landing.put("0.json")
    with patch.context() as within, pytest.raises(Killed):
        kill_at(within, "decided")
        lq.relay(files=f"{landing.path}/*.json", queue=queue)
    lq.relay(files=f"{landing.path}/*.json", queue=queue)
    assert names_in(queue, landing) == ["0.json"]


def a_kill_before_the_end(lq: LakeQueue, patch: pytest.MonkeyPatch) -> None:
    queue, landing = lq.create_queue("orders"), Landing(lq)
    landing.put("0.json")
    with patch.context() as within, pytest.raises(Killed):
        kill_at(within, "sent")
        lq.relay(files=f"{landing.path}/*.json", queue=queue)
    lq.relay(files=f"{landing.path}/*.json", queue=queue)
    assert names_in(queue, landing) == ["0.json"]


@pytest.mark.spec("RLY-6")
def test_a_number_that_was_merged_is_not_decided_again(lq: LakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    others_were_first(lq, monkeypatch, 2)


def overwrite(self: sent_files.SentFiles, number: int, files: pa.Table) -> bool:
    output = pa.BufferOutputStream()
    pq.write_table(files, output)
    self._folder.write(f"batch-{number:019}.parquet", output.getvalue().to_pybytes())
    return True


def send_before_the_decision(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sent_files.SentFiles, "decide", lambda self, number, files: True)


MUTATIONS = [
    Mutation("record nothing", send_before_the_decision, {a_kill_before_the_end: "RLY-6"}),
    Mutation(
        "send no batch of a process that died",
        replace(relay_files._FileRelay, "_finish", lambda self, sent: None),
        {a_kill_after_the_decision: "RLY-6"},
    ),
    Mutation(
        "decide what another process decided",
        replace(sent_files.SentFiles, "decide", overwrite),
        {others_were_first: "RLY-6"},
    ),
]


@each_case(MUTATIONS)
@pytest.mark.parametrize("lq", ["point"], indirect=True)
def test_the_guarantee_holds_and_falls_with_its_safeguard(case: Case, lq: LakeQueue) -> None:
    case.run(lambda patch: (lq, patch), (errors.QueueClientError,))


# --- refusals


@pytest.mark.parametrize("lq", ["point"], indirect=True)
@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"files": "landing/"}, "files"),
        ({"files": "landing/[ab].json"}, "files"),
        ({"files": "landing/?.json"}, "files"),
        ({"files": "landing/*", "table": "t"}, "files"),
        ({"files": "landing/*", "start": 5}, "files"),
        ({"files": "landing/*", "group_column": "none"}, "group_column"),
        ({}, "table"),
    ],
)
def test_wrong_arguments_are_named(
    lq: LakeQueue, queue: Queue, given: dict[str, Any], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "landing").mkdir()
    with pytest.raises(errors.InvalidParameterValue, match=named):
        lq.relay(queue=queue, **given)


@pytest.mark.spec("RLY-6")
@pytest.mark.parametrize("lq", ["point"], indirect=True)
def test_a_missing_directory_or_record_and_files_in_the_root_are_refused(
    lq: LakeQueue, queue: Queue, landing: Landing, tmp_path: Path
) -> None:
    with pytest.raises(errors.QueueClientError, match="none is no directory"):
        lq.relay(files=f"{tmp_path}/none/*.json", queue=queue)
    with pytest.raises(errors.InvalidOptions, match="in the root"):
        lq.relay(files=f"{lq.root}/q/*", queue=queue)
    lq.relay(files=f"{landing.path}/*", queue=queue)
    [part] = engine_of(lq).store.folder(f"{lq.root}/q/{queue.key}/relays").files()
    os.unlink(f"{lq.root}/q/{queue.key}/relays/{part.name}")
    with pytest.raises(errors.QueueClientError, match="put back, or lost"):
        lq.relay(files=f"{landing.path}/*", queue=queue)


@pytest.mark.spec("RLY-6")
@pytest.mark.parametrize("lq", ["point"], indirect=True)
def test_a_copy_of_the_queue_knows_the_sent_messages(
    lq: LakeQueue, queue: Queue, landing: Landing, tmp_path: Path
) -> None:
    pattern = f"{landing.path}/*"
    lq.relay(files=pattern, queue=queue)
    copy = LakeQueue(str(tmp_path / "copy"))
    lq.copy(copy)
    assert copy.relay(files=pattern, queue=copy.queue("orders")) == 0
    landing.put("new.txt")
    assert [each.relay(files=pattern, queue=each.queue("orders")) for each in (copy, lq)] == [1, 1]


def test_a_digest_identifies_path_size_and_time() -> None:
    made = [sent_files._digest(*each) for each in (("a", 1, 2), ("a", 1, 3), ("a", 2, 2), ("b", 1, 2))]
    assert len({*made}) == 4 and pa.array(made, sent_files.DIGEST).null_count == 0
