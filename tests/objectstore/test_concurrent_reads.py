"""A receive from an object store reads the files that it needs at the same time, not one after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from threading import Condition
from typing import Any

import pytest

from concurrency.harness import apart
from lakequeue import LakeQueue, SystemClock
from lakequeue.storage.messages import read
from lakequeue.storage.messages.read import LogFile


class Meeting:
    """Reads of one kind. The first waits until a second one runs, or for some seconds."""

    def __init__(self) -> None:
        self.changed, self.running, self.most = Condition(), Counter[str](), Counter[str]()

    def join(self, kind: str) -> None:
        with self.changed:
            self.running[kind] += 1
            self.most[kind] = max(self.most[kind], self.running[kind])
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.most[kind] > 1, timeout=5)

    def leave(self, kind: str) -> None:
        with self.changed:
            self.running[kind] -= 1


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_a_receive_reads_the_files_of_single_sends_at_once(
    lq: LakeQueue, monkeypatch: pytest.MonkeyPatch, fifo: bool
) -> None:
    name = "orders.fifo" if fifo else "orders"
    queue = lq.create_queue(name, **({"fifo": True, "content_based_deduplication": True} if fifo else {}))
    for number in range(6):
        queue.send(str(number), group_id=f"g{number}" if fifo else None)
    meeting, rows_of = Meeting(), LogFile.rows_of

    def met(self: LogFile, table: Any, columns: Sequence[str], *span: int) -> Any:
        kind = "bodies" if "body" in columns else "send times"
        if self.first == 0:  # the shard asks for its first message alone
            return rows_of(self, table, columns, *span)
        meeting.join(kind)
        try:
            return rows_of(self, table, columns, *span)
        finally:
            meeting.leave(kind)

    monkeypatch.setattr(read, "_known", {})  # another process does not share what this one read
    monkeypatch.setattr(LogFile, "rows_of", met)
    there = apart(lq.root, SystemClock(), 1)[0].queue(name)
    assert sorted(message.body for message in there.receive(10)) == list("012345")
    assert meeting.most["bodies"] > 1
    assert not fifo or meeting.most["send times"] > 1
