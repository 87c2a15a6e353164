"""Erasing a message on an object store: the newest files lose it at once, older ones after 48 hours."""

from __future__ import annotations

import pytest

from concurrency.harness import check_log, drain
from lakequeue import LakeQueue, SendEntry


@pytest.mark.objectstore
@pytest.mark.spec("DUR-42")
def test_an_erased_message_is_in_no_newest_file(s3_root: str) -> None:
    queue = LakeQueue(s3_root).create_queue("orders")
    sent = queue.send_batch([SendEntry(body) for body in ("a", "secret", "b")]).successful
    assert queue.erase(sent[1].message_id)
    assert queue.erase(sent[1].message_id) is False
    queue.send("c")
    assert [row.body for row in check_log(queue)] == ["a", "", "b", "c"]
    assert sorted(drain(queue)) == ["a", "b", "c"]
