"""The command line where a test changes more than transcripts can: failing parts, pages, sizes, other programs."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import attrs
import pytest

import lakequeue
from acceptance.commands import Run
from lakequeue import LakeQueue, Queue, client, entry_verbs
from lakequeue.model.consumer_processes import ConsumerFile, ConsumerProcess

HANDLE = "0123456789abcdef01234567x0x0x" + "0" * 64


@pytest.mark.spec("QUE-11", "QUE-12")
@pytest.mark.parametrize(
    ("args", "names", "note"),
    [
        ("", ["a1", "a2", "a3", "b1", "b2"], ""),
        ("--prefix a", ["a1", "a2", "a3"], ""),
        ("--limit 2 --after a2", ["a3", "b1"], "more queues follow: --after b1\n"),
        ("--limit 2 --after a3", ["b1", "b2"], ""),
    ],
)
def test_list_shows_all_queues_or_says_that_more_follow(
    run: Run, lake: LakeQueue, monkeypatch: pytest.MonkeyPatch, args: str, names: list[str], note: str
) -> None:
    for name in ("a1", "a2", "a3", "b1", "b2"):
        lake.create_queue(name)
    assert client.MAX_LISTED == 1_000
    monkeypatch.setattr(client, "MAX_LISTED", 2)
    assert run("list", *args.split()).stderr == note
    assert [queue["name"] for queue in json.loads(run("list", "--json", *args.split()).stdout)] == names


def test_the_list_says_of_how_many_queues_the_dead_letters_are(run: Run, lake: LakeQueue) -> None:
    lake.create_queue("dead").send("a letter")
    lake.create_queue("mails", dead_letter_queue="dead", max_receive_count=1)
    assert "queues" not in run("list").stdout.partition("\n")[2], "only one queue has it"
    lake.create_queue("orders", dead_letter_queue="dead", max_receive_count=1)
    assert "1 of 2 queues" in run("list", "--prefix", "orders").stdout
    [queue] = json.loads(run("list", "--prefix", "orders", "--json").stdout)
    assert (queue["dead_letters"], queue["dead_letter_sources"]) == (1, 2)


@pytest.mark.spec("BAT-1", "BAT-5")
@pytest.mark.parametrize(("profile", "batches"), [("sqs", 3), ("lake", 1)])
def test_lines_of_a_file_go_in_as_few_batches_as_the_profile_allows(
    run: Run, root: str, tmp_path: Path, profile: str, batches: int
) -> None:
    run("create", "orders", "--profile", profile)
    file = tmp_path / "lines"
    file.write_text("".join(f"line {n}\n" for n in range(25)))
    commits = [*Path(root).rglob("_delta_log/*.json")]
    assert run("send", "orders", "--lines", file).stdout == "sent 25 messages\n"
    assert len([*Path(root).rglob("_delta_log/*.json")]) - len(commits) == batches
    assert LakeQueue(root).queue("orders").counts().visible == 25


@pytest.mark.spec("BAT-5", "SND-2")
def test_batches_of_lines_keep_within_the_bytes_of_a_call(run: Run, tmp_path: Path) -> None:
    run("create", "orders", "--profile", "cmq")
    file = tmp_path / "lines"
    file.write_text("\n".join(["x" * 30_000] * 4 + ["y" * 70_000, "z"]))
    result = run("send", "orders", "--lines", file)
    assert (result.exit_code, result.stdout) == (1, "sent 5 messages\n")
    assert "(line 5; 1 of 6 refused)" in result.stderr


@pytest.mark.spec("ERR-2")
def test_a_part_that_fails_after_others_leaves_the_outcome_of_the_command_unknown(
    run: Run, lake: LakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = lake.create_queue("batches", profile="sqs")  # ten messages in a batch
    for number in range(11):
        queue.send(str(number))
    handles = [message.receipt_handle for most in (10, 1) for message in queue.receive(most)]
    delete = Queue.delete_batch

    def second_fails(self: Queue, part: list[str]) -> Any:
        if len(part) == 1:
            raise lakequeue.QueueClientError("the disk is full; nothing was deleted")
        return delete(self, part)

    monkeypatch.setattr(Queue, "delete_batch", second_fails)
    error = json.loads(run("delete", "--json", "batches", *handles).stderr)["error"]
    assert "(10 messages deleted before that)" in error["message"] and error["outcome_unknown"]
    error = json.loads(run("delete", "--json", "batches", *[HANDLE] * 10, handles[10]).stderr)["error"]
    assert error["message"].endswith("nothing was deleted") and not error["outcome_unknown"]


@pytest.mark.spec("DLQ-4")
def test_a_dead_letter_shows_its_error_and_a_message_in_flight_its_consumer(
    run: Run, lake: LakeQueue, orders: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(message: object, context: object) -> None:
        raise ValueError("no such customer")

    def seen(*command: str) -> tuple[dict[str, Any], str]:
        [document] = json.loads(run(*command, "--json").stdout)
        return document, run(*command).stdout

    monkeypatch.setenv("COLUMNS", "300")  # a table of one line for each message
    dead = lake.create_queue("dead")
    orders.set_attributes(redrive_policy=lakequeue.RedrivePolicy("dead", 1))
    orders.send("a")
    consumer = lakequeue.Consumer(
        orders, fail, wait_time=0, make_failed_messages_visible_immediately=True, name="worker"
    )
    consumer.run(until_empty=True)
    assert orders.receive() == []
    at = dead.peek()[0].dead_letter_reason.at  # type: ignore[union-attr]
    for command in ("peek dead", "receive dead --visibility-timeout 0"):
        document, shown = seen(*command.split())
        reason = document["dead_letter_reason"]
        assert datetime.fromisoformat(reason.pop("at").replace("Z", "+00:00")) == at
        assert reason == {"error": "ValueError", "text": "no such customer", "consumer": "worker"}
        assert " reason" in shown and "ValueError: no such customer (worker, " in shown
    orders.send("b")
    orders.receive(consumer="picker")
    document, shown = seen("peek", "orders")
    assert (document["consumer"], document["dead_letter_reason"]) == ("picker", None)
    assert " consumer" in shown and "picker" in shown and "reason" not in shown


@pytest.mark.spec("DLQ-4")
def test_dead_letters_of_one_error_are_shown_and_sent_back(run: Run, lake: LakeQueue, orders: Queue) -> None:
    errors: dict[str, Exception] = {"a": ValueError(), "b": TimeoutError(), "c": ValueError()}

    def fail(message: lakequeue.Message, context: object) -> None:
        raise errors[message.body]

    dead = lake.create_queue("dead")
    orders.set_attributes(redrive_policy=lakequeue.RedrivePolicy("dead", 1))
    for body in errors:
        orders.send(body)
    options: dict[str, Any] = {"wait_time": 0, "make_failed_messages_visible_immediately": True}
    lakequeue.Consumer(orders, fail, **options).run(until_empty=True)
    assert orders.receive() == []
    shown = json.loads(run("peek", "dead", "--error", "TimeoutError", "--json").stdout)
    assert [each["body"] for each in shown] == ["b"]
    condition = ("--where", "body != ?", "--parameter", "c")
    for way in "--dry-run", "--yes":
        typo = run("redrive", "dead", "--error", "ValueErr", way).stdout
        assert typo.endswith(": none has the error ValueErr; there are ValueError (2), TimeoutError (1)\n")
    no_such = run("redrive", "dead", "--error", "ValueError", "--where", "body = 'x'", "--dry-run").stdout
    assert no_such == "dead: would move no message\n"
    told = run("redrive", "dead", "--error", "ValueError", *condition, "--dry-run").stdout
    assert "would move 1 message to orders" in told
    assert "2 messages of dead moved back" in run("redrive", "dead", "--error", "ValueError", "--yes").stdout
    assert [letter.body for letter in dead.peek()] == ["b"]
    assert "0 messages" in run("redrive", "dead", "--error", "x' OR true --", "--yes").stdout


def test_a_resume_says_what_can_be_received_and_if_nobody_does(run: Run, orders: Queue) -> None:
    assert run("resume", "orders").stdout == "queue orders was not paused\n"
    orders.pause()
    orders.pause("late", "acme")
    assert run("resume", "orders", "--group", "acme").stdout == "group acme of orders is resumed\n"
    assert run("resume", "orders", "--group", "acme").stdout == "group acme of orders was not paused\n"
    assert run("resume", "orders").stdout == "queue orders is resumed\n"
    orders.send("a")
    orders.send("b")
    orders.pause()
    idle = "2 messages can be received, and no consumer of it is known to run: start one"
    assert run("resume", "orders").stdout == f"queue orders is resumed: {idle}\n"
    orders.receive()
    orders.pause()
    assert run("resume", "orders").stdout == "queue orders is resumed: 1 message can be received\n"


def test_the_oldest_handler_is_as_old_as_its_receive(
    run: Run, orders: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    now = datetime.now(timezone.utc)
    process = ConsumerProcess("elsewhere", 1, now, now - timedelta(minutes=1), 2, now - timedelta(minutes=4))
    entry_verbs.report_consumer(orders, "1", ConsumerFile("packer", [orders.key], process))
    assert re.search(r" 2, the oldest for 3m when seen +1m", run("consumers", "orders").stdout)
    process = attrs.evolve(process, outage_since=now)
    entry_verbs.report_consumer(orders, "1", ConsumerFile("packer", [orders.key], process))
    assert f" storage fails: outage since {now:%F %T}Z " in run("consumers", "orders").stdout


def test_the_sql_of_the_views_is_printed_without_a_jvm(run: Run, orders: Queue) -> None:
    printed = run("views").stdout
    assert printed.count("CREATE OR REPLACE TEMPORARY VIEW") == printed.count(";\n") == 6
    assert f"/q/{orders.key}/0/receipts`" in printed and "VERSION AS OF" not in printed
    then = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%S.%fZ}"
    *past, stats = json.loads(run("views", "--json", "--as-of", then).stdout)
    assert all("VERSION AS OF" in statement for statement in past)
    assert "VIEW stats" in stats  # whose rows tell their own time


@pytest.mark.parametrize(
    ("error", "told", "code"),
    [
        (
            RuntimeError("boom\nmore"),
            "error: internal: RuntimeError: boom more; run with -v for the stack trace",
            3,
        ),
        (ZeroDivisionError(), "error: internal: ZeroDivisionError: ; run with -v for the stack trace", 3),
        (OSError(28, "disk full"), "error: environment: [Errno 28] disk full", 3),
        (lakequeue.QueueDoesNotExist("gone"), "error: QueueDoesNotExist: gone", 1),
        (KeyboardInterrupt(), "interrupted", 130),
    ],
)
def test_an_error_is_one_line_and_a_stack_trace_only_if_asked(
    run: Run, orders: Queue, monkeypatch: pytest.MonkeyPatch, error: BaseException, told: str, code: int
) -> None:
    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr(LakeQueue, "list_queues", fail)
    result = run("list")
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", f"{told}\n")
    verbose = run("list", "--verbose")
    assert verbose.exit_code == code and verbose.stderr.endswith(result.stderr)
    assert ("in fail" in verbose.stderr) == (code != 130)
    in_json = json.loads(run("list", "--json").stderr)["error"]
    assert in_json["exit_code"] == code and in_json["message"] in told


@pytest.mark.parametrize("status", [0, 3])
def test_demo_passes_its_arguments_and_its_exit_code_on(
    run: Run, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    calls = []

    def run_demo(root: str, input_dir: str, console: Any, with_spark: bool) -> int:
        calls.append((root, input_dir, with_spark))
        console.print("working")
        return status

    monkeypatch.setattr("lakequeue.cli.demo.run_demo", run_demo)
    shown = run("demo", "--input", tmp_path)
    assert (shown.exit_code, shown.stdout) == (status, "working\n")
    in_json = run("demo", "--no-spark", "--json", LAKEQUEUE_ROOT=None)
    assert in_json.exit_code == status and in_json.stderr == "working\n"
    assert json.loads(in_json.stdout) == {"root": None, "complete": status == 0}
    assert calls == [(root, str(tmp_path), True), (None, None, False)]
