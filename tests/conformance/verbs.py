"""Every verb that commits, and a root on which each has something to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import attrs
import pyarrow as pa

from insides import reopen
from lakequeue import LakeQueue, Message, Queue, RedrivePolicy, SendEntry
from lakequeue.operations import chosen_messages, consumer_round, lease
from lakequeue.operations.receive import Request
from lakequeue.operations.settle import give_back
from lakequeue.testing import ManualClock


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


def prepared(lake: LakeQueue, clock: ManualClock) -> Given:
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
    while len({message.receipt_handle.split("x")[1] for message in messages}) < 2:
        messages += reopen(lake).queue("orders").receive(10)
    found = reopen(lake).queue("orders").lease(15)
    assert found is not None and len(found._runtime.parts) > 1
    queue.send_batch(entries).raise_for_failures()
    return Given(messages, found._runtime.lease_id)


def exchanged(queue: Queue, given: Given) -> None:
    """A round of a consumer; an error if nothing of it was done."""
    answer = consumer_round.exchange(queue._runtime, [(each, None) for each in given.handles], Request(10))
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
    "delete chosen": lambda lake, queue, given: chosen_messages.delete(queue._runtime, ids(queue)),
    "make chosen visible": lambda lake, queue, given: chosen_messages.make_visible(
        queue._runtime, ids(queue), True
    ),
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
