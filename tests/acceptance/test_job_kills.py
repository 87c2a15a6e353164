"""Jobs whose drivers are killed with SIGKILL again and again: each message is sent, and has a result, once."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from acceptance.submitting import environment
from concurrency.harness import sent_bodies
from lakequeue import LakeQueue
from serve.serving import wait_until

KILLS = int(os.environ.get("LAKEQUEUE_JOB_KILLS", "10"))

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.spark,
    pytest.mark.timeout(3_000),
    pytest.mark.parametrize("kills", [2, pytest.param(KILLS, marks=pytest.mark.long)]),
]

DRIVER = Path(__file__).with_name("killed_job.py")
MESSAGES = 3_000


class Killer:
    """Runs a job and kills its process group, Python and JVM, at times drawn from a seed, so often.

    Args:
        kills: how often it kills.
        longest: the latest time of a kill, in seconds after Spark has started; grows, as a busy machine is slow.
    """

    def __init__(self, kills: int, longest: float) -> None:
        self.left = kills
        self._longest = longest
        self._random = random.Random(kills)

    def ends(self, name: str, *args: str) -> bool:
        """Returns True if the job ended by itself, False if it was killed."""
        command = [sys.executable, str(DRIVER), name, *args]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment(), start_new_session=True
        )
        assert process.stdout is not None
        with process.stdout as out:
            assert out.readline() == "ready\n"
            try:
                assert process.wait(self._random.uniform(0, self._longest) if self.left else 300) == 0
                return True
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                if process.wait() == 0:  # it ended between the two
                    return True
                assert process.returncode == -signal.SIGKILL
        self.left -= 1
        self._longest *= 1.1
        return False


def sound(lq: LakeQueue) -> bool:
    return not any(summary.failures for summary in lq.compact()) and not lq.check()


@pytest.mark.spec("SND-17", "DLT-3")
def test_each_row_is_sent_once(tmp_path: Path, kills: int) -> None:
    lq = LakeQueue(str(tmp_path / "root"))
    queue = lq.create_queue("orders", shards=2)
    killer, load, rows = Killer(kills, longest=6), 0, tmp_path / "rows.txt"
    while killer.left or not load:
        load += 1
        rows.write_text("".join(f"{load} {number}\n" for number in range(MESSAGES)))
        source = ("--format", "text", "--path", str(rows), "--body-column", "value", "--send-id", f"load {load}")
        while not killer.ends("produce_batch", "--root", lq.root, "--queue", "orders", *source):
            pass
    sent = sent_bodies(queue)
    assert len(sent) == len(set(sent)) == load * MESSAGES
    assert sound(lq)


@pytest.mark.spec("RCV-8", "DLT-3", "TAB-31")
def test_each_message_has_one_result(tmp_path: Path, kills: int) -> None:
    lq = LakeQueue(str(tmp_path / "root"))
    queue = lq.create_queue("orders", shards=2, visibility_timeout=5)
    killer, loads, results = Killer(kills, longest=15), 0, str(tmp_path / "results")
    here = ("--root", lq.root, "--queue", "orders", "--handler", "handlers:upper", "--table", results)
    stream = ("consume_stream", "--once", "--checkpoint", str(tmp_path / "checkpoint"))
    jobs = itertools.cycle([("consume_batch",), stream])
    while killer.left or not loads:
        loads += 1
        queue.send_arrow(pa.table({"body": [f"{loads} {number}" for number in range(MESSAGES)]}))
        while queue.counts().visible or queue.counts().undecided:
            killer.ends(*next(jobs), *here, "--max-messages", "1500")
            wait_until(lambda: not queue.counts().in_flight, "the leases of a job that was killed to end")
    ids = DeltaTable(results).to_pyarrow_table(columns=["message_id"])["message_id"].to_pylist()
    assert len(ids) == len(set(ids)) == loads * MESSAGES
    assert sound(lq)


@pytest.mark.spec("DLT-3", "DLT-7")
def test_compaction_changes_no_answer(tmp_path: Path, kills: int) -> None:
    lq = LakeQueue(str(tmp_path / "root"), durability="process")
    queues = [lq.create_queue(f"orders{number}", visibility_timeout=0) for number in range(8)]
    killer, sent = Killer(kills, longest=6), 0
    while killer.left or not sent:
        for number in range(sent, sent + 80):
            for queue in queues:
                queue.send(str(number))
        sent += 80
        for queue in queues:
            queue.cancel(queue.peek(limit=1)[0].message_id)
        while not killer.ends("compact", "--root", lq.root, "--once"):
            pass
    assert sound(lq)
    loads = sent // 80
    for queue in queues:
        assert [message.body for message in queue.peek(limit=sent)] == [str(n) for n in range(loads, sent)]
