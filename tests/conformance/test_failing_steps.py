"""Each commit of a verb fails in turn, and all after it: it is done, refused with nothing changed, or unknown."""

from __future__ import annotations

import asyncio
import inspect
import shutil
from collections.abc import Callable
from pathlib import Path

import attrs
import pyarrow as pa
import pytest

from conformance.failing import Failing
from insides import messages_of, reopen
from lakequeue import LakeQueue, Lease, Message, Queue, RedrivePolicy, SendEntry
from lakequeue.operations import exchange, lease, selected
from lakequeue.operations.receive import Request
from lakequeue.operations.settle import give_back
from lakequeue.runtime.calls import Steps
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, each_case, replace, shown_by


@attrs.frozen
class Given:
    """What a process has of the queue ``orders``, in several shards each."""

    messages: list[Message]
    lease_id: str

    def leased(self, queue: Queue) -> lease.LeasedMessages:
        found = lease.held(queue._runtime, self.lease_id)
        assert found is not None and len(found.parts) > 1
        return found

    @property
    def handles(self) -> list[str]:
        return [each.receipt_handle for each in self.messages]


def made(lake: LakeQueue, clock: ManualClock) -> Given:
    """A queue with messages in every state in each of three shards, dead letters, and one about to be one."""
    lake.create_queue("dead")
    failing = lake.create_queue("failing", redrive_policy=RedrivePolicy("dead", 1))
    for body in "abc":
        failing.send(body)
        failing.receive(visibility_timeout=0)
        if body < "c":
            assert failing.receive() == []  # it is a dead letter now
    queue = lake.create_queue(
        "orders", shards=3, rewind_range=3_600, visibility_timeout=30, group_in_flight_limit=100
    )
    entries = [SendEntry(f"m{number}", group_id=f"g{number}") for number in range(36)]  # the group says the shard
    clock.advance(1)
    queue.send_batch(entries).raise_for_failures()
    gone = queue.lease(36)
    assert gone is not None and gone.delete().done == 36
    queue.send_batch(entries).raise_for_failures()
    messages: list[Message] = []
    while len({message.receipt_handle.split("-")[2] for message in messages}) < 2:
        messages += reopen(lake).queue("orders").receive(10)
    found = reopen(lake).queue("orders").lease(15)
    assert found is not None and len(found._runtime.parts) > 1
    queue.send_batch(entries).raise_for_failures()
    return Given(messages, found._runtime.lease_id)


def told(lake: LakeQueue) -> list[object]:
    """What anybody sees of the queues, in another process, and of a copy."""
    seen: list[object] = []
    for queue in reopen(lake).all_queues():
        peeked = queue.peek(limit=100)
        states = sorted((each.message_id, each.state, each.receive_count, each.visible_at) for each in peeked)
        settings = queue.attributes(["RedrivePolicy", "VisibilityTimeout"], wire=True)
        seen += [queue.name, settings, queue.tags(), states, queue.counts().rewindable]
    copied = LakeQueue(f"{lake.root}-copy", clock=lake.clock)
    return seen + (copied.list_queues() if Path(copied.root, "queues", "_delta_log").exists() else [])


def exchanged(queue: Queue, given: Given) -> None:
    """A round of a consumer; an error if nothing of it was done."""
    answer = exchange.exchange(queue._runtime, [(each, None) for each in given.handles], Request(10))
    if answer.refused is not None and None not in answer.errors:
        raise answer.refused


def ids(queue: Queue) -> list[str]:
    return [each.message_id for each in queue.peek(limit=100)]


