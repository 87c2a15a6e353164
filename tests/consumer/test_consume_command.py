"""`lakequeue consume`: its options, its log, its exit codes, and how it ends."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from conformance.damage import live
from consumer.harness import scrape
from insides import forget, place_of
from lakequeue import Consumer, LakeQueue, Message, Queue, RedrivePolicy, SendEntry
from lakequeue.cli import app
from lakequeue.cli import consume as command
from lakequeue.consumer import deliveries
from lakequeue.consumer.stacks import running_calls
from lakequeue.entry_verbs import consumers, make_visible, report_consumer
from lakequeue.model.clock import SystemClock
from lakequeue.model.consumer_processes import ConsumerFile, ConsumerProcess
from lakequeue.model.log_lines import JsonLines
from lakequeue.operations.delivery import Delivering
from lakequeue.storage import layout
from serve.serving import free_port, wait_until

MODULE = """
import asyncio, pathlib, time
def handle(message, context):
    pathlib.Path("began").touch()
    if message.body == "bad":
        raise ValueError("by a\\nhandler")
    context.sleep(float(message.body))
async def handle_async(message, context):
    pathlib.Path("began").touch()
    await context.sleep_async(float(message.body))
class Group:
    def handle(message, context): ...
def one(message): ...
def rows(messages, context):
    return [{"id": int(message.body)} for message in messages]
def few(messages, context):
    if len(messages) > 1:
        raise MemoryError
    return rows(messages, context)
def text(messages, context):
    return "3 rows"
def texts(messages, context):
    return ["3 rows"]
"""
PROGRAM = "from lakequeue.cli import main; main()"
INSTALLED = f"import sys; sys.path.remove(''); {PROGRAM}"
"""As the installed command, whose path does not begin with the working directory."""


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Queue:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "application.py").write_text(MODULE)
    return LakeQueue(str(tmp_path / "root")).create_queue("orders")


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., subprocess.Popen[str]]:
    def start(*arguments: str, json: bool = False, program: str = PROGRAM) -> subprocess.Popen[str]:
        options = ["--root", str(tmp_path / "root"), *(["--json"] if json else []), "consume", "orders"]
        process = subprocess.Popen(
            [sys.executable, "-c", program, *options, *arguments],
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # as a background job has it
        )
        request.addfinalizer(process.wait)
        request.addfinalizer(process.kill)
        return process

    return start


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs the command in this process, whose signals and logs stay as they are."""
    monkeypatch.setattr(command, "_configure_logs", lambda session: None)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(command, "answer_signal", lambda calls: None)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*arguments: str) -> Result:
        for name in ("application", "broken", "mending"):
            sys.modules.pop(name, None)
        return CliRunner().invoke(app, ["--root", str(tmp_path / "root"), "consume", *arguments])

    return run


def began(queue: Queue) -> bool:
    return os.path.exists("began")


