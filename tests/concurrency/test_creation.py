"""Roots and queues created concurrently, partly, or in a forked child."""

from __future__ import annotations

import gc
import multiprocessing
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from concurrency.harness import apart, drain
from concurrency.steps import at, held_at
from lakequeue import LakeQueue, QueueDoesNotExist
from lakequeue.operations import create_queue
from lakequeue.storage.catalog import Catalog, QueueRow
from lakequeue.storage.engines.point import Engine
from lakequeue.testing import ManualClock
from mutations import Patch

CREATE = """
import os, sys
from lakequeue import LakeQueue
open(f"{sys.argv[2]}{sys.argv[3]}", "x").close()
while not os.path.exists(sys.argv[2]):
    pass
for name in ("orders", f"own-{sys.argv[3]}"):
    LakeQueue(sys.argv[1]).create_queue(name).send(sys.argv[3])
"""


@pytest.mark.spec("QUE-15", "DLT-4")
def test_four_processes_that_make_a_root_at_once(tmp_path: Path) -> None:
    root, go = str(tmp_path / "root"), tmp_path / "go"
    commands = [[sys.executable, "-c", CREATE, root, str(go), str(number)] for number in range(4)]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("go*"))) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    go.touch()
    for process in running:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    lq = LakeQueue(root)
    names = {queue.name for queue in lq.list_queues()}
    assert names == {"orders", *(f"own-{number}" for number in range(4))}
    assert sorted(drain(lq.queue("orders"))) == list("0123")


@pytest.mark.spec("QUE-15")
def test_a_root_that_another_process_makes_meanwhile_is_used(tmp_path: Path, monkeypatch: Patch) -> None:
    here, there = apart(tmp_path / "root", ManualClock())
    at(monkeypatch, Engine, "exists", lambda: there.create_queue("orders"))
    queue = here.create_queue("orders")
    assert [other.key for other in there.list_queues()] == [queue.key]


@pytest.mark.spec("QUE-15")
@pytest.mark.parametrize("left", ["queues", "queues/_delta_log", "queues/_commit.lock/", "q"])
def test_a_root_whose_making_was_killed_is_made_by_the_next_process(tmp_path: Path, left: str) -> None:
    path = tmp_path / "root" / left
    if left.endswith("/"):
        path.parent.mkdir(parents=True)
        path.touch()
    else:
        path.mkdir(parents=True)
    queue = LakeQueue(str(tmp_path / "root")).create_queue("orders")
    queue.send("a")
    assert drain(queue) == ["a"]


@pytest.mark.spec("DLT-7")
def test_tables_of_a_creation_that_was_lost_or_killed_are_removed(tmp_path: Path, monkeypatch: Patch) -> None:
    lq = LakeQueue(str(tmp_path / "root"), clock=ManualClock())
    kept = lq.create_queue("kept")
    kept.send("a")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        at(patch, Catalog, "put", KeyboardInterrupt())
        lq.create_queue("orders")
    folders = tmp_path / "root" / "q"
    assert len(list(folders.iterdir())) == 2
    freed = lq.compact()[-1]
    assert freed.queue is None and freed.files_freed > 0 and not freed.failures
    assert [path.name for path in folders.iterdir()] == [kept.key]
    assert drain(kept) == ["a"]


@pytest.mark.spec("DLT-7")
def test_tables_of_a_queue_that_is_just_being_created_stay(tmp_path: Path, monkeypatch: Patch) -> None:
    here, there = apart(tmp_path / "root", ManualClock())
    here.create_queue("kept")

    def sweep() -> None:
        monkeypatch.setattr("lakequeue.storage.cleaning.PATIENCE", 0.05)
        assert any("was held" in failure for failure in there.compact()[-1].failures)

    at(monkeypatch, Catalog, "put", sweep)
    queue = here.create_queue("orders")
    queue.send("a")
    assert drain(there.queue("orders")) == ["a"]


