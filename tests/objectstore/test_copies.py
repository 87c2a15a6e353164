"""Copies between local disks and an object store, either way."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from benchmarks.object_store import Counted
from typer.testing import CliRunner

from concurrency.harness import check_log, drain
from lakequeue import LakeQueue, QueueClientError, SendEntry
from lakequeue.cli import app
from lakequeue.operations.copy import ShardCopies
from lakequeue.storage.stores import Store
from objectstore.servers import Bucket

DEPLOY = Path(__file__).parents[2] / "deploy"

pytestmark = [pytest.mark.objectstore, pytest.mark.spec("DUR-40")]


def test_there_and_back(s3_root: str, tmp_path: Path) -> None:
    here = LakeQueue(str(tmp_path / "here"))
    queue = here.create_queue("orders", shards=2)
    fifo = here.create_queue("orders.fifo", fifo=True)
    for number in range(5):
        queue.send(str(number))
        fifo.send(str(number), group_id="g", dedup_id=str(number))
    [held], [first] = queue.receive(1), fifo.receive(1)
    there = LakeQueue(s3_root)
    here.copy(there)
    there.queue("orders").delete(held)
    there.queue("orders.fifo").delete(first)
    there.queue("orders").send_batch([SendEntry("5"), SendEntry("6")])
    there.compact()
    back = LakeQueue(str(tmp_path / "back"))
    copied = there.copy(back)
    assert [(each.queue, each.messages) for each in copied] == [("orders", 6), ("orders.fifo", 4)]
    check_log(back.queue("orders"))
    assert sorted(drain(back.queue("orders"))) == sorted({*"0123456"} - {held.body})
    again = back.queue("orders.fifo").send("4", group_id="g", dedup_id="4")
    last = back.queue("orders.fifo").receive(10)[-1]
    assert (last.body, last.message_id) == ("4", again.message_id)


def test_a_killed_copy_is_repeated(s3_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = LakeQueue(str(tmp_path / "here")), LakeQueue(s3_root)
    here.create_queue("orders").send("x")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ShardCopies, "_finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        here.copy(there)
    assert there.list_queues() == []
    here.copy(there)
    assert drain(there.queue("orders")) == ["x"]
    with pytest.raises(QueueClientError, match="has the queue orders already"):
        here.copy(there)


def test_each_root_has_its_own_options(s3_server: Bucket, tmp_path: Path) -> None:
    here, there = str(tmp_path / "here"), s3_server.new_root()
    LakeQueue(here).create_queue("orders").send("x")
    options = [f"{name}={value}" for name, value in s3_server.options.items()]
    to = [word for option in options for word in ("--to-storage-option", option)]
    assert CliRunner().invoke(app, ["copy", here, there, *to]).exit_code == 0
    back = [word for option in options for word in ("--storage-option", option)]
    assert CliRunner().invoke(app, ["copy", there, f"{here}-2", *back]).exit_code == 0
    assert drain(LakeQueue(f"{here}-2").queue("orders")) == ["x"]


def test_the_script_of_the_manifest_makes_a_copy_in_a_prefix_of_its_own(store: Counted, lq: LakeQueue) -> None:
    lq.create_queue("orders").send("x")
    manifest = (DEPLOY / "kubernetes" / "copy.yaml").read_text()
    [document] = yaml.safe_load_all(manifest)
    [container] = document["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    [script] = container["args"]
    page = (DEPLOY.parent / "docs" / "operation" / "copying.md").read_text(encoding="utf-8")
    words = r"\w+://my-copies/[^\"]+|--to-\S+ \S+"
    assert len(re.findall(words, script)) == 2 and len(re.findall(words, manifest)) == 5
    assert all(each in page for each in re.findall(words, manifest)), "the page shows another command"
    copies = f"{lq.root}-copies"
    paths = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run = ["sh", "-c", script.replace("s3://my-copies", copies)]
    subprocess.run(run, check=True, env=os.environ | {"LAKEQUEUE_ROOT": lq.root, "PATH": paths})
    [name] = Store(copies).folder(copies).folders()
    assert drain(LakeQueue(f"{copies}/{name}").queue("orders")) == ["x"]