VERBS: dict[str, Callable[[LakeQueue, Queue, Given], object]] = {
    "Queue.send": lambda lake, queue, given: queue.send("x", group_id="g"),
    "Queue.send_batch": lambda lake, queue, given: queue.send_batch([SendEntry("x"), SendEntry("y")]),
    "Queue.send_arrow": lambda lake, queue, given: queue.send_arrow(
        pa.table({"body": list(map(str, range(400)))}), send_id="s"
    ),
    "Queue.receive": lambda lake, queue, given: queue.receive(10),
    "Queue.receive of a dead letter": lambda lake, queue, given: lake.queue("failing").receive(10),
    "Queue.receive_async": lambda lake, queue, given: asyncio.run(queue.receive_async(10)),
    "Queue.lease": lambda lake, queue, given: queue.lease(),
    "Queue.delete": lambda lake, queue, given: queue.delete(given.handles[0]),
    "Queue.delete_batch": lambda lake, queue, given: queue.delete_batch(given.handles),
    "Queue.change_visibility": lambda lake, queue, given: queue.change_visibility(given.handles[0], 7),
    "Queue.change_visibility_batch": lambda lake, queue, given: queue.change_visibility_batch(
        [(each, 7) for each in given.handles]
    ),
    "Lease.extend": lambda lake, queue, given: lease.extend(given.leased(queue), 77),
    "Lease.delete": lambda lake, queue, given: lease.delete(given.leased(queue)),
    "Lease.release": lambda lake, queue, given: lease.release(given.leased(queue)),
    "give back": lambda lake, queue, given: give_back(queue._runtime, given.handles),
    "exchange": lambda lake, queue, given: exchanged(queue, given),
    "Queue.purge": lambda lake, queue, given: queue.purge(),
    "Queue.rewind": lambda lake, queue, given: queue.rewind(queue.created_at),
    "Queue.redrive": lambda lake, queue, given: lake.queue("dead").redrive(),
    "Queue.redrive elsewhere": lambda lake, queue, given: queue.redrive(destination=lake.queue("dead")),
    "delete chosen": lambda lake, queue, given: selected.delete(queue._runtime, ids(queue)),
    "make chosen visible": lambda lake, queue, given: selected.make_visible(queue._runtime, ids(queue), True),
    "Queue.reschedule": lambda lake, queue, given: queue.reschedule(ids(queue)[-1], lake.clock.now()),
    "Queue.cancel": lambda lake, queue, given: queue.cancel(given.messages[0].message_id),
    "Queue.pause": lambda lake, queue, given: queue.pause("the bank is down"),
    "Queue.erase": lambda lake, queue, given: queue.erase(given.messages[0].message_id),
    "Queue.set_attributes": lambda lake, queue, given: queue.set_attributes(visibility_timeout=7),
    "Queue.set_attributes of a policy": lambda lake, queue, given: queue.set_attributes(
        redrive_policy=RedrivePolicy("dead", 1)
    ),
    "Queue.set_attributes of shards": lambda lake, queue, given: lake.queue("dead").set_attributes(shards=2),
    "Queue.set_tags": lambda lake, queue, given: queue.set_tags(team="a"),
    "Queue.compact": lambda lake, queue, given: queue.compact(),
    "LakeQueue.create_queue": lambda lake, queue, given: lake.create_queue("new", shards=2, tags={"team": "a"}),
    "LakeQueue.create_queue that updates": lambda lake, queue, given: lake.create_queue(
        "orders", update=True, visibility_timeout=7, tags={"team": "a"}
    ),
    "LakeQueue.delete_queue": lambda lake, queue, given: lake.delete_queue("orders"),
    "LakeQueue.compact": lambda lake, queue, given: lake.compact(),
    "LakeQueue.copy": lambda lake, queue, given: lake.copy(LakeQueue(f"{lake.root}-copy", clock=lake.clock)),
}
"""By the class and method of the interface, or what else calls make; all with the queue ``orders`` opened."""
OTHERS = {
    "Queue.send_dataframe": "commits as send_arrow",
    "Queue.update_attributes": "is set_attributes",
    "Queue.remove_tags": "is one commit, as set_tags",
    "Queue.resume": "is set_attributes, as pause",
    "Lease.keep_alive": "extends",
    "Lease.delete_except": "is delete",
    "LakeQueue.repair": "has a test of its own below",
    "LakeQueue.upgrade": "has tests in test_upgrade",
    **dict.fromkeys(
        (
            *("Queue.rewindable", "Queue.attributes", "Queue.counts", "Queue.peek", "Queue.get"),
            *(
                "Queue.priority_counts",
                "Queue.shard_counts",
                "Queue.groups",
                "Queue.redrivable",
                "Queue.dead_letter_sources",
                "Queue.tags",
            ),
            *("Lease.batches", "Lease.arrow", "LakeQueue.queue", "LakeQueue.list_queues", "LakeQueue.all_queues"),
            *("LakeQueue.register_views", "LakeQueue.view_statements", "LakeQueue.create_views"),
            *("LakeQueue.arrow_views", "LakeQueue.check"),
        ),
        "reads",
    ),
}
"""Why other methods are not among them."""


