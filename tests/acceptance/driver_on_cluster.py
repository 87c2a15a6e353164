"""``spark-submit … driver_on_cluster.py ROOT PLACE``: the data source and the jobs in one driver."""

from __future__ import annotations

import io
import runpy
import sys
from contextlib import redirect_stderr
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # `tests`, for the driver alone

from acceptance.submitting import PROJECT, Ended, measured, play, sources
from lakequeue import LakeQueue, SendEntry
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
    here = ("--root", root, "--queue", "failing", "--output", f"{place}/nothing")
    failed = run("consume_batch", *here, "--handler", "handlers:fail_in_a_worker")
    [line] = [line for line in failed.err.splitlines() if line.startswith("error: ")]
    assert failed.status == 3 and "JSONDecodeError" in line, failed
    assert (queue.counts().visible, queue.counts().in_flight) == (2, 0)


if __name__ == "__main__":
    root, place = sys.argv[1:]
    four_lines(build_session("cluster"), root, Path(place))
    a_job_says_in_one_line_why_it_failed(root, place)
    assert measured(play(run, root, place, "batch", "stream")) == sources()[1]
