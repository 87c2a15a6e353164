"""Clients that send, receive and delete while their server is killed, and what must be true of what they saw."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
from botocore.exceptions import BotoCoreError, ClientError

from serve.serving import PATIENCE, ServerProcess, sqs, wait_until

VISIBILITY = 3
"""Seconds that a receipt lasts."""
LONGEST_WAIT = 1
BACKLOG = 60
"""Messages that may be acknowledged and not deleted before the senders rest, however fast they are."""
REST = 0.02
"""Seconds that a client waits where there is no server, or enough for now."""

SEND, RECEIVE, DELETE = "send", "receive", "delete"


@attrs.define
class Receipt:
    """A message as a client got it; instants by the clock that all threads share."""

    body: str
    message_id: str
    handle: str
    asked: float
    answered: float
    deleted: float | None = None
    """When a delete was acknowledged."""

    @property
    def certain(self) -> float:
        """Nobody else may get the message before, unless it was given up."""
        return self.asked + VISIBILITY


@attrs.define
class Story:
    """What the clients of one queue did and saw."""

    tried: set[str] = attrs.field(factory=set)
    acknowledged: dict[str, str] = attrs.field(factory=dict)
    """Bodies of acknowledged sends, with the ids of their messages."""
    receipts: list[Receipt] = attrs.field(factory=list)
    failures: list[Exception] = attrs.field(factory=list)

    def faults(self) -> Iterator[str]:
        """What a queue that keeps its promises could not have done; "lost" is final once all clients ended."""
        acknowledged = self.acknowledged.copy()
        by_body: dict[str, list[Receipt]] = defaultdict(list)
        for receipt in sorted(self.receipts, key=lambda receipt: receipt.answered):
            by_body[receipt.body].append(receipt)
        for body in acknowledged.keys() - by_body.keys():
            yield f"lost: {body}"
        for body in by_body.keys() - self.tried.copy():
            yield f"invented: {body}"
        for body, receipts in by_body.items():
            ids = {receipt.message_id for receipt in receipts} | {acknowledged.get(body, receipts[0].message_id)}
            if len(ids) > 1:
                yield f"doubled: {body}"
            for first, second in itertools.permutations(receipts, 2):
                if first.answered <= second.answered < first.certain:
                    yield f"early: {body}, {second.answered - first.asked:.3f} s after a receive"
                if first.deleted is not None and first.deleted < min(first.certain, second.asked):
                    yield f"back: {body}, {second.answered - first.deleted:.3f} s after its delete"


@attrs.define
class Load:
    """Threads with a client each, on one queue of a server that comes and goes."""

    server: ServerProcess
    queue_url: str
    fifo: bool = False
    story: Story = attrs.field(factory=Story)
    done: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys((SEND, RECEIVE, DELETE), 0))
    sending: bool = True
    receiving: bool = True

    @contextmanager
    def running(self, senders: int = 2, receivers: int = 3, until_empty: bool = True) -> Iterator[None]:
        """Runs the threads, in the end until the queue is empty."""
        work = [threading.Thread(target=self._send, args=(f"s{number}",)) for number in range(senders)]
        work += [threading.Thread(target=self._receive, args=(number,)) for number in range(receivers)]
        for thread in work:
            thread.start()
        try:
            yield
            self.sending = False
            wait_until(lambda: not until_empty or self._empty())
        finally:
            self.sending = self.receiving = False
            for thread in work:
                thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in work)

    def until_more(self, times: int) -> None:
        """Waits until so many more requests of each kind were acknowledged."""
        before = dict(self.done)
        wait_until(lambda: all(self.done[kind] >= before[kind] + times for kind in before))

    def _send(self, name: str) -> None:
        client = sqs(self.server.url, read_timeout=10)
        number = 0
        while self.sending:
            if self.done[SEND] - self.done[DELETE] > BACKLOG:
                threading.Event().wait(REST)
                continue
            body = f"{name}:{number}"
            self.story.tried.add(body)
            given = {"MessageGroupId": name, "MessageDeduplicationId": body} if self.fifo else {}
            answer = self._request(
                SEND, lambda body=body, given=given: client.send_message(
                    QueueUrl=self.queue_url, MessageBody=body, **given
                )
            )  # fmt: skip
            sent = (answer or {}).get("MessageId")  # boto3 takes headers that a kill has cut off for an answer
            if sent:
                self.story.acknowledged[body] = sent
            if sent or not self.fifo:
                number += 1  # FIFO sends are repeated until they are acknowledged

    def _receive(self, number: int) -> None:
        client, chance = sqs(self.server.url, read_timeout=10), random.Random(number)
        while self.receiving:
            asked = time.monotonic()
            answer = self._request(
                RECEIVE, lambda: client.receive_message(
                    QueueUrl=self.queue_url,
                    MaxNumberOfMessages=chance.randint(1, 10),
                    WaitTimeSeconds=chance.choice([0, LONGEST_WAIT]),
                )
            )  # fmt: skip
            answered = time.monotonic()
            for message in (answer or {}).get("Messages", []):
                receipt = Receipt(message["Body"], message["MessageId"], message["ReceiptHandle"], asked, answered)
                self.story.receipts.append(receipt)
                if self.sending and chance.random() < 0.1:
                    continue  # forgotten: it comes back
                done = self._request(
                    DELETE, lambda receipt=receipt: client.delete_message(
                        QueueUrl=self.queue_url, ReceiptHandle=receipt.handle
                    )
                )  # fmt: skip
                if done is not None:
                    receipt.deleted = time.monotonic()

    def _request(self, kind: str, call: Callable[[], Any]) -> Any:
        """The answer, or None if there was none or it was a refusal."""
        try:
            answer = call()
        except (BotoCoreError, ClientError) as error:
            self.story.failures.append(error)
            threading.Event().wait(REST)
            return None
        self.done[kind] += 1
        return answer

    def _empty(self) -> bool:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        answer = sqs(self.server.url).get_queue_attributes(QueueUrl=self.queue_url, AttributeNames=names)
        return not any(int(count) for count in answer["Attributes"].values())
