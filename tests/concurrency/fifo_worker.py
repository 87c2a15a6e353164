"""A process on a FIFO queue, started by the tests in this directory.

``fifo_worker.py work ROOT ENGINE NAME LOG STOP PAUSE``: sends, receives, changes and deletes at random until the
file STOP exists, as ``worker.py`` does. It numbers what it sends to each group, repeats some sends, sends some
under ids that every process uses, and repeats some receives by their attempt id.
``fifo_worker.py send ROOT ENGINE LOG GO THREADS``: sends one message from so many threads, all under one
deduplication id, as soon as the file GO exists.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections import Counter, deque
from typing import Any

from concurrency.worker import Diary, claim_of, micros, opened, record_claims, small_segments
from lakequeue import Queue, QueueClientError, QueueServiceError, RequestThrottled, SendEntry

QUEUE = "orders.fifo"
GROUPS = list("abcdef")
MOST_HELD = 3
LONGEST_LOSS = 0.1
"""Seconds until a worker repeats a receive whose answer it treats as lost."""
REPEATABLE = 60.0
"""Seconds for which a worker repeats its own sends: much less than the deduplication window."""


class Worker:
    """Sends and receives at random, and writes its calls and their results to a diary."""

    def __init__(self, queue: Queue, name: str, diary: Diary) -> None:
        self.queue = queue
        self.name = name
        self.diary = diary
        self.chance = random.Random(name)
        self.numbers: Counter[str] = Counter()
        self.acknowledged: deque[tuple[float, SendEntry]] = deque(maxlen=20)
        self.attempts = 0
        self.held: list[str] = []
        self.claims = record_claims()

    def step(self) -> None:
        if self.chance.random() < 0.4:
            self.send()
        else:
            self.receive()
        self.chance.shuffle(self.held)
        while len(self.held) > MOST_HELD:
            self.settle(self.held.pop())

    # --- sending

    def send(self) -> None:
        chosen = [self._entry() for _ in range(self.chance.randint(1, 4))]
        entries = [entry for _, entry in chosen]
        self.diary.write("send", entries=[[entry.body, entry.dedup_id] for entry in entries])
        result = self.queue.send_batch(entries)
        answers = []
        for success in result.successful:
            entry = entries[int(success.id)]
            answers.append([entry.body, entry.dedup_id, success.message_id, success.sequence_number])
            self.acknowledged.append(chosen[int(success.id)])
        self.diary.write("sent", answers=answers)

    def _entry(self) -> tuple[float, SendEntry]:
        """What to send, and when it was first sent."""
        draw = self.chance.random()
        repeatable = [sent for sent in self.acknowledged if sent[0] > time.monotonic() - REPEATABLE]
        if draw < 0.2 and repeatable:
            return self.chance.choice(repeatable)
        group = self.chance.choice(GROUPS)
        self.numbers[group] += 1
        dedup_id = f"{self.name}-{group}-{self.numbers[group]}"
        if draw > 0.7:  # the others choose the same ones at about this time
            seconds = self.chance.choice([10, 60])  # new ones, and some that a short life meets for certain
            dedup_id = f"shared-{seconds}-{micros() // (seconds * 1_000_000)}-{self.chance.randrange(3)}"
        body = f"{self.name}:{group}:{self.numbers[group]}"
        return time.monotonic(), SendEntry(body, group_id=group, dedup_id=dedup_id)

    # --- receiving

    def receive(self) -> None:
        attempt_id = None
        if self.chance.random() < 0.5:
            self.attempts += 1
            attempt_id = f"{self.name}-{self.attempts}"
        receipts = self._receive(attempt_id)
        while attempt_id is not None and receipts and self.chance.random() < 0.6:
            time.sleep(self.chance.uniform(0, LONGEST_LOSS))
            receipts = self._receive(attempt_id) or receipts
        self.held += receipts

    def _receive(self, attempt_id: str | None) -> list[str]:
        """Makes one receive; returns its receipts."""
        timeout = self.chance.choice([0, 1, 1, 2])
        begun = {"attempt": attempt_id, "at": micros(), "timeout": timeout * 1_000_000}
        self.diary.write("receive", **begun)
        messages = self.queue.receive(
            self.chance.randint(1, 6), visibility_timeout=timeout, wait_time=0, attempt_id=attempt_id
        )
        got = [
            [m.body, m.receipt_handle, m.sequence_number, m.group_id, m.message_id, m.receive_count]
            for m in messages
        ]
        times = self.claims[claim_of(messages[0].receipt_handle)] if messages else (None, None)
        self.diary.write("got", messages=got, received_at=times[0], visible_at=times[1], until=micros(), **begun)
        return [message.receipt_handle for message in messages]

    # --- settling

    def settle(self, receipt: str) -> None:
        draw = self.chance.random()
        if draw < 0.1:
            return  # forgotten: it comes back
        if draw < 0.3:
            timeout = self.chance.choice([0, 1, 3])
            self._try("change", receipt, lambda: self.queue.change_visibility(receipt, timeout), timeout)
        else:
            self._try("delete", receipt, lambda: self.queue.delete(receipt))

    def _try(self, what: str, receipt: str, call: Any, timeout: int = 0) -> None:
        self.diary.write(what, receipt=receipt, at=micros(), timeout=timeout * 1_000_000)
        error = None
        try:
            call()
        except QueueServiceError as refusal:  # its time was over
            error = refusal.code
        self.diary.write(f"{what}d", receipt=receipt, at=micros(), done=error is None, error=error)


def work(root: str, engine: str, name: str, log: str, stop: str, pause: str) -> None:
    small_segments()
    diary = Diary(log)
    worker = Worker(opened(root, engine, QUEUE), name, diary)
    diary.write("ready")
    while not os.path.exists(stop):
        if float(pause) and worker.chance.random() < 0.3:
            time.sleep(worker.chance.uniform(0.5, 1.5) * float(pause))
        try:
            worker.step()
        except RequestThrottled:
            diary.write("throttled")
        except QueueClientError as error:
            diary.write("failed", error=str(error), unknown=error.outcome_unknown)
    diary.write("stopped")


def send(root: str, engine: str, log: str, go: str, threads: str) -> None:
    diary, queue = Diary(log), opened(root, engine, QUEUE)
    queue.counts()  # everything is loaded
    ready = threading.Barrier(int(threads) + 1)

    def one(number: int) -> None:
        ready.wait()
        result = queue.send(f"{os.getpid()}:{number}", group_id=f"g{number}", dedup_id="one")
        diary.write("sent", message_id=result.message_id, sequence=result.sequence_number)

    senders = [threading.Thread(target=one, args=(number,)) for number in range(int(threads))]
    for sender in senders:
        sender.start()
    diary.write("ready")
    while not os.path.exists(go):
        time.sleep(0.001)
    ready.wait()
    for sender in senders:
        sender.join()


if __name__ == "__main__":
    {"work": work, "send": send}[sys.argv[1]](*sys.argv[2:])
