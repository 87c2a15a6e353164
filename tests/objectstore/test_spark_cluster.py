"""The jobs on a standalone cluster of two workers, with queues, results and checkpoints on S3."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from acceptance.spark_cluster import Cluster, cluster
from acceptance.submitting import play, sources, submit
from lakequeue import LakeQueue
from objectstore import servers

pytestmark = [pytest.mark.objectstore, pytest.mark.spark, pytest.mark.timeout(600)]

SECRET = "never-to-be-seen"


@pytest.fixture
def bucket() -> Iterator[str]:
    """A bucket on a server of its own; the jobs get its variables, the workers do not."""
    with servers.s3() as bucket:
        url = bucket.options["AWS_ENDPOINT_URL"].replace("127.0.0.1", "localhost")
        with servers.found_by_variables(url, AWS_SECRET_ACCESS_KEY=SECRET):
            yield servers.BUCKET


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path / "cluster") as running:
        yield running


def test_producer_stream_consumer_and_compactor(workers: Cluster, bucket: str) -> None:
    # the jobs take both names of the scheme
    run = partial(submit, "s3", workers.url)
    table = play(run, f"s3a://{bucket}/root", f"s3://{bucket}/jobs", "stream", "batch")
    results = DeltaTable(table).to_pyarrow_table()
    messages, *totals = sources()[1].items()
    assert results.num_rows == len(pc.unique(results["message_id"])) == messages[1]
    assert [(name, pc.sum(results[name]).as_py()) for name, _ in totals] == totals
    compacted = run("compact", "--root", f"s3://{bucket}/root", "--once")
    assert compacted.status == 0, compacted.err
    [told] = [line for line in compacted.out.splitlines() if line.startswith("modules: ")]
    assert re.search("[1-9][0-9]* segments? dropped", told), told
    queue = LakeQueue(f"s3://{bucket}/root").queue("modules")
    queue.send("after")
    assert [message.body for message in queue.receive()] == ["after"]
    # what workers say includes the command lines of the executors
    assert "Launch command" in workers.log() and SECRET not in workers.log()
