"""What schedules have found, as tests that need no schedule."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from concurrency.harness import apart
from lakequeue.storage.folder import Entry, Folder
from lakequeue.testing import ManualClock


@pytest.mark.spec("DLT-7")
def test_a_process_that_was_stopped_while_it_listed_a_log_looks_again(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = apart(tmp_path / "root", clock)
    here.create_queue("orders").send("a")
    files, gone = Folder.files, []

    def trimmed_meanwhile(self: Folder, *names: Any) -> Iterator[Entry]:
        if self.uri.endswith("receipts") and not gone:
            gone.append(self.uri)  # all that the listing named was removed before it was looked at
            return iter([])
        return files(self, *names)

    queue = there.queue("orders")
    monkeypatch.setattr(Folder, "files", trimmed_meanwhile)
    assert [message.body for message in queue.receive()] == ["a"]
    assert gone
