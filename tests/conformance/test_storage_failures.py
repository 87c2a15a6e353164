"""Commits that fail, land without an answer or lose races, and unusable roots."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from obstore.exceptions import GenericError

from concurrency.steps import at
from conformance.harness import Harness, every_engine, local_only
from insides import engine_of
from lakequeue import LakeQueue, errors
from lakequeue.storage.engines import commit
from lakequeue.storage.engines.point import Table
from lakequeue.storage.messages.body_cache import BodyCache


@every_engine
@pytest.mark.spec("SND-17", "ERR-9", "DLT-1")
def test_a_commit_that_landed_but_raised_is_not_made_again(harness: Harness, monkeypatch):
    queue = harness.create()
    table = type(engine_of(harness.open()).open(f"{harness.root}/queues"))
    failed = at(monkeypatch, table, ("append", "merge"), OSError("the answer was lost"), times=3, landed=True)
    queue.send("A")
    (m,) = queue.receive(10)
    assert harness.queue().counts().in_flight == 1
    queue.delete(m.receipt_handle)
    assert failed.seen == 3
    assert harness.queue().peek() == []


@local_only
@pytest.mark.spec("SND-17", "DLT-1")
def test_a_commit_that_lands_late_is_not_taken_for_one_of_others(harness: Harness, monkeypatch):
    """On an object store: no answer came, and it lands right before the next try looks at the log."""
    monkeypatch.setattr(commit, "OLDEST_BASE", 0.0)
    monkeypatch.setattr(commit, "local_path", lambda path: None)
    queue = harness.create()
    append, confirm, late = Table.append, Table.confirm, []

    def unanswered(self, *given):
        if late:
            return append(self, *given)
        late.append(lambda: append(engine_of(harness.open()).open(self.path), *given))
        entry = f"https://store/_delta_log/{self.version + 1:020}.json"
        raise OSError(
            f"Error performing PUT {entry} in 20s, after 1 retries, max_retries: 5 - operation timed out"
        )

    def landed(self):
        if late and "messages" in self.path:
            late[0]()
            late[0] = lambda: None
        confirm(self)

    monkeypatch.setattr(Table, "append", unanswered)
    monkeypatch.setattr(Table, "confirm", landed)
    queue.send("A")
    assert late and [message.body for message in harness.queue().receive(10)] == ["A"]


@local_only
@pytest.mark.spec("SND-17", "DLT-1")
def test_a_try_without_an_answer_is_not_refused_by_the_look_after_it(harness: Harness, monkeypatch):
    """On an object store: no answer came, and before the next try the log cannot be listed."""
    monkeypatch.setattr(commit, "OLDEST_BASE", 0.0)
    monkeypatch.setattr(commit, "local_path", lambda path: None)
    queue, confirm, failed = harness.create(), Table.confirm, []

    def unanswered(self, *_):
        failed.append(1)
        raise GenericError(f"Error performing PUT {self.path}/_delta_log/{self.version + 1:020}.json in 20s")

    def listed(self):
        if failed:
            raise OSError("the storage is busy")
        confirm(self)

    monkeypatch.setattr(Table, "append", unanswered)
    monkeypatch.setattr(Table, "confirm", listed)
    with pytest.raises(errors.QueueClientError, match="may have landed") as error:
        queue.send("A")
    assert error.value.outcome_unknown and len(failed) == 1


def a_newer_layout(harness: Harness) -> None:
    harness.create()
    DeltaTable(f"{harness.root}/queues").update({"layout_version": "99"})


def something_else(harness: Harness) -> None:
    harness.folder.write("notes.txt", b"mine")


def nothing(harness: Harness) -> None:
    """Only a creation makes it."""


@pytest.mark.spec("ERR-2", "ERR-8")
@pytest.mark.parametrize(
    ("there", "says"),
    [(a_newer_layout, "99"), (something_else, "holds"), (nothing, "does not exist|holds no queues")],
)
def test_a_root_that_cannot_be_used_is_left_alone(harness: Harness, there, says: str):
    there(harness)
    before, lq = (harness.files(), harness.versions()), harness.open()
    verbs = [lambda: lq.queue("orders"), lambda: lq.list_queues(), lambda: lq.delete_queue("orders")]
    for verb in verbs if there is nothing else [*verbs, lambda: lq.create_queue("other")]:
        with pytest.raises(errors.QueueClientError, match=says):
            verb()
    assert (harness.files(), harness.versions()) == before


@pytest.mark.spec("ERR-2", "ERR-8")
@pytest.mark.spec("DUR-43")
@pytest.mark.parametrize(
    ("version", "advice"),
    [
        (1, "the last lakequeue that can read it is 0.1"),
        (4, "the last lakequeue that can read it is 0.2"),
        (5, "end all processes that use it, and run `lakequeue upgrade`"),
        (99, "install a newer one"),
    ],
)
def test_a_layout_with_other_columns_is_named_too(harness: Harness, version: int, advice: str):
    harness.create()
    rows = pa.table({"name": ["orders"], "layout_version": pa.array([version], pa.int32())})
    write_deltalake(f"{harness.root}/queues", rows, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(errors.QueueClientError, match=f"has layout version {version}, .*: {advice}$"):
        harness.open().list_queues()


@local_only
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


@pytest.mark.spec("ERR-2")
def test_tables_that_vanished_are_an_error_of_the_client(harness: Harness):
    queue = harness.create()
    harness.wipe(f"q/{queue.key}")
    for verb in (
        lambda: harness.queue().send("A"),
        lambda: harness.queue().receive(),
        lambda: harness.queue().counts(),
    ):
        with pytest.raises(errors.QueueClientError):
            verb()


@every_engine
@pytest.mark.spec("DUR-8", "RCV-2")
def test_a_receive_after_bodies_could_not_be_read_finds_new_messages(harness: Harness, monkeypatch):
    queue = harness.create()
    queue.send("A")
    with monkeypatch.context() as patch:
        at(patch, BodyCache, ("rows",), OSError("the storage does not answer"), times=2)
        with suppress(errors.QueueClientError):
            assert queue.receive(wait_time=0) == []
    harness.queue().send("B")
    assert [message.body for message in queue.receive(10, wait_time=0)] == ["B"]
