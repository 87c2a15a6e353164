"""The processes that send what schedules make due; transcripts/queues.txt shows the commands on schedules."""

from __future__ import annotations

import signal

import pytest

from acceptance.commands import Start
from lakequeue import LakeQueue, Queue, QueueClientError
from lakequeue.operations.schedules import OpenSchedules
from lakequeue.testing import ManualClock


@pytest.mark.spec("JOB-7")
@pytest.mark.parametrize(
    "command",
    ["schedule run", "consume idle builtins:print", "serve --port 0 --no-access-log"],
    ids=lambda command: command.split()[0],
)
def test_processes_that_run_send_what_is_due(lake: LakeQueue, orders: Queue, start: Start, command: str) -> None:
    lake.create_queue("idle")
    lake.schedules.add("once", "orders", "x", at=lake.clock.now())
    process = start(*command.split())
    [message] = orders.receive(wait_time=20) or orders.receive(wait_time=20)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert message.body == "x" and lake.schedules.list() == []


def test_an_outage_is_logged_once_and_ends_no_block(
    lake: LakeQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[int] = []

    def failing(self: OpenSchedules) -> int:
        looks.append(1)
        raise QueueClientError("storage is gone")

    monkeypatch.setattr(OpenSchedules, "run_due", failing)
    clock = ManualClock()
    with LakeQueue(lake.root, clock=clock).schedules.running():
        for _ in range(3):
            clock.advance(60)
    assert len(looks) >= 3 and [record.message.count("storage is gone") for record in caplog.records] == [1]
