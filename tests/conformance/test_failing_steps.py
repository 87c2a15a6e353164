"""Each commit of a verb fails in turn: it is done all the same, refused with nothing changed, or unknown."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from insides import reopen
from lakequeue import LakeQueue, Message, Queue, RedrivePolicy
from lakequeue.errors import QueueClientError
from lakequeue.operations.settle import give_back
from lakequeue.storage.folder import Folder
from lakequeue.testing import ManualClock


class Failing:
    """Lets the entry of a log be created so many times, and fails the next one."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.left, self.failed, create = 0, False, Folder.create
        self.active = False

        def failing(folder: Folder, name: str, data: bytes, **more: Any) -> bool:
            if self.active and name.startswith("_delta_log/") and not self.failed:
                self.failed = self.left == 0
                self.left -= 1
                if self.failed:
                    raise OSError(28, "No space left on device")
            return create(folder, name, data, **more)

        patch.setattr(Folder, "create", failing)

    def run(self, after: int, call: Callable[[], object]) -> Exception | None:
        """The error of a call whose commits fail once ``after`` of them were made."""
        self.left, self.failed, self.active = after, False, True
        try:
            call()
            return None
        except QueueClientError as error:
            return error
        finally:
            self.active = False


def made(lake: LakeQueue) -> Queue:
    """A queue of three shards with messages in every state, and dead letters."""
    lake.create_queue("dead")
    queue = lake.create_queue(
        "orders", shards=3, rewind_range=3_600, visibility_timeout=30, group_in_flight_limit=100
    )
    for number in range(12):  # the group says in which shard
        queue.send(f"m{number}", group_id=f"g{number}")
    queue.delete_batch(queue.receive(1)).raise_for_failures()
    return queue


def received(lake: LakeQueue) -> list[Message]:
    """Messages of several shards."""
    found: list[Message] = []
    while len({message.receipt_handle.split("-")[2] for message in found}) < 2:
        found += reopen(lake).queue("orders").receive(10)
    return found


def told(lake: LakeQueue) -> list[object]:
    """What anybody sees of the queues, in another process."""
    seen: list[object] = []
    for queue in reopen(lake).all_queues():
        states = sorted((each.message_id, each.state, each.receive_count) for each in queue.peek(limit=100))
        seen += [
            queue.name,
            queue.attributes(["RedrivePolicy", "VisibilityTimeout"], wire=True),
            queue.tags(),
            states,
        ]
        seen += [queue.counts().rewindable]
    return seen


VERBS: dict[str, Callable[[Queue, list[Any]], object]] = {
    "send": lambda queue, _: queue.send("x", group_id="g"),
    "send_arrow": lambda queue, _: queue.send_arrow(pa.table({"body": list(map(str, range(400)))}), send_id="s"),
    "receive": lambda queue, _: queue.receive(10),
    "delete": lambda queue, found: queue.delete_batch(found),
    "change_visibility": lambda queue, found: queue.change_visibility_batch([(each, 7) for each in found]),
    "give_back": lambda queue, found: give_back(queue._runtime, [each.receipt_handle for each in found]),
    "purge": lambda queue, _: queue.purge(),
    "rewind": lambda queue, _: queue.rewind(queue.created_at),
    "set_attributes": lambda queue, _: queue.set_attributes(visibility_timeout=7),
    "redrive policy": lambda queue, _: queue.set_attributes(redrive_policy=RedrivePolicy("dead", 1)),
    "set_tags": lambda queue, _: queue.set_tags(team="a"),
    "erase": lambda queue, found: queue.erase(found[0].message_id),
    "lease": lambda queue, _: queue.lease(),
    "update": lambda queue, _: LakeQueue(queue._runtime.root.path, clock=queue.clock, engine="point").create_queue(
        "orders", update=True, visibility_timeout=7, tags={"team": "a"}
    ),
}


@pytest.mark.spec("ERR-8", "QUE-39")
@pytest.mark.parametrize("verb", VERBS)
def test_each_commit_of_a_verb_fails_in_turn(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    failing, base = Failing(monkeypatch), LakeQueue(str(tmp_path / "base"), clock=clock, engine="point")
    made(base)
    found, before = received(base), told(base)
    for after in range(12):
        shutil.copytree(base.root, tmp_path / str(after))
        lake = LakeQueue(str(tmp_path / str(after)), clock=clock, engine="point")
        queue = reopen(lake).queue("orders")
        error = failing.run(after, lambda queue=queue, found=found: VERBS[verb](queue, found))  # type: ignore[misc]
        if not failing.failed:
            return  # it makes fewer commits
        now = told(lake)
        if error is not None and not getattr(error, "outcome_unknown", False):
            assert now == before, f"refused after {after} commits: {error}"
    raise AssertionError("a verb of twelve commits")
