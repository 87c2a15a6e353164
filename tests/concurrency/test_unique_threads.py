"""Sends of ids that are taken until their messages are deleted, beside the deletions, by several processes."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from concurrency.harness import apart, log_rows, without_merging
from lakequeue import Queue, SystemClock
from mutations import Case, Mutation, answer_from_what_is_known, each_case

SENDS, IDS, SENDERS = 80, 3, 3
Span = tuple[float, float]
"""When a call began and when it ended."""


def timed(call: Callable[[], str]) -> tuple[str, Span]:
    began = time.perf_counter()
    result = call()
    return result, (began, time.perf_counter())


def an_id_has_one_message_at_a_time(root: Path, patch: pytest.MonkeyPatch) -> None:
    """Guarantee 5: an id has one message at a time, and no send is answered with one that was deleted before."""
    apart(root, SystemClock(), 1)[0].create_queue("jobs", deduplication_until_deleted=True)
    queues = [each.queue("jobs") for each in apart(root, SystemClock(), SENDERS + 1)]
    sent: dict[str, list[Span]] = defaultdict(list)
    deleted: dict[str, Span] = {}
    going = threading.Event()

    def send(queue: Queue, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(SENDS):
            id = str(chance.randrange(IDS))
            message, span = timed(lambda id=id: queue.send(id, dedup_id=id).message_id)  # type: ignore[misc]
            sent[message].append(span)

    def delete(queue: Queue) -> None:
        while not going.is_set():
            for message in queue.receive(2):
                _, span = timed(lambda message=message: message.delete() or "")  # type: ignore[misc]
                deleted[message.message_id] = span

    senders = [threading.Thread(target=send, args=(each, seed)) for seed, each in enumerate(queues[1:])]
    deleter = threading.Thread(target=delete, args=(queues[0],))
    with without_merging(patch):  # so that the log says in which order they were sent
        for thread in (deleter, *senders):
            thread.start()
        for thread in senders:
            thread.join()
        going.set()
        deleter.join()

    before: dict[str, str] = {}
    for row in (rows := log_rows(queues[0])):
        if (earlier := before.get(row.body)) is not None:
            began, _ = deleted[earlier]  # else both are there
            assert all(end > began for _, end in sent[row.message_id])
        before[row.body] = row.message_id
    for message, (_, end) in deleted.items():
        assert all(began < end for began, _ in sent[message])
    assert set(sent) == {row.message_id for row in rows} and len(deleted) > 10


MUTATIONS = [
    Mutation(
        "look for taken ids in what a thread knows",
        answer_from_what_is_known,
        {an_id_has_one_message_at_a_time: "JOB-6"},
    )
]


@each_case(MUTATIONS)
def test_the_guarantee_holds_and_falls_with_its_safeguard(case: Case, tmp_path: Path) -> None:
    case.run(lambda patch: (tmp_path, patch))