def test_on_an_object_store_a_creation_that_took_too_long_starts_again(tmp_path: Path, monkeypatch: Patch) -> None:
    lq = LakeQueue(str(tmp_path / "root"), clock=ManualClock())
    lq.create_queue("first")
    monkeypatch.setattr("lakequeue.storage.catalog.local_path", lambda _: None)  # no lock
    made: list[str] = []
    make = create_queue.make_tables

    def slow(self: LakeQueue, row: QueueRow) -> None:
        make(self, row)
        made.append(row.key)
        if len(made) == 1:
            now = time.time
            monkeypatch.setattr("lakequeue.storage.catalog.time.time", lambda: now() + 3_601)

    monkeypatch.setattr(create_queue, "make_tables", slow)
    queue = lq.create_queue("orders")
    assert len(made) == 2 and queue.key == made[1]


def test_other_queues_work_while_the_tables_of_a_queue_are_made(tmp_path: Path, monkeypatch: Patch) -> None:
    lq = LakeQueue(str(tmp_path / "root"), clock=ManualClock())
    kept = lq.create_queue("kept")
    with held_at(monkeypatch, create_queue, "make_tables", lambda: lq.create_queue("orders")) as pool:
        others = pool.submit(lambda: (kept.attributes(wire=True), kept.set_tags(a="b"), lq.list_queues()))
        assert [queue.name for queue in others.result(60)[2]] == ["kept"]
    assert [queue.name for queue in lq.list_queues()] == ["kept", "orders"]


@pytest.mark.spec("QUE-13")
@pytest.mark.parametrize("who", ["here", "there"])
def test_what_a_process_held_of_a_deleted_queue_is_let_go(tmp_path: Path, who: str) -> None:
    here, there = apart(tmp_path / "root", ManualClock())
    queue = here.create_queue("orders")
    queue.send("a" * 100_000)
    (here if who == "here" else there).delete_queue("orders")
    with pytest.raises(QueueDoesNotExist):
        queue.receive()
    held = weakref.ref(queue._runtime.shards[0])
    del queue
    gc.collect()
    assert held() is None


def _in_child(root: str, work: str, answers: multiprocessing.Queue) -> None:
    try:
        answers.put(FORKED[work](root))
    except Exception as error:
        answers.put(f"{type(error).__name__}: {error}")


FORKED: dict[str, Callable[[str], str]] = {
    "open": lambda root: LakeQueue(root).queue("orders").send("child").message_id,
    "send": lambda root: KNOWN[0].queue("orders").send("child").message_id,
}
KNOWN: list[LakeQueue] = []


@pytest.mark.spec("ERR-2")
@pytest.mark.parametrize("work", FORKED)
def test_a_forked_child_says_in_one_line_that_it_cannot_work(tmp_path: Path, work: str) -> None:
    lq = LakeQueue(str(tmp_path / "root"))
    lq.create_queue("orders").send("parent")
    KNOWN[:] = [lq]
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_in_child, args=(lq.root, work, answers))
    child.start()
    answer = answers.get(timeout=60)
    child.join(60)
    assert answer.startswith("QueueClientError: lakequeue cannot be used after fork()") and "\n" not in answer
    assert "(gunicorn: no --preload)" in answer
    assert drain(lq.queue("orders")) == ["parent"]


def test_children_that_are_forked_before_anything_was_used_work(tmp_path: Path) -> None:
    script = """
import multiprocessing, sys
from lakequeue import LakeQueue
lq = LakeQueue(sys.argv[1])
def work(number):
    lq.queue("orders").send(str(number))
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(work, range(2), chunksize=1)
    print(sorted(message.body for message in lq.queue("orders").receive(max_messages=10)))
"""
    make = "import sys; from lakequeue import LakeQueue; LakeQueue(sys.argv[1]).create_queue('orders')"
    root = str(tmp_path / "root")
    subprocess.run([sys.executable, "-c", make, root], check=True)
    done = subprocess.run([sys.executable, "-c", script, root], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "['0', '1']", done.stderr
