"""A process whose ledger is stale beside a log that is not: on stores no lock keeps the two in step."""

from __future__ import annotations

import pytest

from concurrency.harness import apart
from lakequeue.testing import ManualClock

pytestmark = pytest.mark.objectstore


def test_messages_whose_files_were_dropped_meanwhile_are_no_error(s3_root: str) -> None:
    clock = ManualClock()
    idle, busy = (lq for lq in apart(s3_root, clock))
    mine, other = idle.create_queue("orders", visibility_timeout=30), busy.queue("orders")
    for group in "xy":
        mine.send(group, group_id=group)
    for message in mine.receive(10):
        other.delete(message.receipt_handle)
    for number in range(80):
        other.send(str(number), group_id="z")
    received = 0
    while received < 68:
        messages = other.receive(68 - received)
        received += len(messages)
        other.delete_batch([message.receipt_handle for message in messages])
    assert busy.compact()[0].segments_dropped
    clock.advance(31)
    assert {message.body for message in mine.receive(100)} == {str(number) for number in range(68, 80)}
