"""Requests that fail in every way an object store can: nothing lost, nothing doubled, nobody hangs."""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen
from uuid import uuid4

import attrs
import pytest
from benchmarks.object_store import CONTROL, FAULTS, Counted

from concurrency.consumed import LONG, Story, beginning, consumed_through_everything
from concurrency.harness import check_log
from concurrency.processes import SOAK_SECONDS, Summary, Workers, anchor, judge, soak
from insides import place_of
from lakequeue import LakeQueue, Queue, QueueClientError, SendEntry
from lakequeue.storage.bulk import manifests
from lakequeue.storage.bulk.manifests import Manifest, WaitingFile
from lakequeue.storage.engines.data_files import DataFile
from lakequeue.storage.stores import Store
from objectstore import servers
from objectstore.servers import failing

PATIENCE = {"AWS_TIMEOUT": "2s"}
"""Less than by default, so that many requests run into it."""
LATE = 3.0
LONGEST = 60.0
"""Seconds of the longest call: a request is repeated for 20 s, and a failed commit is looked for."""
CHANCES = {
    "refuse": 0.02,
    "slow": 0.02,
    "cut": 0.015,
    "tear": 0.01,
    "late": 0.005,
    "stall": 0.005,
    "lose": 0.015,
    "conflict": 0.05,
}
"""9 % of all requests."""


# --- one fault at a time


@pytest.fixture(scope="module")
def server() -> Iterator[Counted]:
    with servers.served() as (url, store), servers.found_by_variables(url, **PATIENCE):
        yield store


@pytest.fixture
def queue(server: Counted) -> Queue:
    return LakeQueue(f"s3://lake/{uuid4().hex}", engine="point").create_queue("orders")


ENTRY = r"messages/_delta_log/\d{20}\.json"


@pytest.mark.spec("SND-17", "ERR-9")
@pytest.mark.parametrize("kind", FAULTS)
def test_a_commit_whose_request_failed_counts_once(server: Counted, queue: Queue, kind: str) -> None:
    queue.send("a")
    with failing(server, kind, ENTRY) as store:
        queue.send("b")
        assert store.faults[kind] == 1
    assert [row.body for row in check_log(queue)] == ["a", "b"]
    assert [message.body for message in queue.receive(10)] == ["a", "b"]


@pytest.mark.spec("QUE-37")
@pytest.mark.parametrize(
    "path", ["queues/_delta_log", "messages/_delta_log/0{20}", "receipts/_delta_log/0{20}", "checks"]
)
@pytest.mark.parametrize("times", [1, 2, 4])
def test_a_queue_is_whole_whatever_the_store_was_busy_with(server: Counted, path: str, times: int) -> None:
    lake = LakeQueue(f"s3://lake/{uuid4().hex}", engine="point")
    with failing(server, "conflict", path, times) as store:
        queue = lake.create_queue("orders")
        assert store.faults["conflict"] == times
    queue.send("a")
    [message] = queue.receive()
    assert message.body == "a" and lake.check() == []


