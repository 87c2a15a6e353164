"""Advice on damage of a root in an object store, where nothing keeps other processes away from a repair."""

from __future__ import annotations

import obstore
import pytest
from benchmarks.object_store import Counted
from obstore.store import from_url
from typer.testing import CliRunner

from lakequeue import LakeQueue
from lakequeue.cli import app
from lakequeue.operations.advice import copying

STOP = "producers, consumers, servers and the compactor"


def test_before_a_repair_processes_are_stopped_and_the_prefix_is_copied(store: Counted, lq: LakeQueue) -> None:
    lq.create_queue("orders").send("a")
    bucket = from_url(lq.root)
    paths = [each["path"] for chunk in obstore.list(bucket) for each in chunk]
    [lost] = [path for path in paths if "/messages/" in path and path.endswith(".parquet")]
    obstore.delete(bucket, lost)
    told = CliRunner().invoke(app, ["--root", lq.root, "doctor"]).stdout.splitlines()
    prefix = f"{lq.root}/{lost.partition('/0/messages/')[0]}"
    assert told[1] == f"  aws s3 cp --recursive {prefix} COPY  # first, once {STOP} are stopped"
    assert "repair --all" in told[2]
    asked = CliRunner().invoke(app, ["--root", lq.root, "repair", "orders"], input="n\n")
    assert f"first stop {STOP}: nothing keeps them out on a store\nDo this?" in asked.output


@pytest.mark.parametrize(
    ("tables", "command"),
    [
        (["s3://b/r/q/a", "s3://b/r/q/c"], "aws s3 cp --recursive s3://b/r/q COPY"),
        (["s3://b/a queue"], "aws s3 cp --recursive 's3://b/a queue' COPY"),
        (["gs://b/r/queues"], "gcloud storage cp --recursive gs://b/r/queues COPY"),
        (["az://b/r/queues"], "azcopy copy --recursive https://ACCOUNT.blob.core.windows.net/b/r/queues COPY"),
        (
            ["abfss://b@me.dfs.core.windows.net/r"],
            "azcopy copy --recursive https://me.blob.core.windows.net/b/r COPY",
        ),
    ],
)
def test_a_prefix_is_copied_by_the_tool_of_its_store(tables: list[str], command: str) -> None:
    remedy = copying(tables)
    assert remedy is not None and remedy.command == command
