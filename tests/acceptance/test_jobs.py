"""The jobs that produce and consume: their options, what they do, and how they end."""

from __future__ import annotations

import contextlib
import json
import runpy
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import typer

from acceptance.submitting import HANDLERS, PROJECT, Ended
from concurrency.harness import check_log
from lakequeue import InvalidOptions, LakeQueue, LeaseCounts, SendEntry
from lakequeue.cli import job
from lakequeue.spark.rows import results

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOBS = ["produce_batch", "produce_stream", "consume_batch", "consume_stream"]


Run = Callable[..., Ended]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs a job in this process, in a session that is there."""
    handlers = {name: signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(HANDLERS.parent)])

    def run(name: str, *args: str) -> Ended:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *args])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(PROJECT / "jobs" / f"{name}.py"), run_name="__main__")
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, *capsys.readouterr())

    yield run
    for name, handler in handlers.items():
        signal.signal(name, handler)


def dropped(folder: Path, **files: str) -> str:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return str(folder)


def bodies(root: str, name: str = "orders") -> list[str]:
    return [row.body for row in check_log(LakeQueue(root).queue(name))]


# --- without Spark


@pytest.mark.parametrize("name", [*JOBS, "compact"])
def test_a_job_explains_itself(name: str, run: Run) -> None:
    told = run(name, "--help")
    assert told.status == 0
    own = {
        "produce": ("Exit codes", "--format", "--path", "--body-column"),
        "consume": ("Exit codes", "--handler", "--table"),
        "compact": ("--once", "--every"),
    }
    assert all(option in told.out for option in ("--root", "--queue", *own[name.partition("_")[0]]))


def test_errors_are_one_line_before_spark_starts(run: Run, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(status: int, said: str, name: str, *args: str) -> None:
        ended = run(name, *args)
        assert (ended.status, ended.out) == (status, "")
        assert ended.err.startswith("error: ") and said in ended.err and ended.err.count("\n") == 1

    monkeypatch.setattr(job, "build_session", None)
    here = ("--root", root, "--queue", "orders")
    refused(3, f"{root} does not exist", "produce_batch", *here, "--format", "text", "--path", ".")
    LakeQueue(root).create_queue("others")
    refused(1, "QueueDoesNotExist", "consume_batch", *here, "--table", "results")
    refused(1, "QueueDoesNotExist", "consume_stream", *here, "--table", "results", "--checkpoint", "c")
    LakeQueue(root).create_queue("orders")
    refused(2, "--queue", "produce_stream", "--root", root, "--checkpoint", "c")
    refused(2, "--format", "produce_batch", *here)
    refused(
        2, "--option is written NAME=VALUE", "produce_batch", *here, "--format", "text", "--option", "wholetext"
    )
    refused(2, "--handler, --table, or both", "consume_batch", *here)
    refused(2, "--handler, --table, or both", "consume_stream", *here, "--checkpoint", "c")
    refused(2, "no_such_module", "consume_batch", *here, "--handler", "no_such_module:f")
    refused(2, "no attribute 'f'", "consume_batch", *here, "--handler", "json:f")
    refused(2, "not a function", "consume_batch", *here, "--handler", "json:__name__")
    refused(2, "--max-messages", "consume_batch", *here, "--table", "results", "--max-messages", "0")
    refused(2, "--jsn", "consume_batch", *here, "--jsn")


# --- in a session


@pytest.mark.spark
@pytest.mark.spec("SND-17")
def test_a_batch_producer_sends_any_source(run: Run, root: str, tmp_path: Path, spark: SparkSession) -> None:
    lines = [{"id": n, "level": n % 3, "text": f"t{n}", "user": f"u{n % 2}", "wait": n / 2} for n in range(4)]
    path = dropped(tmp_path / "in", a="\n".join(json.dumps(line) for line in lines))
    LakeQueue(root).create_queue("orders")
    source = ("--root", root, "--queue", "orders", "--format", "json", "--path", path)
    columns = ("--body-column", "text", "--group-column", "user", "--delay-column", "wait")
    assert run("produce_batch", *source, *columns, "--send-id", "1").out == "4 messages sent to orders\n"
    assert run("produce_batch", *source, *columns, "--send-id", "1").out == "0 messages sent to orders\n"
    found = LakeQueue(root).queue("orders").peek()
    assert sorted((message.body, message.group_id) for message in found) == [
        ("t0", "u0"), ("t1", "u1"), ("t2", "u0"), ("t3", "u1"),
    ]  # fmt: skip
    assert run("produce_batch", *source, "--body-column", "*").status == 0
    assert {json.dumps(line, separators=(",", ":")) for line in lines} <= set(bodies(root))

    urgent = LakeQueue(root).create_queue("urgent", priorities=3)
    levels = ("--queue", "urgent", *source[4:], "--body-column", "text", "--priority-column", "level")
    assert run("produce_batch", "--root", root, *levels).status == 0
    assert {(each.body, each.priority) for each in urgent.peek()} == {(f"t{n}", n % 3) for n in range(4)}

    dropped(tmp_path / "in", b='{"id": 4, "text": "t4"}\n{"id": 5}\n')
    refused = run("produce_batch", *source, "--body-column", "text")
    assert refused.status == 1 and "Nothing was sent: 1 row has no body" in refused.err
    bad = str(tmp_path / "bad")
    divert = (*source, "--body-column", "text", "--send-id", "2", "--on-bad-row", "divert")
    assert "option badRows is missing" in run("produce_batch", *divert).err
    ended = [run("produce_batch", *divert, "--bad-rows", bad).out for _ in range(2)]
    assert ended == ["5 messages sent to orders, 1 row refused\n", "0 messages sent to orders\n"]
    assert [row.reason for row in spark.read.format("delta").load(bad).collect()] == ["has no body (SND-1)"]

    refused = run("produce_batch", *source, "--group-column", "nobody")
    assert (refused.status, refused.out) == (2, "")
    there = "there are id, level, text, user, wait"
    assert refused.err == f"error: usage: no column body; {there}; no column nobody; {there}\n"
    refused = run("produce_batch", *source, "--body-column", "text", "--group-column", "wait")
    assert refused.status == 1 and "The column group_id is double" in refused.err
    unknown = run("produce_batch", *source[:4], "--format", "no-such-format", "--path", path)
    assert unknown.status == 3 and "no-such-format" in unknown.err
    nowhere = run("produce_batch", *source[:6], "--path", f"{path}/nowhere")
    assert nowhere.status == 2 and "nowhere" in nowhere.err
    assert all(ended.err.count("\n") == 1 for ended in (refused, unknown, nowhere))


@pytest.mark.spark
@pytest.mark.spec("FIF-1")
def test_a_batch_producer_keeps_the_order_of_groups(
    run: Run, root: str, tmp_path: Path, spark: SparkSession
) -> None:
    path = dropped(tmp_path / "in", a="".join(f"{n},g,{n}\n" for n in (3, 1, 10, 2)))
    LakeQueue(root).create_queue("orders.fifo", fifo=True)
    source = ("--root", root, "--queue", "orders.fifo", "--format", "csv", "--path", path)
    columns = ("--body-column", "_c0", "--group-column", "_c1", "--dedup-column", "_c0", "--order-by", "place")
    schema = "_c0 STRING, _c1 STRING, place INT"
    ended = run("produce_batch", *source, "--schema", schema, *columns)
    assert ended.status == 0, ended.err
    assert bodies(root, "orders.fifo") == ["1", "2", "3", "10"]


@pytest.mark.spark
@pytest.mark.spec("RCV-7", "VIS-4")
def test_a_batch_consumer_works_a_queue_off(run: Run, root: str, tmp_path: Path, spark: SparkSession) -> None:
    queue = LakeQueue(root).create_queue("orders")
    queue.send_batch([SendEntry(body) for body in "abcde"])
    here = ("--root", root, "--queue", "orders", "--table", str(tmp_path / "results"))
    failed = run("consume_batch", *here, "--handler", "handlers:fail")
    assert (failed.status, failed.out) == (3, "")
    assert failed.err.startswith("error: ValueError: not today (handlers.py, line ")
    assert (queue.counts().visible, queue.counts().in_flight) == (5, 0)
    done = run("consume_batch", *here, "--handler", "handlers:upper", "--max-messages", "2")
    assert done.out == "5 messages of orders done in 4 batches\n"
    results = spark.read.format("delta").load(str(tmp_path / "results"))
    assert sorted(row.body for row in results.collect()) == list("ABCDE")
    assert (queue.counts().visible, queue.counts().in_flight) == (0, 0)
    queue.pause("the bank is down")
    paused = run("consume_batch", *here)
    assert paused.out == "0 messages of orders done in 0 batches\n"
    assert "orders has been paused since 20" in paused.err and "Z: the bank is down; " in paused.err


@pytest.mark.spark
@pytest.mark.spec("RCV-7", "JOB-10")
@pytest.mark.parametrize("name", ["consume_batch", "consume_stream"])
def test_a_message_that_always_fails_ends_the_job_or_becomes_a_dead_letter(
    run: Run, root: str, tmp_path: Path, spark: SparkSession, name: str
) -> None:
    queue = LakeQueue(root).create_queue("orders")
    queue.send_batch([SendEntry(body) for body in ("1", "two", "3", "four")])
    here = [name, "--root", root, "--queue", "orders", "--handler", "handlers:refuse"]
    here += ["--once", "--checkpoint", str(tmp_path / "checkpoint")] * (name == "consume_stream")
    ended = run(*here, "--give-up-after", "2")
    assert ended.status == 1
    assert ended.err == "error: no progress: the last 3 batches finished none of 2 messages; 2 are done\n"
    lines = ["batch 0: 2 messages done, 2 failed", *(f"batch {n}: 0 messages done, 2 failed" for n in (1, 2, 3))]
    assert ended.out.splitlines() == (lines if name == "consume_stream" else [])
    assert {each.attempts[-1].text for each in queue.peek()} == {"two is no number", "four is no number"}
    dead = LakeQueue(root).create_queue("dead")
    queue.set_attributes(dead_letter_queue="dead", max_receive_count=8)
    queue.send("5")
    assert run(*here).status == 0
    assert {str(each.dead_letter_reason).partition(" (")[0] for each in dead.peek()} == {
        "Outcome.FAILED: two is no number",
        "Outcome.FAILED: four is no number",
    }
    assert (queue.counts().visible, queue.counts().in_flight) == (0, 0)


@pytest.mark.spark
@pytest.mark.spec("HBN-1")
@pytest.mark.parametrize("name", ["consume_batch", "consume_stream"])
def test_a_batch_is_extended_while_its_handler_runs(
    run: Run, root: str, tmp_path: Path, spark: SparkSession, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEQUEUE_TEST_ROOT", root)
    queue = LakeQueue(root).create_queue("orders", visibility_timeout=20)
    queue.send("a")
    here = [name, "--root", root, "--queue", "orders", "--table", str(tmp_path / "results")]
    here += ["--once", "--checkpoint", str(tmp_path / "checkpoint")] * (name == "consume_stream")
    ended = run(*here, "--handler", "handlers:wait_for_an_extension", "--visibility-timeout", "2")
    assert (ended.status, ended.err) == (0, "")
    assert (queue.counts().visible, queue.counts().in_flight) == (0, 0)


def progress(*batches: tuple[int, int], dead: str | None = None, most: int | None = None) -> job.Progress:
    found = job.Progress(SimpleNamespace(dead_letter_queue=dead), most)  # type: ignore[arg-type]
    for done, released in batches:
        found.add(LeaseCounts(done, 0, released))
    return found


@pytest.mark.parametrize(
    ("batches", "ends"),
    [
        ([(0, 4)] * 3, False),
        ([(0, 4)] * 4, True),
        ([(0, size) for size in (64, 32, 16, 8, 4, 2, 1)], False),
        ([(0, 4), (0, 4), (0, 4), (1, 3), (0, 3), (0, 3), (0, 3)], False),
        ([(0, 4), (0, 8), (0, 4), (0, 8)], True),
    ],
)
def test_a_job_gives_up_after_rounds_without_progress(
    batches: list[tuple[int, int]], ends: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) if ends else contextlib.nullcontext():
        progress(*batches).check()
    progress(*batches, dead="arn").check()
    with pytest.raises(typer.Exit) if ends else contextlib.nullcontext():
        progress(*batches, dead="arn", most=3).check()


@pytest.mark.spec("TAB-31")
def test_the_table_of_a_job_becomes_that_of_a_queue_without_one(
    run: Run, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = LakeQueue(root).create_queue("orders")
    monkeypatch.chdir(tmp_path)
    assert job.delivers(root, "orders", "local", None, "handlers:upper") is False
    for table in ("results", str(tmp_path / "results"), None):
        assert job.delivers(root, "orders", "local", table, None) is True
        assert queue.attributes()["Table"] == str(tmp_path / "results")
    refused = run("consume_batch", "--root", root, "--queue", "orders", "--table", "others")
    assert refused.status == 2 and f"orders delivers into {tmp_path}/results" in refused.err
    assert (
        "must not be in one another"
        in run(
            "consume_batch", "--root", root, "--queue", LakeQueue(root).create_queue("new").name, "--table", root
        ).err
    )


def test_results_that_have_no_table_are_refused() -> None:
    rows: Any = SimpleNamespace(toLocalIterator=print)
    assert results(rows, lambda _: (rows, ["id"]), True) == (rows, ["id"])
    assert results(rows, lambda _: (None, ["id"]), False) == ["id"]
    for returned in (rows, (rows, ["id"])):
        with pytest.raises(InvalidOptions, match="give --table"):
            results(rows, lambda _: returned, False)  # noqa: B023


@pytest.mark.spark
@pytest.mark.spec("RCV-7", "SND-17")
def test_a_stream_of_dropped_files_arrives_in_a_table(
    run: Run, root: str, tmp_path: Path, spark: SparkSession
) -> None:
    queue = LakeQueue(root).create_queue("orders")
    folder, here = tmp_path / "in", ("--root", root, "--queue", "orders", "--once")
    sent, received = (("--checkpoint", str(tmp_path / name)) for name in ("sent", "received"))
    produce = ("produce_stream", *here, "--path", str(folder), "--body-column", "value", *sent)
    consume = ("consume_stream", *here, "--table", str(tmp_path / "results"), *received)
    for batch, name in enumerate(("first", "second")):
        dropped(folder, **{name: f"{name} 1\n{name} 2\n"})
        ended = run(*produce)
        assert (ended.status, ended.out, ended.err) == (0, f"batch {batch}: 2 rows read\n", "")
    ended = run(*consume, "--max-messages", "3", "--handler", "handlers:upper")
    assert (ended.status, ended.err) == (0, "")
    results = spark.read.format("delta").load(str(tmp_path / "results"))
    assert sorted(row.body for row in results.collect()) == ["FIRST 1", "FIRST 2", "SECOND 1", "SECOND 2"]
    assert (queue.counts().visible, queue.counts().in_flight) == (0, 0)

    dropped(folder, third="\n")
    refused = run(*produce)
    assert refused.status == 1 and "Nothing was sent: 1 row has no body" in refused.err
    bad = str(tmp_path / "bad")
    assert run(*produce, "--on-bad-row", "divert", "--bad-rows", bad).status == 0
    assert [row.reason for row in spark.read.format("delta").load(bad).collect()] == ["has no body (SND-1)"]
    queue.send("x")
    failed = run(*consume, "--handler", "handlers:fail")
    assert failed.status == 3
    assert failed.err.splitlines()[-1].startswith("error: ValueError: not today (handlers.py")
