"""Commits that fail, land without an answer or lose their races, and roots that cannot be used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from deltalake import DeltaTable

from conformance.harness import Harness, bodies, point_only
from lakequeue import LakeQueue, errors
from lakequeue.runtime import shard_service
from lakequeue.shard import Purge
from lakequeue.storage.engines import commit
from lakequeue.storage.engines.interface import LostRace


def table_class(harness: Harness):
    return type(harness.open().runtime.engine.open(f"{harness.root}/queues"))


@pytest.mark.core
@pytest.mark.spec("SND-17", "ERR-9", "DLT-1")
def test_a_commit_that_landed_but_raised_is_not_made_again(harness: Harness, monkeypatch):
    queue = harness.create()
    table = table_class(harness)
    failed = []

    def landing(name):
        plain = getattr(table, name)

        def raises(self, *args):
            plain(self, *args)
            failed.append(name)
            raise OSError("the answer was lost")

        monkeypatch.setattr(table, name, raises)

    landing("append")
    landing("merge")
    queue.send("A")
    (m,) = queue.receive(10)
    assert harness.queue().counts().in_flight == 1
    queue.delete(m.receipt_handle)
    assert failed == ["append", "merge", "merge"]
    assert harness.queue().peek() == []


@point_only
@pytest.mark.spec("ERR-2", "ERR-8", "SND-17")
def test_a_commit_that_fails_is_an_error_of_the_client_and_leaves_nothing(harness: Harness, monkeypatch):
    queue = harness.create()
    queue.send("A")
    before = harness.versions()

    def fails(self, *args):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        for name in ("append", "merge"):
            patch.setattr(table_class(harness), name, fails)
        for verb in (lambda: queue.send("B"), queue.receive, lambda: queue.set_attributes(delay=5)):
            with pytest.raises(errors.QueueClientError, match="no space left") as caught:
                verb()
            assert not caught.value.outcome_unknown
    assert harness.versions() == before
    queue.send("C")
    assert bodies(queue.receive(10)) == ["A", "C"]


@point_only
@pytest.mark.spec("ERR-2", "DEL-7", "RCP-10")
def test_a_commit_whose_outcome_is_unknown_says_so_and_may_be_repeated(harness: Harness, monkeypatch):
    queue = harness.create()
    queue.send("A")
    (m,) = queue.receive()
    table = table_class(harness)
    plain = table.merge

    def lands_and_raises(self, *args):
        plain(self, *args)
        raise OSError("the answer was lost")

    def unreachable(self, *args):
        raise OSError("no route to host")

    with monkeypatch.context() as patch:
        patch.setattr(table, "merge", lands_and_raises)
        patch.setattr(table, "landed", unreachable)
        with pytest.raises(errors.QueueClientError, match="unknown") as caught:
            queue.delete(m.receipt_handle)
    assert caught.value.outcome_unknown
    queue.delete(m.receipt_handle)
    assert harness.queue().peek() == []


@point_only
@pytest.mark.spec("ERR-9", "ERR-8")
def test_a_race_lost_again_and_again_ends_in_a_refusal_that_changed_nothing(harness: Harness, monkeypatch):
    queue = harness.create()
    queue.send("A")
    before = harness.versions()

    def loses(self, *args):
        raise LostRace("another commit was faster")

    with monkeypatch.context() as patch:
        patch.setattr(shard_service, "ATTEMPTS", 3)
        patch.setattr(commit, "_REPEATS", 2)
        for name in ("append", "merge"):
            patch.setattr(table_class(harness), name, loses)
        for verb in (lambda: queue.send("B"), queue.receive):
            with pytest.raises(errors.RequestThrottled):
                verb()
    assert harness.versions() == before
    assert bodies(queue.receive(10)) == ["A"]


@point_only
@pytest.mark.spec("ERR-2", "ERR-8")
def test_a_root_of_a_newer_layout_is_left_alone(harness: Harness):
    harness.create()
    DeltaTable(f"{harness.root}/queues").update({"layout_version": "99"})
    before = harness.versions()
    lq = harness.open()
    for verb in (
        lambda: lq.queue("orders"),
        lambda: lq.list_queues(),
        lambda: lq.create_queue("other"),
        lambda: lq.delete_queue("orders"),
    ):
        with pytest.raises(errors.QueueClientError, match="99"):
            verb()
    assert harness.versions() == before


@pytest.mark.spec("ERR-2")
def test_only_create_makes_a_root(lq: LakeQueue, harness: Harness):
    for verb in (lambda: lq.queue("orders"), lambda: lq.list_queues(), lambda: lq.delete_queue("orders")):
        with pytest.raises(errors.QueueClientError, match="does not exist"):
            verb()
    assert not Path(harness.root).exists()


@point_only
@pytest.mark.spec("ERR-2", "ERR-8")
def test_a_root_that_holds_something_else_is_left_alone(lq: LakeQueue, harness: Harness):
    Path(harness.root).mkdir()
    (Path(harness.root) / "notes.txt").write_text("mine")
    for verb in (lambda: lq.create_queue("orders"), lambda: lq.queue("orders"), lambda: lq.list_queues()):
        with pytest.raises(errors.QueueClientError, match="holds"):
            verb()
    assert os.listdir(harness.root) == ["notes.txt"]


@point_only
@pytest.mark.spec("ERR-2")
def test_a_root_that_cannot_be_written_is_an_error_of_the_client(harness: Harness, tmp_path):
    (tmp_path / "file").write_text("in the way")
    for root in (tmp_path / "file", tmp_path / "file" / "root"):
        lq = LakeQueue(str(root), clock=harness.clock)
        with pytest.raises(errors.QueueClientError, match="file") as caught:
            lq.create_queue("orders")
        assert "\n" not in str(caught.value)
        with pytest.raises(errors.QueueClientError):
            lq.list_queues()


@point_only
@pytest.mark.spec("ERR-2")
def test_tables_that_vanished_are_an_error_of_the_client(harness: Harness):
    import shutil

    queue = harness.create()
    shutil.rmtree(f"{harness.root}/q/{queue.key}")
    for verb in (
        lambda: harness.queue().send("A"),
        lambda: harness.queue().receive(),
        lambda: harness.queue().counts(),
    ):
        with pytest.raises(errors.QueueClientError):
            verb()


@pytest.mark.spec("PUR-2", "ERR-8")
@point_only
def test_a_purge_that_was_cut_short_between_shards_can_be_repeated(harness: Harness) -> None:
    queue = harness.create(shards=3)
    for number in range(6):
        queue.send(str(number))
    last = queue.runtime.shards[-1]
    last.command([Purge(queue.name, at_any_time=True)], queue.runtime.now)  # as far as the first call got
    queue.purge()
    assert queue.counts().visible == 0
    with pytest.raises(errors.PurgeQueueInProgress):
        queue.purge()