def test_a_file_of_the_working_directory_replaces_no_other_module(
    queue: Queue, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """The handler is found there, but a module of the standard library is not."""
    Path("wave.py").write_text("raise SystemExit('the one of the working directory')")
    Path("imports.py").write_text("import wave\ndef handle(message, context):\n    wave.Wave_read\n")
    queue.send("a")
    process = start("imports:handle", "--until-empty", program=INSTALLED)
    assert process.wait(60) == 0, process.stderr.read()  # type: ignore[union-attr]
    assert queue.counts().visible == 0


@pytest.mark.parametrize("handler", ["application:handle", "application:handle_async", "application:Group.handle"])
def test_the_command_consumes_until_the_queue_is_empty(queue: Queue, run: Any, handler: str) -> None:
    queue.send_batch([SendEntry("0") for _ in range(5)])
    assert run("orders", handler, "--until-empty", "--concurrency", "2").exit_code == 0
    assert queue.counts().visible == queue.counts().in_flight == 0


@pytest.mark.parametrize("others", [0, 1])
def test_damaged_messages_end_the_command_with_the_code_1_and_the_command_that_repairs_them(
    queue: Queue, run: Any, others: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lakequeue")
    for _ in range(1 + others):
        queue.send("0")
    live(Path(layout.messages_path(queue._runtime.root.path, queue.key, 0)))[others].write_bytes(b"")
    forget()
    repair = f"repair it: lakequeue --root {Path('root').resolve()} repair orders"
    for handled, met in ((others, 1), (0, 0)):  # in the second run the damaged message is hidden
        caplog.clear()
        assert run("orders", "application:handle", "--until-empty").exit_code == 1
        forget()
        ends = f"consumed orders, orders has damaged messages, {repair}: {handled} handled, 0 failed"
        assert ends in caplog.messages
        assert sum(message.endswith(repair) for message in caplog.messages) == met


@pytest.mark.parametrize("by", ["repair", "copy", "wrong"])
def test_damage_that_was_repaired_during_the_run_does_not_count_at_its_end(
    queue: Queue, run: Any, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lakequeue")
    for _ in range(2):
        queue.send("0")
    file = live(Path(layout.messages_path(queue._runtime.root.path, queue.key, 0)))[1]
    content = file.read_bytes()
    file.write_bytes(b"")
    forget()
    repair = (
        "import lakequeue\ndef handle(message, context): lakequeue.LakeQueue('root').repair('orders', apply=True)"
    )
    written = {"copy": content, "wrong": content[:-1]}.get(by)
    copy = f"def handle(message, context): open({str(file)!r}, 'wb').write({written})"
    Path("mending.py").write_text(repair if written is None else copy)
    ran = run("orders", "mending:handle", "--until-empty")
    forget()
    assert (ran.exit_code, "the damage of orders is gone" in caplog.messages) == (
        (1, False) if by == "wrong" else (0, True)
    )
    assert ("orders has damaged messages" in caplog.messages[-1]) is (by == "wrong")


@pytest.mark.spec("JOB-14")
@pytest.mark.parametrize(("function", "owned"), [("handle", False), ("handle_async", False), ("handle", True)])
def test_a_signal_prints_where_its_handler_hangs_unless_the_handler_owns_it(
    queue: Queue, start: Callable[..., subprocess.Popen[str]], function: str, owned: bool
) -> None:
    own = "import os, signal\nsignal.signal(signal.SIGUSR1, lambda *_: os.write(2, b'its own\\n'))"
    Path("hanging.py").write_text(f"{own if owned else ''}\n{MODULE}")
    sent = queue.send("600")
    process = start(f"hanging:{function}")
    wait_until(lambda: began(queue), "the handler begins")
    wait_until(lambda: any(each.processes for each in consumers(queue)), "the consumer reports")
    [[reported]] = [each.processes for each in consumers(queue)]
    assert reported.dumps is not owned
    process.send_signal(signal.SIGUSR1)
    assert process.stderr is not None
    lines = iter(process.stderr.readline, "")
    if owned:
        assert next(line for line in lines if "its own" in line)
        return
    assert next(line for line in lines if line.startswith("Current thread")), "also if the interpreter is busy"
    assert next(line for line in lines if line == "running handlers, the oldest first:\n")
    assert re.fullmatch(rf"handler of orders, since \S+, message {sent.message_id}:\n", next(lines))
    assert re.search(rf'hanging.py", line \d+, in {function}\n$', next(lines)), "frames above are lakequeue's"
    assert " context.sleep" in next(lines)
    assert process.poll() is None, "it goes on"


@pytest.mark.parametrize("delivers", [False, True])
def test_the_running_calls_of_batches_name_three_messages_and_the_handlers_line(
    queue: Queue, tmp_path: Path, delivers: bool
) -> None:
    shown: list[str] = []

    def handle(messages: list[Message], contexts: object) -> list[dict[str, int]] | None:
        shown.extend(running_calls(consumer))
        return [{"id": int(message.body)} for message in messages] if delivers else None

    if delivers:
        queue.set_attributes(table=str(tmp_path / "table"))
    ids = [queue.send(str(number)).message_id for number in range(4)]
    consumer = Consumer(queue, handle, batch=4, wait_time=0)
    consumer.run(until_empty=True)
    assert re.fullmatch(rf"handler of orders, since \S+, message {', '.join(ids[:3])} and 1 more:", shown[0])
    assert shown[1].endswith("in handle\n    shown.extend(running_calls(consumer))")


@pytest.mark.spec("JOB-9")
def test_several_queues_share_its_handlers(queue: Queue, run: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    other = LakeQueue(place_of(queue)).create_queue("other")
    queue.send_batch([SendEntry("0") for _ in range(5)])
    other.send_batch([SendEntry("0"), SendEntry("bad")])
    arguments = ("orders", "other", "application:handle", "--until-empty", "--retry-delay", "60")
    assert run(*arguments, "--weights", "3,1").exit_code == 1
    assert caplog.messages[-1] == "consumed orders, other, 1 wait for a retry: 6 handled, 1 failed"
    assert queue.counts().visible == other.counts().visible == 0
    assert run(*arguments).exit_code == 1  # also of a message that failed in an earlier run
    assert caplog.messages[-1] == "consumed orders, other, 1 wait for a retry: 0 handled, 0 failed"
    for weights, text in (("3", "for each queue, of which there are 2, not [3]"), ("3,x", "--weights: must be")):
        result = run(*arguments, "--weights", weights)
        assert result.exit_code != 0 and text in result.output
    other.purge()
    assert run(*arguments).exit_code == 0
    assert caplog.messages[-1] == "consumed orders, other, they are empty: 0 handled, 0 failed"


@pytest.mark.spec("JOB-1")
@pytest.mark.parametrize("group", [None, "acme"])
def test_the_command_says_since_when_and_why_a_queue_is_paused(
    queue: Queue, run: Any, caplog: pytest.LogCaptureFixture, group: str | None
) -> None:
    caplog.set_level("INFO")
    queue.send("0", group_id="acme")
    queue.pause("the bank is down", group)
    assert run("orders", "application:handle", "--until-empty").exit_code == 1
    what, resume = ("orders", "") if group is None else ("group acme of orders", " --group acme")
    said = rf"{what} has been paused since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\dZ: the bank is down"
    _, paused, ended = caplog.messages
    assert re.fullmatch(f"{said}; lakequeue resume orders{resume} ends the pause", paused)
    assert re.fullmatch(f"consumed orders, {said}: 0 handled, 0 failed", ended)
    queue.purge()
    assert run("orders", "application:handle", "--until-empty").exit_code == 0
    assert caplog.messages[-1] == "consumed orders, it is empty: 0 handled, 0 failed"


def test_the_command_can_end_with_an_error_if_a_handler_failed(queue: Queue, run: Any) -> None:
    queue.send_batch([SendEntry("0"), SendEntry("bad")])
    arguments = ("orders", "application:handle", "--until-empty", "--retry-delay", "60", "--name", "mine")
    assert run(*arguments, "--fail-on-error").exit_code == 1
    queue.purge()
    assert run(*arguments, "--fail-on-error").exit_code == run(*arguments).exit_code == 0


def test_a_batch_of_a_delivery_that_only_fails_as_a_whole_counts_as_halved_and_is_an_error_on_request(
    queue: Queue, run: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level("INFO")
    queue.set_attributes(table=str(tmp_path / "table"))
    arguments = ("orders", "application:few", "--until-empty", "--batch", "10")
    for more, code in ((), 0), (("--fail-on-error",), 1):
        queue.send_batch([SendEntry("1"), SendEntry("2")])
        assert run(*arguments, *more).exit_code == code
        said = "2 handled, 0 failed, 2 of failed batches handled again in halves"
        assert caplog.messages[-1] == f"consumed orders, it is empty: {said}"


def test_until_empty_ends_with_an_error_while_failed_messages_wait_for_their_retry(
    queue: Queue, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    LakeQueue(place_of(queue)).create_queue("dead")
    for waiting, retry in enumerate(([], ["--retry-delay", "60"]), 1):
        queue.send_batch([SendEntry("0"), SendEntry("bad"), SendEntry("0", delay=60)])
        assert run("orders", "application:handle", "--until-empty", *retry).exit_code == 1
        assert caplog.messages[-1] == f"consumed orders, {waiting} wait for a retry: 1 handled, 1 failed"
    # what became a dead letter does not wait; neither does what is delayed, or another consumer has
    queue.purge()
    queue.set_attributes(redrive_policy=RedrivePolicy("dead", 1))
    queue.send_batch([SendEntry("0"), SendEntry("0", delay=60)])
    queue.receive(consumer="another")
    queue.send("bad")
    assert run("orders", "application:handle", "--until-empty").exit_code == 0
    assert caplog.messages[-1] == "consumed orders, it is empty: 0 handled, 1 failed"


@pytest.mark.spec("TAB-22")
def test_until_empty_ends_with_an_error_if_the_delivery_table_could_not_be_reached(
    queue: Queue, run: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(deliveries, "_TRIES_UNTIL_EMPTY", 1)
    queue.set_attributes(table=str(tmp_path / "table"))
    arguments = ("orders", "application:rows", "--until-empty", "--batch", "10")
    queue.send("1")
    assert run(*arguments).exit_code == 0
    begun = (
        f"consuming orders with application:rows, 10 at a time, in batches of up to 10, into {tmp_path / 'table'}"
    )
    assert caplog.messages[0] == begun
    away = (tmp_path / "table").rename(tmp_path / "away")
    queue.send("2")
    assert run(*arguments).exit_code == 1
    name = f"the delivery table of orders at {tmp_path / 'table'}"
    [fails] = [line for line in caplog.messages if line.startswith(f"{name} fails")]
    assert ": delivering: the delivery table" in fails and "`lakequeue decide orders --again`" in fails
    reason = f"not all was delivered: {fails.split(': delivering: ')[1]}"
    assert caplog.messages[-1] == f"consumed orders, {reason}: 0 handled, 0 failed"
    [left] = queue.peek()
    assert (left.state, left.receive_count) == ("visible", 0)
    monkeypatch.setattr(Delivering, "hand_back", lambda delivering: None)  # as if the process were killed
    assert run(*arguments).exit_code == 1
    assert caplog.messages[-1] == f"consumed orders, 1 wait for a retry; {reason}: 0 handled, 0 failed"
    [left] = queue.peek()
    # another process, which knows of the failure only that no consumer of that name runs
    assert run(*arguments, "--name", "later").exit_code == 1
    assert caplog.messages[-1] == "consumed orders, 1 wait for a retry: 0 handled, 0 failed"
    assert left.consumer is not None
    process = ConsumerProcess("host", 7, SystemClock().now(), SystemClock().now(), 0, None)
    report_consumer(queue, "7", ConsumerFile(left.consumer, [queue.key], process))
    assert run(*arguments, "--name", "later").exit_code == 0  # a consumer that runs has it
    assert make_visible(queue, [left.message_id], in_flight=True).done == 1  # as the command release does
    assert run(*arguments).exit_code == 1
    assert caplog.messages[-1] == "consumed orders, 1 undecided: 0 handled, 0 failed"
    away.rename(tmp_path / "table")


@pytest.mark.slow
def test_a_failed_message_is_logged_with_its_stack_and_comes_again(queue: Queue, start: Any) -> None:
    queue.send("bad")
    for as_json in (False, True):
        process = start("application:handle", "--until-empty", "--retry-delay", "3", json=as_json)
        errors = process.communicate(timeout=60)[1].splitlines()
        assert process.returncode == 1
        if as_json:
            [failed] = [line for line in map(json.loads, errors) if line["level"] == "error"]
            assert failed["stack"].startswith("Traceback") and "in handle" in failed["stack"]
            assert (failed["queue"], failed["receive_count"]) == ("orders", 2)
            assert failed["error"] == "ValueError: by a\nhandler" and failed["logger"] == "lakequeue"
            assert failed["message"].endswith("the handler failed")
        else:
            assert errors[0].endswith("info consuming orders with application:handle, 10 at a time")
            assert "the handler failed queue=orders message_id=" in errors[1]
            assert errors[1].endswith(": ValueError: by a handler") and " receive_count=1 " in errors[1]
            assert errors[2].startswith("Traceback") and any("in handle" in line for line in errors)
            assert errors[-1].endswith("info consumed orders, 1 wait for a retry: 0 handled, 1 failed")
            wait_until(lambda: queue.counts().visible == 1)


def logged(queue: Queue, run: Any, caplog: pytest.LogCaptureFixture, handler: str) -> logging.LogRecord:
    """Fails with a message of a delivery table until it is a dead letter. Returns the only record of an error."""
    dead = LakeQueue("root").create_queue("dead")
    queue.set_attributes(table="table", redrive_policy=RedrivePolicy(dead.name, 1))
    queue.send("bad")
    run("orders", handler, "--until-empty", "--batch", "9", "--name", "worker")
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    return record


def test_a_failed_batch_of_a_delivery_is_logged_with_its_stack_and_first_message(
    queue: Queue, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    record = logged(queue, run, caplog, "application:rows")
    fields = JsonLines(SystemClock()).fields(record)
    assert fields["stack"].startswith("Traceback") and "in rows" in fields["stack"]
    assert (fields["queue"], fields["messages"], fields["receive_count"]) == ("orders", 1, 1)
    assert fields["consumer"] == "worker" and len(fields["message_id"]) == 36
    text = command._TextLines(SystemClock()).format(record)
    assert " queue=orders messages=1 message_id=" in text and "\nTraceback" in text


@pytest.mark.parametrize(("handler", "kind"), [("text", "str"), ("texts", "list of str")])
def test_a_handler_that_returns_no_rows_for_a_delivery_is_named_with_the_message(
    queue: Queue, run: Any, caplog: pytest.LogCaptureFixture, handler: str, kind: str
) -> None:
    record = logged(queue, run, caplog, f"application:{handler}")
    text, returned = record.getMessage(), kind.partition(" ")[0]
    assert f"the handler returned a {returned} for message {record.message_id}: rows must be" in text
    assert text.endswith(f", not {kind}")
    assert record.receive_count == 1


@pytest.mark.parametrize(
    ("source", "handler", "error"),
    [
        ("", "broken", "broken: must be MODULE:FUNCTION, such as package.module:handle"),
        ("", "missing:handle", "missing:handle: No module named 'missing' in this directory or on PYTHONPATH"),
        (
            "import missing",
            "broken:handle",
            "broken:handle: ModuleNotFoundError: No module named 'missing' (broken.py",
        ),
        ("def x(:", "broken:handle", "broken:handle: invalid syntax (broken.py, line 1)"),
        ("\n1 / 0", "broken:handle", "broken:handle: ZeroDivisionError: division by zero (broken.py, line 2)"),
        ("raise SystemExit(3)", "broken:handle", "broken:handle: SystemExit: 3 (broken.py, line 1)"),
        ("", "broken:handle", "broken:handle: module 'broken' has no attribute 'handle'"),
        ("handle = 1", "broken:handle", "broken:handle: not a function"),
        ("", "application:one", "handler: one(message) cannot be called with two arguments"),
    ],
)
def test_a_handler_that_cannot_be_imported_is_an_error_of_usage_in_one_line(
    queue: Queue, run: Any, source: str, handler: str, error: str
) -> None:
    Path("broken.py").write_text(source)
    result = run("orders", handler)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: usage: {error}") and result.stderr.count("\n") == 1


def test_other_options_are_judged_too(queue: Queue, run: Any) -> None:
    handler = "application:handle"
    result = run("ordres", handler)
    assert result.exit_code == 1 and "region local; did you mean orders?" in result.stderr
    for options, error in {
        ("--renewal", "none", "--visibility-timeout", "5"): "--visibility-timeout: --renewal none always",
        ("--visibility-timeout", "50000"): "--visibility-timeout: must be 0 to 43200 seconds, not 50000.0",
        ("--retry-delay", "-1"): "--retry-delay: must be 0 to 43200 seconds",
        ("--drain-timeout", "-1"): "-1 is too short",
        ("--give-up-after", "-1"): "--give-up-after: must be more than 0 seconds",
        ("--concurrency", "0"): "'--concurrency': ",
        ("--batch-wait", "5"): "--batch-wait: goes with a batch",
        ("--claim-interval", "61"): "--claim-interval: must be 0 to 60 seconds, not 61",
        ("--wait", "21"): "--wait: ",
        ("--renewal", "often"): "'--renewal': ",
        ("--renewal", "computed", "--visibility-timeout", "50000"): "usage: --visibility-timeout: ",
        ("--weights", "0"): "usage: --weights: must be",
        ("--merge-schema",): "--merge-schema: goes with a batch of a queue that has a delivery table",
    }.items():
        result = run("orders", handler, *options)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert error in result.stderr
    for renewal in ("heartbeat", "computed", "none"):
        assert run("orders", handler, "--until-empty", "--renewal", renewal).exit_code == 0
    assert run("orders", handler, "--until-empty", "--visibility-timeout", "2", "--opentelemetry").exit_code == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_consumer(queue: Queue, start: Any, number: signal.Signals) -> None:
    queue.send("1.5")
    port = free_port()
    process = start("application:handle", "--metrics-port", str(port))
    wait_until(lambda: began(queue))
    assert scrape(port)["lakequeue_consumer_active_messages"] == 1
    process.send_signal(number)
    assert process.wait(60) == 0
    assert queue.counts().visible == queue.counts().in_flight == 0


@pytest.mark.slow
def test_what_does_not_end_in_time_is_handed_back(queue: Queue, start: Any) -> None:
    queue.send("1000")
    process = start("application:handle_async", "--drain-timeout", "0.5")
    wait_until(lambda: began(queue))
    process.terminate()
    errors = process.communicate(timeout=60)[1].splitlines()
    assert process.returncode == 0 and queue.counts().visible == 1
    counted = "0 handled, 0 failed, 1 did not end in time, 1 of them handed back"
    assert errors[-1].endswith(f"info consumed orders, stopped: {counted}")
    assert errors[-2].endswith("of 1 message did not end within 0.5 s; 1 of these were handed back")


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once(queue: Queue, start: Any) -> None:
    queue.send("1000")
    process = start("application:handle", "--drain-timeout", "1000")
    wait_until(lambda: began(queue))
    process.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM
    assert queue.counts().visible == 1


@pytest.mark.parametrize("option", [[], ["--fail-on-error"]])
def test_messages_that_become_dead_letters_without_being_handled_are_counted_and_warned_of(
    queue: Queue, run: Any, option: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lakequeue")
    LakeQueue("root").create_queue("dead")
    queue.set_attributes(redrive_policy=RedrivePolicy("dead", 1))
    queue.send_batch([SendEntry("0") for _ in range(2)])
    queue.change_visibility_batch([(message.receipt_handle, 0) for message in queue.receive(10)])
    assert run("orders", "application:handle", "--until-empty", *option).exit_code == len(option)
    counted = "0 handled, 0 failed, 2 went to dead without being handled"
    assert caplog.messages[-1] == f"consumed orders, it is empty: {counted}"
    warned = "messages of orders go to dead after 1 receive without being handled: "
    assert sum(message.startswith(warned) for message in caplog.messages) == 1
    queue.send("bad")
    assert run("orders", "application:handle", "--until-empty", "--retry-delay", "0").exit_code == 0
    assert caplog.messages[-1] == "consumed orders, it is empty: 0 handled, 1 failed"
