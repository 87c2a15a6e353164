"""What schedules have found, as tests that need no schedule."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from concurrency.harness import apart
from lakequeue import SendEntry
from lakequeue.shard.decide import ShardMachine
from lakequeue.storage.folder import ListedFile, LocalFolder
from lakequeue.storage.messages import read
from lakequeue.testing import ManualClock


@pytest.mark.spec("DLT-7")
def test_a_process_that_was_stopped_while_it_listed_a_log_looks_again(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = apart(tmp_path / "root", clock)
    here.create_queue("orders").send("a")
    files, gone = LocalFolder.files, []

    def trimmed_meanwhile(self: LocalFolder, *names: Any) -> Iterator[ListedFile]:
        if self.uri.endswith("receipts") and not gone:
            gone.append(self.uri)  # all that the listing named was removed before it was looked at
            return iter([])
        return files(self, *names)

    queue = there.queue("orders")
    monkeypatch.setattr(LocalFolder, "files", trimmed_meanwhile)
    assert [message.body for message in queue.receive()] == ["a"]
    assert gone


@pytest.mark.spec("DLT-7", "RCV-4")
def test_a_receive_that_was_stopped_before_it_read_a_file_which_was_erased_since_reads_the_log_again(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = apart(tmp_path / "root", clock)
    queue = here.create_queue("orders.fifo", fifo=True, content_based_deduplication=True)
    sent = queue.send_batch([SendEntry(body, group_id="A") for body in "ab"])  # in one file
    decide = ShardMachine.decide

    def stopped(self: ShardMachine, *given: Any) -> Any:
        monkeypatch.undo()
        queue.erase(sent.successful[0].message_id)
        monkeypatch.setattr(read, "_known", {})  # two processes would not share what was read
        return decide(self, *given)

    other = there.queue("orders.fifo")
    monkeypatch.setattr(ShardMachine, "decide", stopped)
    assert [message.body for message in other.receive(10)] == ["b"]
