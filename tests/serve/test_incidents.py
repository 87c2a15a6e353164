"""Incidents, as an operator meets them: doctor and console name each one and its cure, and the cure works."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest
from typer.testing import CliRunner

from conformance.damage import live
from insides import messages_of
from lakequeue import Consumer, Context, LakeQueue, Message, QueueClientError, SendEntry
from lakequeue.cli import app
from lakequeue.entry_verbs import doctor, report_consumer
from lakequeue.model.consumer_processes import ConsumerFile, ConsumerProcess
from lakequeue.operations.consumer_concerns import OUTAGE_SECONDS, SLOW_SECONDS, STUCK_SECONDS
from lakequeue.testing import ManualClock
from serve.consoles import Console, visited
from small_disk import mounted, take_bytes


@contextmanager
def opened(root: Path) -> Iterator[tuple[LakeQueue, Console]]:
    lake = LakeQueue(str(root))
    with visited(lake) as http:
        yield lake, Console(lake, http)


def warned(lake: LakeQueue) -> str:
    """What `lakequeue doctor` says."""
    health = doctor(lake)
    return "\n".join(
        [*(f"{each.problem}; {each.repair}" for each in health.findings), *health.warnings, *health.notices]
    )


def shown(console: Console) -> str:
    """What the first page of the console begins with."""
    found = console.get("attention")
    problems = [*found["root"], *found["concerns"]]
    words = [f"{each['text']} - {each['hint']}" for each in problems]
    return "\n".join(
        [*words, *(f"{step['command']} {step['effect']}" for each in problems for step in each["steps"])]
    )


def run(lake: LakeQueue, *command: str) -> str:
    done = CliRunner().invoke(app, ["--root", lake.root, *command])
    assert done.exit_code == 0, done.output
    return done.output


RUNS = ConsumerProcess("worker-2", 4711, ManualClock().now(), ManualClock().now(), 0, None)


def test_a_full_disk(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk") as place, opened(place / "root") as (lake, console):
        orders, old = lake.create_queue("orders"), lake.create_queue("old")
        for _ in range(4):
            old.send_batch([SendEntry(os.urandom(100_000).hex())])
        take_bytes(place)
        with pytest.raises(QueueClientError, match="No space left"):
            orders.send("a")
        for told in (warned(lake), shown(console)):
            assert "disk is full: sends, receives and deletes fail" in told
            assert f"du -xah {place} | sort -h | tail shows what fills it" in told
            assert "lakequeue compact --now 0 frees the space of what is gone from the queues" in told
            assert "lakequeue purge old drops its messages, if nobody needs them" in told
            assert told.count("root's disk") == 1 and "on its file system" not in told
        sent = console.sent("queues/orders/send", {"MessageBody": "a"})
        cure = "`lakequeue doctor` says what fills it, and how to free space."
        assert sent.json()["message"] == f"The disk of the root is full: {cure}"
        found, compact = console.get("attention"), "lakequeue compact --now 0"
        assert found["full"] and len(found["root"]) == 1, "a compaction needs room first"
        [full] = found["root"]
        checked = CliRunner().invoke(app, ["--root", lake.root, "doctor"])
        assert full["details"] == ["Bytes: 0.0 MiB of 32 MiB are free."]
        assert "fail\n  bytes: 0.0 MiB of 32 MiB are free\n" in checked.output
        assert full["hint"].startswith("Other files fill it: the queues have ") and "old" in full["largest"]
        commands = [step["command"] for step in full["steps"]]
        assert commands[0].startswith("du ") and commands[1:] == [compact, "lakequeue purge old", compact]
        assert checked.exit_code == 1 and checked.output.startswith("no damage, 1 urgent\n")
        run(lake, "compact", "--now", "0")
        run(lake, "purge", "old", "--yes")
        run(lake, "compact", "--now", "0")
        orders.send("a")
        assert "sends, receives and deletes fail" not in warned(lake)


def test_a_damaged_file(tmp_path: Path) -> None:
    with opened(tmp_path / "root") as (lake, console):
        orders = lake.create_queue("orders")
        for body in "abc":
            orders.send(body)
        file = live(Path(messages_of(orders)))[1]
        whole = file.read_bytes()
        file.write_bytes(whole[:20] + bytes(40) + whole[60:])
        checked = CliRunner().invoke(app, ["--root", lake.root, "doctor"])
        assert checked.exit_code == 1 and f"damage: orders: {file.name} cannot be read" in checked.output
        assert checked.output.startswith("1 damaged queue, 1 warning, the most urgent first\n")
        copied = file.parent
        while copied.name != Path(orders._runtime.key).name:
            copied = copied.parent
        assert (
            f"\n  cp -a {copied} COPY  # first, to another disk: a repair cannot be undone\n  lake"
            in checked.output
        )
        assert f"\n  lakequeue --root {lake.root} repair --all  # shows what it would do" in checked.output
        repaired = run(lake, "repair", "--all", "--yes")
        assert "lost: 1 message, offset 1" in repaired and "offset 1 was sent at " in repaired
        assert "damage:" not in run(lake, "doctor")
        assert sorted(console.bodies("orders")) == ["a", "c"]


def test_thirty_dead_letters(tmp_path: Path) -> None:
    with opened(tmp_path / "root") as (lake, console):
        dead = lake.create_queue("pay-dead")
        pay = lake.create_queue("pay", dead_letter_queue=dead.name, max_receive_count=1, visibility_timeout=0)
        pay.send_batch([SendEntry(str(number)) for number in range(30)])

        def fail(message: Message, context: Context) -> None:
            raise ConnectionError("the bank does not answer")

        Consumer(pay, fail, retry_delay=0).run(until_empty=True)
        pay.receive()
        for told in (warned(lake), shown(console)):
            assert "pay-dead has 30 dead letters of pay" in told
            assert "a redrive runs handlers of pay again" in told
            assert (
                "lakequeue peek pay-dead shows why" in told
                and "lakequeue redrive pay-dead sends them back" in told
            )
        assert "\n  ConnectionError: the bank does not answer\n" in run(lake, "doctor")
        [letters] = [each for each in console.get("attention")["concerns"] if each["queue"] == "pay-dead"]
        assert letters["examples"] == {"ConnectionError": "the bank does not answer"}
        [error] = console.get("queues/pay-dead/errors")["errors"]
        assert (error["error"], error["messages"]) == ("ConnectionError", 30)
        run(lake, "redrive", "pay-dead", "--yes")
        assert pay.counts().visible == 30 and "dead letters" not in warned(lake)


@pytest.mark.parametrize(
    ("timeout", "bodies", "seconds", "text"),
    [
        (3600, "a", STUCK_SECONDS + 60, "for 1h1m"),
        (30, "ab", SLOW_SECONDS + 120, "for 7m; all handlers are slow, and 1 visible message waits"),
    ],
)
def test_a_handler_that_hangs(
    lake: LakeQueue, clock: ManualClock, console: Console, timeout: int, bodies: str, seconds: int, text: str
) -> None:
    orders = lake.create_queue("orders", visibility_timeout=timeout)
    for body in bodies:
        orders.send(body)

    def hang(message: Message, context: Context) -> None:
        context.sleep(10 * STUCK_SECONDS)

    consumer = Consumer(orders, hang, name="packer", concurrency=1, prefetch=0)
    begun = threading.Event()

    def consume() -> None:
        with clock.participant():
            begun.set()
            consumer.run()

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    begun.wait()
    clock.advance(seconds)
    for told in (warned(lake), shown(console)):
        assert f"packer has held a message of orders {text}" in told
        assert f"py-spy dump --pid {os.getpid()} on {socket.gethostname()} shows where its handler hangs" in told
    [[process]] = [each["processes"] for each in console.get("queues/orders/consumers")["consumers"]]
    assert (process["pid"], process["handlers"]) == (os.getpid(), 1)
    consumer.stop(timeout=0)
    thread.join(60)
    assert orders.counts().visible == len(bodies) and "packer" not in warned(lake)


def test_a_killed_consumer_of_another_machine(lake: LakeQueue, clock: ManualClock, console: Console) -> None:
    orders = lake.create_queue("orders")
    process = ConsumerProcess("worker-2", 4711, clock.now(), clock.now(), 0, None)
    report_consumer(orders, "1", ConsumerFile("packer", [orders.key], process))
    clock.advance(121)
    orders.send("a")
    clock.advance(59)
    assert "nobody receives" not in warned(lake), "it may run"
    clock.advance(2)
    for told in (warned(lake), shown(console)):
        assert "nobody receives the 1 visible message of orders, the oldest is 1m1s old" in told
        doubt = "were killed, are stopped or frozen, or cannot write to the root"
        assert f"start its consumers, which {doubt}: packer, process 4711" in told
    report_consumer(orders, "2", ConsumerFile("packer", [orders.key], attrs.evolve(process, seen_at=clock.now())))
    assert "nobody receives" not in warned(lake)


def test_a_frozen_consumer_of_a_queue_without_messages(
    lake: LakeQueue, clock: ManualClock, console: Console
) -> None:
    orders = lake.create_queue("orders")
    process = ConsumerProcess("worker-2", 4711, clock.now(), clock.now(), 0, None)
    report_consumer(orders, "1", ConsumerFile("packer", [orders.key], process))
    clock.advance(180)
    assert "report" not in warned(lake), "it may run"
    clock.advance(60)
    for told in (warned(lake), shown(console)):
        text = "1 consumer of orders no longer reports: packer, process 4711 on worker-2, last report 4m ago"
        assert text in told and "is stopped or frozen as a paused container is" in told
    other = attrs.evolve(process, pid=4712, seen_at=clock.now())
    report_consumer(orders, "2", ConsumerFile("packer", [orders.key], other))
    health = doctor(lake)
    assert [each.notice for each in health.concerns if each.kind == "silent"] == [True], "another one runs"
    clock.advance(3_600)
    assert "4711" not in warned(lake)


def test_a_consumer_that_a_signal_stopped(lake: LakeQueue, clock: ManualClock, console: Console) -> None:
    orders = lake.create_queue("orders")
    child = subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 19); input()"], stdin=-1)
    process = ConsumerProcess(socket.gethostname(), child.pid, clock.now(), clock.now(), 0, None)
    report_consumer(orders, "1", ConsumerFile("packer", [orders.key], process))
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    clock.advance(10)
    for told in (warned(lake), shown(console)):
        who = f"packer, process {child.pid} on {socket.gethostname()}, last report 10s ago"
        assert f"a process is stopped, and receives nothing of orders: {who}" in told
        assert f"kill -CONT {child.pid} on {socket.gethostname()} lets it go on" in told
    assert " stopped " in run(lake, "consumers", "orders")
    os.kill(child.pid, signal.SIGCONT)
    os.waitid(os.P_PID, child.pid, os.WCONTINUED | os.WNOWAIT)
    assert "stopped" not in warned(lake)
    child.communicate(b"")


def test_a_consumer_whose_delivery_table_fails(lake: LakeQueue, clock: ManualClock, console: Console) -> None:
    orders = lake.create_queue("orders", table="/lake/orders")
    process = ConsumerProcess("worker-2", 4711, clock.now(), clock.now(), 0, None)
    process = attrs.evolve(process, outage_since=clock.now(), outage_reason="it is gone")
    process = attrs.evolve(process, failing_table="/lake/orders")

    def report() -> None:
        seen = attrs.evolve(process, seen_at=clock.now())
        report_consumer(orders, "1", ConsumerFile("packer", [orders.key], seen))

    clock.advance(OUTAGE_SECONDS)
    report()
    health = doctor(lake)
    assert "has failed for 5m" in "".join(health.notices) and "has failed" not in "".join(health.warnings)
    clock.advance(60)
    report()
    for told in (warned(lake), shown(console)):
        since = f"since {process.started_at:%F %T}Z, for 1 consumer of orders: packer, process 4711 on worker-2"
        assert f"the delivery table /lake/orders has failed for 6m, {since}" in told
        assert "it is gone; once the table is back" in told
    process = attrs.evolve(process, outage_since=None)
    report()
    assert "has failed" not in warned(lake)


def test_a_bad_deploy_that_still_runs(lake: LakeQueue, clock: ManualClock, console: Console) -> None:
    def fails(message: Message, context: Context) -> None:
        raise ConnectionError("the bank does not answer")

    lake.create_queue("letters")
    pay = lake.create_queue("pay", dead_letter_queue="letters", max_receive_count=1)

    def send(number: int) -> None:
        pay.send_batch([SendEntry(str(each)) for each in range(number)])
        Consumer(pay, fails, retry_failed_at_once=True).run(until_empty=True)
        report_consumer(pay, "1", ConsumerFile("packer", [pay.key], attrs.evolve(RUNS, seen_at=clock.now())))

    def steps() -> list[list[str]]:
        [concern] = [each for each in doctor(lake).concerns if each.kind == "dead letters"]
        [shown] = [each for each in console.get("attention")["concerns"] if each["kind"] == "dead letters"]
        assert [step.command for step in concern.steps] == [step["command"] for step in shown["steps"]]
        assert ("and more come while consumers of pay run" in concern.text) == (shown["may"] == ["pause"])
        return [step.command.split()[1:3] for step in concern.steps]

    calm = [["peek", "letters"], ["redrive", "letters"]]
    send(2)
    assert steps() == calm
    clock.advance(31)
    send(1)
    assert steps() == [["pause", "pay"], calm[0], ["resume", "pay"], calm[1]]
    pay.pause("a bad deploy")
    clock.advance(31)
    assert steps() == calm, "it is paused"
    pay.resume()
    clock.advance(300)
    report_consumer(pay, "1", ConsumerFile("packer", [pay.key], attrs.evolve(RUNS, seen_at=clock.now())))
    assert steps() == calm, "no more come"
    clock.advance(31)
    send(3)
    Path(lake.root, "consumers", "1.json").unlink()
    clock.advance(31)
    assert steps() == calm, "no consumer runs"


def test_a_forgotten_pause(tmp_path: Path) -> None:
    with opened(tmp_path / "root") as (lake, console):
        mail = lake.create_queue("mail")
        mail.send("a")
        mail.pause("the migration")
        for told in (warned(lake), shown(console)):
            assert "mail has been paused since " in told and "Z: the migration" in told
            assert "lakequeue resume mail ends the pause" in told
        run(lake, "compact")
        assert run(lake, "doctor", "--strict").startswith(
            "no damage, 1 notice\n\nnotice: mail has been paused since "
        )
        console.post("queues/mail/resume")
        assert mail.receive()[0].body == "a" and "paused" not in warned(lake)
