"""Receives that are retried with their attempt id."""

from __future__ import annotations

import asyncio
import itertools
import zlib

import pytest

from conformance.fifo import (
    FifoHarness,
    bodies,
    delete,
    send,
    shard_of,
)
from conformance.harness import Call, handles, long_on_s3
from lakequeue import Message
from lakequeue.storage import ledger


@pytest.mark.spec("ATT-1", "ATT-2", "ATT-3", "ATT-8", "ATT-11", "DLT-3")
def test_a_retried_receive_answers_the_same_messages_and_handles_in_another_process(fifo: FifoHarness, clock):
    send(fifo.create(), "A1", "B1", "A2", "B2", "C1")
    lost = fifo.queue().receive(4, attempt_id="x")
    assert bodies(lost) == ["A1", "A2", "B1", "B2"]
    clock.advance(20)
    again = fifo.queue().receive(1, attempt_id="x")
    assert again == lost
    assert bodies(fifo.queue().receive(10, attempt_id="y")) == ["C1"]
    clock.advance(29.999)
    assert fifo.queue().receive(10, attempt_id="z") == []
    assert fifo.queue().counts().in_flight == 5
    delete(fifo.queue(), *again)
    clock.advance(0.001)
    assert bodies(fifo.queue().receive(10, attempt_id="x")) == ["C1"]


@pytest.mark.spec("ATT-1", "ATT-3")
def test_an_attempt_is_answered_by_the_shard_that_answered_it_first(fifo: FifoHarness):
    queue = fifo.create(deduplication_scope="message_group", shards=2)
    by_shard = {zlib.crc32(group.encode()) % 2: group for group in "ABCDEFGH"}
    first_asked = zlib.crc32(b"x") % 2
    send(queue, f"{by_shard[1 - first_asked]}1")
    held = fifo.queue().receive(10, attempt_id="x")
    assert len(held) == 1
    send(queue, f"{by_shard[first_asked]}1")
    assert fifo.queue().receive(10, attempt_id="x") == held
    assert len(fifo.queue().receive(10)) == 1


@pytest.mark.spec("ATT-1", "LPL-1")
def test_a_waiting_receive_takes_an_attempt_id_and_a_task_retries_it(fifo: FifoHarness, clock):
    queue = fifo.create()
    call = Call(clock, lambda: queue.receive(10, wait_time=10, attempt_id="x")).after(4)
    send(queue, "A1", "A2")
    found = call.join()
    assert bodies(found) == ["A1", "A2"]
    assert asyncio.run(fifo.queue().receive_async(10, wait_time=10, attempt_id="x")) == found


@pytest.mark.spec("DLT-7", "ATT-3", "FIF-14", "DLT-3")
def test_the_ledger_is_compacted_and_attempts_and_turns_stay(fifo: FifoHarness, clock, monkeypatch):
    queue = fifo.create()
    send(queue, *[group + turn for turn in "12" for group in "ABCDEF"])
    clock.advance(1)
    lost = queue.receive(4, attempt_id="x")
    assert bodies(lost) == ["A1", "A2", "B1", "B2"]
    monkeypatch.setattr(ledger, "_CHECK_EVERY", 1)
    monkeypatch.setattr(ledger, "MAX_FILES", 1)
    monkeypatch.setattr(ledger, "RANGE_ROWS", 2)
    for _ in range(2):
        delete(queue, *queue.receive(1))  # C1, then D1
        clock.advance(1)
    commits = [
        action["commitInfo"]["operation"]
        for action in fifo.log_actions(f"q/{queue.key}/0/receipts")
        if "commitInfo" in action
    ]
    assert "WRITE" in commits[commits.index("MERGE") :], "nothing was compacted"
    assert fifo.queue().receive(1, attempt_id="x") == lost
    assert bodies(fifo.queue().receive(10)) == ["E1", "E2", "F1", "F2", "C2", "D2"]


@long_on_s3
@pytest.mark.spec("ATT-1", "ATT-3", "ATT-8", "ATT-11", "DLT-3")
def test_attempt_ids_find_their_shard(fifo: FifoHarness, clock):
    queue = fifo.create(deduplication_scope="message_group", shards=4)
    send(queue, *[group + turn for turn in "12" for group in "ABCDEFGH"])
    seen: dict[str, list[Message]] = {}
    for id in ("x", "y", "z"):
        seen[id] = fifo.queue().receive(3, attempt_id=id)
        assert len({shard_of(m) for m in seen[id]}) == 1
    assert len({m.message_id for messages in seen.values() for m in messages}) == sum(map(len, seen.values()))
    clock.advance(20)
    for id in ("z", "x", "y"):
        assert fifo.queue().receive(10, attempt_id=id) == seen[id]
    delete(fifo.queue(), seen["x"][0])
    other = fifo.queue().receive(1, attempt_id="x")
    assert not set(handles(other)) & set(handles(seen["x"]))
    left = []
    while messages := fifo.queue().receive(10, visibility_timeout=1000):
        left += messages
    received = [*itertools.chain(*seen.values()), *other, *left]
    assert len({m.message_id for m in received}) == len(received)
    assert queue.receive(10, attempt_id="v") == []