@pytest.mark.spec("QUE-37", "SND-17")
def test_a_store_that_stays_busy_ends_a_call(
    server: Counted, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakequeue.storage.folder._CONFLICT_PAUSES", (0.01,) * 3)
    with failing(server, "conflict", ENTRY, 1_000) as store:
        with pytest.raises(QueueClientError, match=r"too busy \(ConditionalRequestConflict, PUT") as refused:
            queue.send("a")
        assert not refused.value.outcome_unknown and store.faults["conflict"] == 4
    queue.send("b")
    assert [row.body for row in check_log(queue)] == ["b"]


@pytest.mark.spec("RCV-6", "ERR-9")
@pytest.mark.parametrize("kind", ["cut", "stall", "tear", "lose"])
def test_a_claim_and_a_delete_whose_requests_failed_count_once(server: Counted, queue: Queue, kind: str) -> None:
    queue.send_batch([SendEntry(body=body) for body in "ab"])
    with failing(server, kind, r"receipts/_delta_log/\d{20}\.json") as store:
        [message] = queue.receive()
        assert store.faults[kind] == 1
    assert (message.body, message.receive_count) == ("a", 1)
    counts = queue.counts()
    assert (counts.visible, counts.in_flight) == (1, 1)
    with failing(server, kind, r"receipts/_delta_log/\d{20}\.json") as store:
        queue.delete(message.receipt_handle)
        assert store.faults[kind] == 1
    counts = queue.counts()
    assert (counts.visible, counts.in_flight) == (1, 0)


@pytest.mark.objectstore
@pytest.mark.spec("ERR-2")
def test_a_commit_that_may_still_land_is_no_refusal(server: Counted, queue: Queue) -> None:
    hasty = LakeQueue(place_of(queue), engine="point", storage_options={"timeout": "1s"}).queue("orders")
    hasty.counts()  # opens its tables
    with failing(server, "stall", ENTRY, times=1_000, late=6), pytest.raises(QueueClientError) as caught:
        hasty.send("a")
    assert caught.value.outcome_unknown
    assert "no answer came in time" in str(caught.value)
    assert not check_log(queue)
    time.sleep(6)
    assert [row.body for row in check_log(queue)] == ["a"]  # it landed


@pytest.mark.spec("ERR-2", "ERR-8")
@pytest.mark.parametrize("path", [r"messages/.*\.parquet", ENTRY])
def test_a_refused_send_changes_nothing(server: Counted, queue: Queue, path: str) -> None:
    server.refusal = lambda environ: (
        ("403 Forbidden", "AccessDenied", "no")
        if environ["REQUEST_METHOD"] == "PUT" and re.search(path, environ["PATH_INFO"])
        else None
    )
    try:
        with pytest.raises(QueueClientError, match="access is denied") as caught:
            queue.send("a")
    finally:
        server.refusal = lambda _: None
    assert not caught.value.outcome_unknown
    queue.send("b")
    assert [row.body for row in check_log(queue)] == ["b"]


@pytest.mark.parametrize("kind", ["refuse", "cut", "tear", "lose"])
def test_a_read_that_failed_is_repeated(server: Counted, kind: str) -> None:
    folder = Store("s3://lake").folder(f"s3://lake/{uuid4().hex}")
    for name in ("a", "b"):
        folder.write(f"x/{name}", name.encode())
    with failing(server, kind, "", times=2, method="GET"):
        assert folder.read("x/a") == b"a"
    with failing(server, kind, "", times=2, method="GET"):
        assert [entry.name for entry in folder.files("x")] == ["x/a", "x/b"]
    with failing(server, kind, "", times=2, method="GET"):
        assert folder.folders() == ["x"]
    with failing(server, kind, "", times=2, method="GET") as store:
        with pytest.raises(FileNotFoundError):
            folder.read("x/c")
        assert store.faults[kind] == 2


@pytest.mark.parametrize("kind", ["cut", "tear", "lose"])
def test_a_manifest_whose_answer_was_lost_is_known_as_ones_own(server: Counted, kind: str) -> None:
    tables = Store(f"s3://lake/{uuid4().hex}").folder(f"s3://lake/{uuid4().hex}")
    file = DataFile("bulk/s/1/a.parquet", 10, 2, {}, {"position": 0}, {"position": 1}, {"position": 0})
    manifest = Manifest("s", "bulk-s", 1, [WaitingFile(0, file)])
    with failing(server, kind, "manifests/") as store:
        assert manifests.write_manifest(tables, manifest) == manifest
        assert store.faults[kind] == 1
    other = attrs.evolve(manifest, files=[])
    assert manifests.write_manifest(tables, other) == manifest


@pytest.mark.objectstore
@pytest.mark.spec("RCV-6")
def test_a_receive_that_cannot_read_what_it_claimed_says_so_soon(server: Counted, queue: Queue) -> None:
    queue.send_batch([SendEntry(body=str(number)) for number in range(10)])
    hasty = LakeQueue(place_of(queue), engine="point", storage_options={"timeout": "1s"}).queue("orders")
    began = time.monotonic()
    refusing = failing(server, "late", r"messages/.*\.parquet", times=1_000, method="GET")
    with refusing, pytest.raises(QueueClientError) as caught:
        hasty.receive(10, visibility_timeout=1)
    assert caught.value.outcome_unknown
    assert time.monotonic() - began < LONGEST
    assert len(hasty.receive(10, wait_time=5)) == 10


# --- all of them, and several processes


@attrs.define
class Remote:
    """The test server in a process of its own."""

    url: str

    def control(self, query: str = "", **asked: Any) -> dict[str, int]:
        data = json.dumps(asked).encode() if asked else None
        with urlopen(Request(f"{self.url}{CONTROL}{query}", data, method="POST" if asked else "GET")) as answer:
            found: dict[str, int] = json.load(answer)
            return found


@pytest.fixture
def remote() -> Iterator[Remote]:
    with servers.s3() as bucket:
        url = bucket.options["AWS_ENDPOINT_URL"]
        with servers.found_by_variables(url, **PATIENCE):
            yield Remote(url)


@pytest.fixture
def workers(remote: Remote, tmp_path: Path) -> Iterator[Workers]:
    uri = f"s3://lake/{uuid4().hex}"
    queue = LakeQueue(uri, engine="point").create_queue("orders", shards=2)
    anchor(queue)
    workers = Workers(tmp_path / "root", queue, uri=uri)
    yield workers
    workers.end()


@attrs.frozen
class Told:
    """What the diaries say of the calls."""

    longest: float
    errors: Counter[str]
    unknown: int
    refused: int


def summary_of(workers: Workers) -> Told:
    diaries = workers.events()
    longest = max(after["clock"] - before["clock"] for events in diaries for before, after in pairwise(events))
    failed = [event for events in diaries for event in events if event["event"] == "failed"]
    texts = (re.sub(r"s3://\S+|http://\S+?(?=\))|[0-9a-f]{32}|\d+", "*", event["error"]) for event in failed)
    unknown = sum(event["unknown"] for event in failed)
    return Told(longest, Counter(text[:160] for text in texts), unknown, len(failed) - unknown)


def storm(remote: Remote, workers: Workers, seconds: float, kill: float) -> tuple[Summary, Told, Counter[str]]:
    """Three processes under faults; now and then one is killed, and another takes its place."""
    chance, lives = random.Random(), 3
    for life in range(lives):
        workers.start(f"worker{life}")
        workers.wait_until_ready(f"worker{life}")
    until, seed = time.monotonic() + seconds, chance.randrange(2**32)
    print("seed", seed)
    remote.control(faults=CHANCES, seed=seed, late=LATE)
    while time.monotonic() < until:
        time.sleep(min(5, seconds / 6))
        if chance.random() < kill:
            workers.kill(chance.choice(list(workers.running)))
            workers.start(f"worker{lives}")
            lives += 1
    happened = Counter(remote.control("?faults"))
    remote.control(faults={})
    for name in workers.running:
        workers.wait_until_ready(name)
    workers.stop()
    return judge(workers), summary_of(workers), happened


@pytest.mark.objectstore
@pytest.mark.spec("SND-17", "ERR-2", "ERR-8", "ERR-9")
@pytest.mark.parametrize(
    ("seconds", "kill", "each", "least"),
    [pytest.param(30, 0.3, 0, 20, id="short"), soak(SOAK_SECONDS, 0.1, SOAK_SECONDS / 60, SOAK_SECONDS / 2)],
)
def test_processes_under_faults(
    remote: Remote, workers: Workers, seconds: float, kill: float, each: float, least: float
) -> None:
    summary, calls, happened = storm(remote, workers, seconds, kill)
    print(summary, calls, happened, f"killed {workers.killed} times")
    assert min(happened[kind] for kind in FAULTS) > each
    assert calls.longest < LONGEST
    assert min(summary.sent, summary.received, summary.deleted) > least


# --- consumers


@attrs.define
class RemoteStory(Story):
    """In its outages the store refuses every request, else it fails at one of eleven."""

    visibility = "10"  # a request that stalls takes three seconds

    remote: Remote = attrs.field(kw_only=True)
    happened: Counter[str] = attrs.field(factory=Counter, kw_only=True)

    def lead(self, up: bool) -> None:
        self._fail(CHANCES if up else {"refuse": 1.0})

    def end_outages(self) -> None:
        self._fail({})

    def _fail(self, chances: dict[str, float]) -> None:
        self.happened += Counter(self.remote.control("?faults"))
        self.remote.control(faults=chances, late=LATE)


@pytest.fixture
def story(remote: Remote, tmp_path: Path) -> Iterator[RemoteStory]:
    kind = partial(RemoteStory, remote=remote)
    with beginning(kind, tmp_path, f"s3://lake/{uuid4().hex}") as story:
        story.lead(up=True)
        yield story


@pytest.mark.objectstore
@pytest.mark.spec("RCV-6", "HBN-1", "HBN-21", "FIF-1", "SND-17")
@pytest.mark.parametrize(
    ("seconds", "seed"),
    [
        pytest.param(20, 3, id="short"),
        pytest.param(LONG, 4, marks=[pytest.mark.long, pytest.mark.timeout(LONG + 600)], id="ten minutes"),
    ],
)
def test_consumers_lose_nothing_to_signals_and_faults(story: RemoteStory, seconds: float, seed: int) -> None:
    print(consumed_through_everything(story, seconds, seed), story.happened)
    assert seconds < 60 or min(story.happened[kind] for kind in FAULTS) > LONG / 60
