"""FIFO queues. Messages are named by their group: ``A2`` is the second message of group ``A``."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.harness import Harness, handles
from lakequeue import Message, Queue, SendEntry

NAME = "orders.fifo"


class FifoHarness(Harness):
    """A harness whose queue is a FIFO queue by default."""

    def create(self, name: str = NAME, **attributes) -> Queue:
        return super().create(name, **({"fifo": True} if name.endswith(".fifo") else {}), **attributes)

    def queue(self, name: str = NAME) -> Queue:
        return super().queue(name)


def entry(text: str, dedup_id: str | None = None, **fields) -> SendEntry:
    return SendEntry(text, group_id=text[0], dedup_id=dedup_id or text, **fields)


def send(queue: Queue, *texts: str):
    """A batch of messages; the first letter is the group, the text is the deduplication id."""
    result = queue.send_batch([entry(text) for text in texts])
    assert not result.failed
    return result.successful


def bodies(messages: Sequence[Message]) -> list[str]:
    """Bodies in the order of delivery, which matters here."""
    return [message.body for message in messages]


def delete(queue: Queue, *messages: Message) -> None:
    assert not queue.delete_batch(handles(messages)).failed


def drain(queue: Queue) -> list[Message]:
    """Receives and deletes all messages, ten at a time."""
    drained = []
    while messages := queue.receive(10):
        drained += messages
        delete(queue, *messages)
    return drained


def numbered(group: str, count: int, start: int = 1) -> list[str]:
    return [f"{group}{number}" for number in range(start, start + count)]


def group_of(messages: Sequence[Message], group: str) -> list[str]:
    return [message.body for message in messages if message.group_id == group]


def shard_of(message) -> int:
    """The shard in which a message is stored, computed from its sequence number."""
    return (int(message.sequence_number) - 10**19) // 256 % 1_024
