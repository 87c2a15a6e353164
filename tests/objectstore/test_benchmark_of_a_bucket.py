"""The benchmark measures a bucket of the user's, and leaves there what it found."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import obstore
import pytest
from benchmark import fresh_prefix
from benchmarks import bucket
from benchmarks.harness import Bench, Sizes
from benchmarks.store import BODIES
from obstore.store import MemoryStore
from rich.progress import Progress

from lakequeue.storage.folder import RemoteFolder
from lakequeue.storage.stores import Store
from refused_extras import REFUSE
from serve.serving import wait_until

BENCHMARK = Path(__file__).parents[2] / "jobs" / "benchmark.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARK), "--quick", "--scale", "0.05", "--json", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, COLUMNS="160"))


def test_requests_races_calls_and_prices_are_measured_and_nothing_is_left(s3_root: str) -> None:
    done = run("--store", s3_root, "--only", "bucket,bulk-store")
    assert done.returncode == 0, done.stderr
    rows = {row["row"]: row for row in json.loads(done.stdout)["rows"]}
    race = rows[f"{bucket.RACERS} threads create the same object: exactly one did"]
    assert (race["measured"], race["unit"]) == (8, "of 8 races")
    for what in ("one request: create an object", "one request: delete it"):
        assert rows[what]["measured"] > 0 and "99th percentile" in rows[what]["remark"]
    judged = rows["one request: create an object"]["measured"] >= bucket.JUDGED
    bound = bucket.IN_REQUESTS if judged else None
    for what in ("send, one message", "delete, a batch of 10"):
        assert rows[f"{what} / one request that creates an object"]["bound"] == bound
    price = rows["a million messages sent, received and deleted, one message a call"]
    assert price["measured"] > 30 and "6.00 put" in price["remark"]
    for size in BODIES:
        for verb in ("send_arrow", "lease", "lease.batches()", "lease.delete()"):
            assert rows[f"5,000 messages of {size:,} bytes on your store: {verb}"]["measured"] > 0
    assert list(Store(s3_root).folder(s3_root).files()) == []


def test_the_lines_of_the_page_need_no_extra_and_fit_80_columns(s3_root: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(REFUSE)
    options = "--store", s3_root, "--only", "bucket,bulk-store", "--quick", "--scale", "0.05"
    terminal = {"PYTHONPATH": str(tmp_path), "TERM": "dumb", "FORCE_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), *options], capture_output=True, text=True, env=os.environ | terminal
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert ["measured", "lakequeue", "verdict"] in [line.split() for line in lines]
    assert any(re.match(r"   [\d.]+x of [\d.]+ m?s", line) for line in lines)
    assert any(re.match(r" one request: create an object +[\d.]+ ms +no bound", line) for line in lines)


def test_a_run_that_is_terminated_leaves_nothing(s3_root: str) -> None:
    folder = Store(s3_root).folder(s3_root)
    command = [sys.executable, str(BENCHMARK), "--store", s3_root, "--only", "bucket", "--quick"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        below = process.stderr.readline().split()[2].removesuffix(",").removeprefix(f"{s3_root}/")
        wait_until(lambda: any(folder.files(f"{below}/races")))
        process.terminate()
        said = process.stderr.read()
    assert process.returncode == 128 + signal.SIGTERM, said
    assert "Traceback" not in said and list(folder.files()) == []


def test_what_is_written_during_the_removal_is_removed_too(monkeypatch: pytest.MonkeyPatch, s3_root: str) -> None:
    folder, discard, joined = Store(s3_root).folder(s3_root), RemoteFolder.discard, threading.Event()

    class Checkpoint(threading.Thread):
        def run(self) -> None:
            joined.wait()
            folder.write(f"{name}/checkpoint", b"data")

        def join(self, timeout: float | None = None) -> None:
            joined.set()
            super().join(timeout)

    def then_another(of: RemoteFolder, path: str) -> None:
        discard(of, path)
        while late:
            folder.write(late.pop(), b"data")

    with fresh_prefix(s3_root) as prefix:
        assert prefix is not None
        name = prefix.rpartition("/")[2]
        folder.write(f"{name}/first", b"data")
        late = [f"{name}/late"]
        monkeypatch.setattr(RemoteFolder, "discard", then_another)
        checkpoint = Checkpoint(name="lakequeue-checkpoint")
        checkpoint.start()
    checkpoint.join()
    assert not late
    assert list(folder.files()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_removal_does_not_end_it(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, s3_root: str
) -> None:
    folder, discard = Store(s3_root).folder(s3_root), RemoteFolder.discard

    def then_a_signal(of: RemoteFolder, path: str) -> None:
        discard(of, path)
        signal.raise_signal(number)

    def end(*_: object) -> None:
        raise RuntimeError("a signal ended the removal")

    handler = signal.signal(number, end)
    try:
        with fresh_prefix(s3_root) as prefix:
            assert prefix is not None
            for each in range(3):
                folder.write(f"{prefix.rpartition('/')[2]}/{each}", b"data")
            monkeypatch.setattr(RemoteFolder, "discard", then_a_signal)
        assert signal.getsignal(number) is end
    finally:
        signal.signal(number, handler)
    assert list(folder.files()) == []


def test_a_prefix_that_holds_something_is_refused_and_kept(s3_root: str) -> None:
    folder = Store(s3_root).folder(s3_root)
    folder.write("precious", b"data")
    done = run("--store", s3_root)
    assert (done.returncode, done.stdout) == (2, "")
    assert "holds precious" in done.stderr
    assert [entry.name for entry in folder.files()] == ["precious"]


def test_rows_that_do_not_run_on_a_bucket_are_refused_with_one(s3_root: str) -> None:
    assert "with --store there is no point" in run("--store", s3_root, "--only", "point").stderr
    assert "without --store there is no bucket" in run("--only", "bucket").stderr


def test_a_store_on_which_several_threads_create_an_object_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put, memory = obstore.put, MemoryStore()

    def overwriting(store: MemoryStore, name: str, data: bytes, mode: str) -> Any:
        return put(store, name, data, mode="overwrite")

    monkeypatch.setattr(Store, "_client", lambda *_: memory)
    monkeypatch.setattr(obstore, "put", overwriting)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    bench = Bench(tmp_path, Sizes(point_rounds=2, races=1), Progress(disable=True), "s3://lake/prefix")
    with pytest.raises(RuntimeError, match="8 of 8 threads created the same object"):
        list(bucket.bucket(bench))


@pytest.mark.parametrize(
    ("uri", "missing", "said"),
    [
        ("s3://no-such-bucket/prefix", None, "the bucket does not exist"),
        ("s3://lake/prefix", "AWS_ACCESS_KEY_ID", "there are no credentials"),
        ("ftp://lake/prefix", None, "unsupported scheme ftp://"),
    ],
)
def test_a_store_that_cannot_be_reached_is_named_in_one_line(
    s3_root: str, monkeypatch: pytest.MonkeyPatch, uri: str, missing: str | None, said: str
) -> None:
    if missing:
        monkeypatch.delenv(missing)
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    done = run("--store", uri)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(rf"Error: {uri}: .*{said}.*\n", done.stderr), done.stderr