def test_every_method_of_the_interface_is_named() -> None:
    methods = {
        f"{face.__name__}.{name}"
        for face in (LakeQueue, Queue, Lease)
        for name, value in vars(face).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }
    named = {verb.split(" ")[0] for verb in VERBS if "." in verb}
    assert methods == named | OTHERS.keys() and not named & OTHERS.keys()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[LakeQueue, Given, list[object]]:
    """A root, what is known of it, and what anybody sees."""
    clock = ManualClock()
    lake = LakeQueue(str(tmp_path_factory.mktemp("failing") / "base"), clock=clock, engine="point")
    given = made(lake, clock)
    return lake, given, told(lake)


@pytest.mark.spec("ERR-8", "QUE-39")
@pytest.mark.parametrize("lasts", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("verb", VERBS)
def test_each_commit_of_a_verb_fails_in_turn(
    tmp_path: Path,
    base: tuple[LakeQueue, Given, list[object]],
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    lasts: bool,
) -> None:
    made, given, before = base
    failing = Failing(monkeypatch, lasts)
    for after in range(30):
        shutil.copytree(made.root, tmp_path / str(after))
        lake = reopen(LakeQueue(str(tmp_path / str(after)), clock=made.clock, engine="point"))
        queue = lake.queue("orders")
        error = failing.run(after, lambda lake=lake, queue=queue: VERBS[verb](lake, queue, given))  # type: ignore[misc]
        if not failing.failed:  # it makes fewer commits
            assert error is None and (after or verb == "Queue.compact"), "it made none"
            return
        assert str(error).count("makes room") < 2
        refused = error is not None and not getattr(error, "outcome_unknown", False)
        if refused or verb.endswith(".compact"):
            assert told(lake) == before, f"after {after} commits: {error}"
    raise AssertionError("a verb of thirty commits")


@pytest.mark.spec("ERR-8", "DUR-33")
@pytest.mark.parametrize("lasts", [False, True], ids=["once", "from then on"])
def test_each_commit_of_a_repair_fails_in_turn(
    tmp_path: Path, base: tuple[LakeQueue, Given, list[object]], monkeypatch: pytest.MonkeyPatch, lasts: bool
) -> None:
    failing = Failing(monkeypatch, lasts)
    for after in range(30):
        shutil.copytree(base[0].root, tmp_path / str(after))
        lake = reopen(LakeQueue(str(tmp_path / str(after)), clock=base[0].clock, engine="point"))
        for shard in (0, 1):
            next(Path(messages_of(lake.queue("orders"), shard)).glob("*.parquet")).unlink()
        before = lake.check()
        error = failing.run(after, lambda lake=lake: lake.repair("orders", apply=True, force=True))  # type: ignore[misc]
        if error is not None and not getattr(error, "outcome_unknown", False):
            assert lake.check() == before, f"after {after} commits: {error}"
        lake.repair("orders", apply=True, force=True)
        assert not [finding for finding in lake.check() if finding.damage]
        if not failing.failed:
            return
    raise AssertionError("a repair of thirty commits")


MUTATIONS = [
    Mutation(
        "what fails later is a refusal",
        replace(Steps, "_fail", lambda *_: None),
        {
            shown_by(
                test_each_commit_of_a_verb_fails_in_turn, lambda *given, verb=verb: (*given, verb, True)
            ): "QUE-39"
            for verb in ("Queue.redrive", "Queue.purge", "Queue.receive of a dead letter", "delete chosen")
        },
    )
]


@each_case(MUTATIONS)
def test_the_rule_falls_with_its_safeguard(
    tmp_path: Path, base: tuple[LakeQueue, Given, list[object]], case: Case
) -> None:
    case.run(lambda patch: (tmp_path, base, patch))
