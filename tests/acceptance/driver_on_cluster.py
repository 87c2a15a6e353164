"""``spark-submit … driver_on_cluster.py ROOT PLACE``: the data source and the jobs in one driver.

In the end a task kills it.
"""

from __future__ import annotations

import io
import os
import runpy
import sys
from contextlib import redirect_stderr
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

sys.path.append(str(Path(__file__).parents[1]))  # `tests`, for the driver alone

from acceptance.killing import deadly_tasks, order_to_kill
from acceptance.submitting import PROJECT, Ended, measured, play, sources
from lakequeue import LakeQueue, Queue, SendEntry
from lakequeue.spark.compaction import compact_once
from lakequeue.spark.session import build_session
from spark.source_scenario import four_lines


def run(name: str, *args: str) -> Ended:
    """Runs a job in the session of this process, which a job does not stop."""
    sys.argv = [f"{name}.py", *args]
    with redirect_stderr(io.StringIO()) as said:
        try:
            runpy.run_path(str(PROJECT / "jobs" / f"{name}.py"), run_name="__main__")
        except SystemExit as ended:
            assert isinstance(ended.code, int)
            return Ended(ended.code, "", said.getvalue())
    raise AssertionError("a job ends its process")


def a_job_says_in_one_line_why_it_failed(root: str, place: str) -> None:
    queue = LakeQueue(root).create_queue("failing")
    queue.send_batch([SendEntry("a"), SendEntry("b")])
    here = ("--root", root, "--queue", "failing", "--table", f"{place}/nothing")
    failed = run("consume_batch", *here, "--handler", "handlers:fail_in_a_worker")
    [line] = [line for line in failed.err.splitlines() if line.startswith("error: ")]
    assert failed.status == 3 and "JSONDecodeError" in line, failed
    assert (queue.counts().visible, queue.counts().in_flight) == (2, 0)


def streams_go_on_without_an_executor(root: str, place: str) -> None:
    """One is killed in the sink and one in the handler: each line is in the results once."""
    lines = [f"line {number}" for number in range(400)]
    source = Path(place, "lines")
    source.mkdir()
    for start in range(0, 400, 100):
        (source / f"{start}.txt").write_text("".join(f"{line}\n" for line in lines[start : start + 100]))
    queue = LakeQueue(root).create_queue("lines", shards=2)
    here = ("--root", root, "--queue", "lines", "--once", "--checkpoint")
    with order_to_kill("executor"):
        sent = run("produce_stream", *here, f"{place}/in", "--path", str(source), "--body-column", "value")
    assert sent.status == 0 and queue.counts().visible == 400, sent
    with order_to_kill("executor"):
        results = ("--handler", "acceptance.killing:copied", "--table", f"{place}/copied")
        done = run("consume_stream", *here, f"{place}/out", *results)
    assert done.status == 0 and (queue.counts().visible, queue.counts().in_flight) == (0, 0), done
    assert sorted(DeltaTable(f"{place}/copied").to_pyarrow_table()["body"].to_pylist()) == sorted(lines)


def use(queue: Queue, numbers: range) -> None:
    """Makes segments that a pass merges, but for the first, which it drops."""
    for number in numbers:
        queue.send_arrow(pa.table({"body": [str(number)]}))
    queue.delete_batch([message.receipt_handle for message in queue.receive(1)])


def compaction_goes_on_without_an_executor(root: str) -> None:
    lq = LakeQueue(root)
    queues = [lq.create_queue(f"merged{number}") for number in range(4)]
    for queue in queues:
        use(queue, range(12))
    with order_to_kill("executor"):
        passed = compact_once(lq, None, build_session())
    assert not any(summary.failures for summary in passed) and not lq.check()
    for queue in queues:
        use(queue, range(12, 24))


if __name__ == "__main__":
    root, place = sys.argv[1:]
    spark = build_session("cluster")
    four_lines(spark, root, Path(place))
    a_job_says_in_one_line_why_it_failed(root, place)
    assert measured(play(run, root, place, "batch", "stream")) == sources()[1]
    with deadly_tasks():
        streams_go_on_without_an_executor(root, place)
        compaction_goes_on_without_an_executor(root)
        with order_to_kill(f"{os.getpid()} {os.getppid()}"):
            run("compact", "--root", root, "--once")
