"""Consumers that run are listed, idle ones too, by files that end with them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from conformance.damage import live
from consumer.harness import Harness
from insides import forget
from lakequeue import Consumer, DamagedTable, LakeQueue, QueueClientError
from lakequeue.cli import app
from lakequeue.cli.check import health_lines
from lakequeue.entry_verbs import ActiveConsumer, consumers, doctor, running_consumers
from lakequeue.model.clock import format_instant
from lakequeue.model.consumer_processes import ConsumerProcess, parse
from lakequeue.operations import presence
from lakequeue.storage import consumer_files, layout
from lakequeue.storage.folder import Freed, LocalFolder
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, each_case, replace, shown_by

HERE = (socket.gethostname(), os.getpid())


def files(harness: Harness) -> list[Path]:
    return sorted(Path(harness.lq.root, "consumers").glob("*"))


def listed(harness: Harness) -> list[ActiveConsumer]:
    return consumers(harness.other)


def idle(harness: Harness) -> list[str | None]:
    return [each.consumer for each in listed(harness) if not each.in_flight]


@pytest.mark.spec("JOB-14")
def test_an_idle_consumer_is_listed_from_its_first_second_to_its_end(harness: Harness) -> None:
    began = harness.clock.now()
    with harness.running(harness.consumer(harness.handler(), name="packer")):
        assert listed(harness) == [], "a run that is over within a second writes nothing"
        harness.clock.advance(1)
        first = began + timedelta(seconds=1)
        process = ConsumerProcess(*HERE, began, first, 0, None)
        assert listed(harness) == [ActiveConsumer("packer", 0, None, None, [process])]
        harness.clock.advance(59)
        [written] = files(harness)
        assert listed(harness)[0].processes[0].seen_at == first, "one write a minute"
        harness.clock.advance(1)
        assert listed(harness)[0].processes[0].seen_at == first + timedelta(seconds=60)
        assert files(harness) == [written]
        assert written.stat().st_size < 1_000
    assert listed(harness) == [] and files(harness) == []


@pytest.mark.spec("JOB-14")
def test_a_consumer_that_works_is_listed_once_with_its_process_and_oldest_handler(harness: Harness) -> None:
    harness.send("a", "b")
    began = harness.clock.now()
    with harness.running(harness.consumer(harness.handler(seconds=90), name="packer", concurrency=2)):
        harness.clock.advance(1)
        [found] = listed(harness)
        [process] = found.processes
        assert (found.consumer, found.in_flight, found.oldest_receive) == ("packer", 2, began)
        assert (process.handlers, process.oldest_handler) == (2, began)
        harness.clock.advance(120)
        assert listed(harness)[0].processes[0].handlers == 0


@pytest.mark.spec("JOB-14")
def test_an_outage_is_reported_after_seconds_and_at_its_end(harness: Harness) -> None:
    harness.fails(QueueClientError("no network"), verbs="receive", since=62, until=75)
    with harness.running(harness.consumer(harness.handler(), wait_time=1)):
        harness.clock.advance(72)
        assert listed(harness)[0].processes[0].outage_reason == "no network"
        harness.clock.advance(12)
        assert listed(harness)[0].processes[0].outage_reason is None


@pytest.mark.spec("JOB-14")
def test_a_consumer_that_waits_for_its_storage_says_since_when(harness: Harness) -> None:
    harness.fails(QueueClientError("no network"), verbs="receive", since=5, until=100)
    with harness.running(harness.consumer(harness.handler(), wait_time=1)):
        harness.clock.advance(61)
        [process] = listed(harness)[0].processes
        assert process.outage_since is not None and process.outage_since < process.seen_at
        assert process.outage_reason == "no network"
        harness.clock.advance(120)
        [process] = listed(harness)[0].processes
        assert (process.outage_since, process.outage_reason, process.failing_table) == (None, None, None)


@pytest.mark.spec("JOB-14")
def test_a_consumer_of_several_queues_is_listed_in_each(harness: Harness) -> None:
    second, third = harness.lq.create_queue("second"), harness.lq.create_queue("third")
    both = Consumer([harness.queue, second], harness.handler(), name="both")
    with harness.running(both), harness.running(harness.consumer(harness.handler(), name="both")):
        harness.clock.advance(1)
        assert len(files(harness)) == 2
        assert [len(each.processes) for each in listed(harness)] == [2]
        assert [len(each.processes) for each in consumers(second)] == [1]
        assert consumers(third) == []


def a_consumer_that_was_killed_is_listed_as_silent_for_a_day(harness: Harness) -> None:
    with harness.running(harness.consumer(harness.handler(), name="killed")):
        harness.clock.advance(1)
        [file] = files(harness)
        left = file.read_bytes()
    file.write_bytes(left)
    harness.clock.advance(consumer_files.SHOWN_SECONDS)
    [waiting] = listed(harness)
    assert (len(waiting.processes), waiting.silent, waiting.is_active) == (1, (), True), "maybe its storage fails"
    harness.clock.advance(1)
    [killed] = listed(harness)
    assert (killed.consumer, killed.processes, killed.is_active) == ("killed", (), False)
    assert [process.pid for process in killed.silent] == [os.getpid()]
    ran = CliRunner().invoke(app, ["--root", harness.lq.root, "consumers", harness.queue.name])
    assert f"not since {killed.silent[0].seen_at:%F %T}Z" in ran.stdout and "killed?" in ran.stdout
    harness.lq.compact()
    assert files(harness) == [file], "what was killed can be seen"
    left_over = {f"{number:03}.json" for number in range(60)}
    for name in left_over:
        Path(file.parent, name).write_bytes(left)
    harness.lq.compact()
    assert len(files(harness)) == 50, "a loop of kills leaves no more"
    harness.clock.advance(consumer_files.KEPT_SECONDS)
    Path(file.parent, "other.txt").write_text("?")
    harness.lq.compact()
    assert files(harness) == []


def a_consumer_whose_process_is_gone_is_listed_as_killed_at_once(harness: Harness) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with harness.running(harness.consumer(harness.handler(), name="killed")):
        harness.clock.advance(1)
        [file] = files(harness)
        left = json.loads(file.read_text())

    def report(space: str | None = left["pid_space"], **process: object) -> ActiveConsumer:
        process = left["process"] | {"pid": child.pid} | process
        file.write_text(json.dumps(left | {"process": process, "pid_space": space}))
        [found] = listed(harness)
        return found

    gone = report()
    assert ([process.ended for process in gone.silent], gone.processes) == ([True], ())
    ran = CliRunner().invoke(app, ["--root", harness.lq.root, "consumers", harness.queue.name])
    assert f"{child.pid} on" in ran.stdout and "killed " in ran.stdout
    for seen in report(pid=os.getpid()), report(host="elsewhere"), report(space="a container"), report(space=None):
        assert (len(seen.processes), seen.silent) == (1, ()), "it runs, or cannot be seen from here"


def a_consumer_that_a_signal_stopped_is_listed_as_stopped_at_once(harness: Harness) -> None:
    stop = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP); input()"
    child = subprocess.Popen([sys.executable, "-c", stop], stdin=subprocess.PIPE)
    with harness.running(harness.consumer(harness.handler(), name="stopped")):
        harness.clock.advance(1)
        [file] = files(harness)
        left = json.loads(file.read_text())
    file.write_text(json.dumps(left | {"process": left["process"] | {"pid": child.pid}}))
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    [stopped] = listed(harness)
    os.kill(child.pid, signal.SIGCONT)
    os.waitid(os.P_PID, child.pid, os.WCONTINUED | os.WNOWAIT)
    [runs] = listed(harness)
    child.communicate(b"")
    assert ([each.stopped for each in stopped.silent], stopped.is_active) == ([True], False)
    assert (len(runs.processes), runs.silent) == (1, ())


@pytest.mark.spec("JOB-14", "DUR-8")
def test_a_consumer_that_met_damage_reports_it_at_once_and_for_an_hour(harness: Harness) -> None:
    error = DamagedTable("/root/q/key/0/messages", "a.parquet", "is missing", outcome_unknown=True)

    def said() -> list[str]:
        forget()
        return [*health_lines(doctor(LakeQueue(harness.lq.root, clock=harness.clock)), str)]

    with harness.running(harness.consumer(harness.handler(), name="packer", wait_time=1)):
        harness.clock.advance(10)
        harness.fails(error, verbs="receive")
        harness.clock.advance(2)
        [[report]] = running_consumers(harness.lq).values()
        assert report.damaged == {harness.queue.key: report.process.seen_at}, "a minute is long"
        by = f"  met by  packer, process {os.getpid()} on {socket.gethostname()}"
        assert not any(by in line for line in said()), "it was repaired meanwhile"
        harness.send("a")
        harness.clock.advance(0)
        [file] = live(Path(layout.messages_path(harness.lq.root, harness.queue.key, 0)))
        file.unlink()
        assert f"{by}, at {report.process.seen_at:%F %T}Z" in said()
        harness.queue.before = lambda verb, bodies: None
        harness.clock.advance(3700)
        [[report]] = running_consumers(harness.lq).values()
        assert report.damaged == {}


@pytest.mark.spec("JOB-14", "DUR-8")
def test_a_consumer_forgets_damage_that_was_repaired_at_its_next_report(harness: Harness) -> None:
    def reported() -> list[str]:
        [[report]] = running_consumers(harness.lq).values()
        return [*report.damaged]

    harness.send("a")
    [file] = live(Path(layout.messages_path(harness.lq.root, harness.queue.key, 0)))
    whole = file.read_bytes()
    file.unlink()
    forget()
    with harness.running(harness.consumer(harness.handler(), wait_time=1)):
        harness.clock.advance(10)
        assert reported() == [harness.queue.key]
        harness.clock.advance(180)
        assert reported() == [harness.queue.key], "the file is still missing"
        file.write_bytes(whole)
        harness.clock.advance(130)
        assert reported() == []


@pytest.mark.spec("JOB-14")
def test_a_run_that_ends_within_a_second_costs_nothing(harness: Harness) -> None:
    harness.send("a")
    harness.consumer(harness.handler()).run(until_empty=True)
    assert not Path(harness.lq.root, "consumers").exists()


@pytest.mark.spec("JOB-14")
def test_a_storage_that_takes_no_file_ends_no_consumer(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    handler = harness.handler()
    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "offer", full)
        with harness.running(harness.consumer(handler)) as running:
            harness.clock.advance(61)
            harness.send("a")
            harness.clock.advance(1)
        assert running.join() is None and handler.bodies == ["a"]


@pytest.mark.spec("JOB-14")
def test_a_root_that_went_away_is_not_made_again(harness: Harness) -> None:
    with harness.running(harness.consumer(harness.handler())):
        shutil.rmtree(harness.lq.root)
        harness.clock.advance(1)
        assert not Path(harness.lq.root).exists()
    forget()


def document(**changes: object) -> dict[str, object]:
    at = format_instant(ManualClock().now())
    process = {"host": "h", "pid": 7, "started_at": at, "seen_at": at, "handlers": 0}
    process |= {"oldest_handler": None, "outage_since": None, "outage_reason": None, "failing_table": None}
    inner = {name: value for name, value in changes.items() if name in process}
    return {"name": "packer", "queues": ["key"], "process": process | inner} | {
        name: value for name, value in changes.items() if name not in process
    }


@pytest.mark.spec("JOB-14")
@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        *(
            json.dumps(document(**{name: value})).encode()
            for name, value in (
                ("name", 7),
                ("queues", None),
                ("queues", [{}]),
                ("process", "no"),
                ("host", None),
                ("pid", "7"),
                ("pid", True),
                ("handlers", 1.5),
                ("seen_at", None),
                ("seen_at", "yesterday"),
                ("oldest_handler", 7),
                ("outage_since", 7),
                ("outage_reason", 7),
                ("failing_table", 7),
                ("requests", 7),
                ("requests", {"get": "7"}),
                ("received", None),
                ("damaged", ["key"]),
                ("damaged", {"key": 7}),
            )
        ),
    ],
)
def test_a_file_that_says_anything_else_is_ignored(harness: Harness, text: bytes) -> None:
    assert parse(json.dumps(document()).encode()) is not None and parse(text) is None
    folder = Path(harness.lq.root, "consumers")
    folder.mkdir()
    (folder / "odd.json").write_bytes(text)
    good = document(queues=[harness.queue.key], seen_at=format_instant(harness.clock.now()))
    (folder / "good.json").write_text(json.dumps(good))
    (folder / "large.json").write_text(json.dumps(good) + " " * 70_000)
    assert [len(each.processes) for each in listed(harness)] == [1]


MUTATIONS = [
    Mutation(
        "list a process that is gone until its report is old",
        replace("lakequeue.operations.consumers._has_ended", lambda file: False),
        {a_consumer_whose_process_is_gone_is_listed_as_killed_at_once: "JOB-14"},
    ),
    Mutation(
        "look for the process of another container",
        replace("lakequeue.operations.consumers._pid_space", lambda: "a container"),
        {a_consumer_whose_process_is_gone_is_listed_as_killed_at_once: "JOB-14"},
    ),
    Mutation(
        "count files of any age",
        replace(consumer_files, "SHOWN_SECONDS", 10**6),
        {a_consumer_that_was_killed_is_listed_as_silent_for_a_day: "JOB-14"},
    ),
    Mutation(
        "forget a consumer that was killed",
        replace(consumer_files, "KEPT_SECONDS", consumer_files.SHOWN_SECONDS),
        {a_consumer_that_was_killed_is_listed_as_silent_for_a_day: "JOB-14"},
    ),
    Mutation(
        "keep all files of a loop of kills",
        replace(consumer_files, "KEPT_SILENT", 10**6),
        {a_consumer_that_was_killed_is_listed_as_silent_for_a_day: "JOB-14"},
    ),
    Mutation(
        "keep the files of consumers that were killed",
        replace("lakequeue.operations.compact.consumer_files.remove_old", lambda *_: Freed()),
        {a_consumer_that_was_killed_is_listed_as_silent_for_a_day: "JOB-14"},
    ),
    Mutation(
        "report damage that was repaired until the run ends",
        replace(presence.Presence, "_forget_repaired", lambda *_: None),
        {
            shown_by(
                test_a_consumer_forgets_damage_that_was_repaired_at_its_next_report, lambda harness: (harness,)
            ): "DUR-8"
        },
    ),
    Mutation(
        "list a process that a signal stopped as running",
        replace("lakequeue.operations.consumers._is_stopped", lambda file: False),
        {a_consumer_that_a_signal_stopped_is_listed_as_stopped_at_once: "JOB-14"},
    ),
    Mutation(
        "leave the file of a consumer that ends",
        replace(presence, "forget_consumer", lambda *_: None),
        {
            shown_by(
                test_an_idle_consumer_is_listed_from_its_first_second_to_its_end, lambda harness: (harness,)
            ): "JOB-14"
        },
    ),
]


@each_case(MUTATIONS)
def test_the_promise_holds_and_falls_with_its_safeguard(case: Case, harness: Harness) -> None:
    case.run(lambda _: (harness,))
