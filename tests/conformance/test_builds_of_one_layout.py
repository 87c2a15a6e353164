"""Processes of two builds of one layout use a root at the same time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from typer.testing import CliRunner

import lakequeue
from lakequeue import LakeQueue, QueueClientError
from lakequeue.cli import app

CALLS = """
import sys
from lakequeue import LakeQueue
from lakequeue.storage.layout import MESSAGES
queue = LakeQueue(sys.argv[1]).queue("orders")
for message in queue.receive(10):
    queue.delete(message.receipt_handle)
    print(message.body)
for body in "later 1", "later 2":
    queue.send(body)
[held] = queue.receive()
print(held.receipt_handle, MESSAGES.names[-1])
"""


@pytest.mark.spec("DUR-43")
def test_a_build_with_one_more_column_and_this_build_read_what_the_other_wrote(tmp_path: Path) -> None:
    """The receipt handle of one is valid in the other, too."""
    later, package = tmp_path / "src" / "lakequeue", Path(lakequeue.__file__).parent
    shutil.copytree(package, later, ignore=shutil.ignore_patterns("__pycache__"))
    layout = later / "storage" / "layout.py"
    last = '("only_for", pa.string()),'
    text = layout.read_text().replace(last, f'{last} ("later", pa.string()),')
    layout.write_text(text.replace('"only_for"}', '"only_for", "later"}'))
    lake = LakeQueue(tmp_path / "root")
    queue = lake.create_queue("orders")
    for body in "now 1", "now 2":
        queue.send(body)
    run = [sys.executable, "-c", CALLS, lake.root]
    env = os.environ | {"PYTHONPATH": str(later.parent)}
    *bodies, last = subprocess.run(run, capture_output=True, text=True, check=True, env=env).stdout.splitlines()
    handle, column = last.split()
    assert (bodies, column) == (["now 1", "now 2"], "later")
    queue.delete(handle)
    [message] = queue.receive(10)
    queue.delete(message.receipt_handle)
    lake.compact()
    assert message.body == "later 2" and lake.check() == []


@pytest.mark.spec("DUR-71")
def test_an_attribute_of_a_later_build_is_refused_until_it_is_set_back(tmp_path: Path) -> None:
    """Other queues can be used, but nothing that reads all queues."""
    lake = LakeQueue(tmp_path / "root")
    lake.create_queue("orders")
    mails = lake.create_queue("mails")
    [row] = (row for row in lake._runtime.rows() if row.name == "orders")
    lake._runtime.update(row, lambda now: attrs.evolve(now, attributes=now.attributes | {"Later": "1"}))
    mails.send("x")
    assert [message.body for message in mails.receive()] == ["x"]
    with pytest.raises(QueueClientError, match="unknown attribute Later of a queue: install a newer lakequeue"):
        LakeQueue(lake.root).queue("orders").send("x")
    for command in "list", "doctor", "compact":
        done = CliRunner().invoke(app, ["--root", lake.root, command])
        assert done.exit_code == 3 and "unknown attribute Later" in done.stderr, command
    lake._runtime.update(row, lambda now: attrs.evolve(now, attributes=row.attributes))
    LakeQueue(lake.root).queue("orders").send("x")
    assert CliRunner().invoke(app, ["--root", lake.root, "list"]).exit_code == 0
