"""The command line: what it does, prints and answers as an exit code. Nothing here starts a JVM."""

import base64
import json
import os
import pty
import signal
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from typer.testing import CliRunner

import lakequeue
from hostile import SLOW, SLOW_BODY
from lakequeue import LakeQueue, client
from lakequeue.cli import app

PROGRAM = "from lakequeue.cli import main; main()"
HANDLE = "0123456789abcdef-01234567-0-0-" + "0" * 32 + "-" + "0" * 32


@pytest.fixture
def run(root):
    """Runs a command in this process; text goes in as standard input."""

    def command(*args, root=root, input=None, json=False):
        options = [*(["--root", root] if root else []), *(["--json"] if json else [])]
        return CliRunner(env={"LAKEQUEUE_ROOT": None}).invoke(app, [*options, *map(str, args)], input=input)

    return command


@pytest.fixture
def ask(run):
    """Runs a command that has to succeed; returns its JSON document."""

    def command(*args, input=None):
        result = run(*args, input=input, json=True)
        assert (result.exit_code, result.stderr) == (0, "")
        return json.loads(result.stdout)

    return command


@pytest.fixture
def queue(root):
    return LakeQueue(root).create_queue("orders")


@pytest.fixture
def start(root, request):
    """Starts the program as a process of its own; it is killed at the end of the test."""

    def process(*args, program=PROGRAM, env=None, **streams):
        package = str(Path(lakequeue.__file__).parents[1])
        inherited = {k: v for k, v in os.environ.items() if k != "LAKEQUEUE_ROOT"}
        started = subprocess.Popen(
            [sys.executable, "-c", program, "--root", root, *args],
            env=inherited | {"PYTHONPATH": package} | (env or {}),
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | streams,
        )
        request.addfinalizer(started.wait)
        request.addfinalizer(started.kill)
        return started

    return process


def commits(root):
    """Number of commits of each table below a root."""
    logs = Path(root).rglob("_delta_log")
    return {str(log.parent): len(list(log.glob("*.json"))) for log in logs}


def one_line(text):
    return text.count("\n") == 1 and text.endswith("\n") and "Traceback" not in text


# --- queues


@pytest.mark.spec("EXM-10", "SND-11")
def test_create_send_receive_delete(run):
    assert run("create", "orders").exit_code == 0
    sent = run("send", "orders", "hello")
    assert sent.exit_code == 0 and sent.stdout.startswith("sent ")
    id = sent.stdout.split()[1]
    received = run("receive", "orders").stdout
    assert id in received and "hello" in received
    handle = next(line.split()[1] for line in received.splitlines() if "handle" in line)
    assert run("delete", "orders", handle).stdout == "deleted 1 message\n"
    assert run("counts", "orders").stdout.split("\n")[-2].split() == ["orders", "0", "0", "0", "0"]
    assert run("delete-queue", "orders", "--yes").exit_code == 0
    assert "orders" not in run("list").stdout


@pytest.mark.spec("DLQ-2", "DLQ-8")
def test_dead_letters_move_away_and_back(run, ask):
    run("create", "failed")
    run("create", "orders", "--dead-letter-queue", "failed", "--max-receive-count", 1)
    policy = ask("show", "orders")["attributes"]["redrive_policy"]
    assert policy == {"dead_letter_queue": "arn:lakequeue:sqs:local:000000000000:failed", "max_receive_count": 1}
    ask("send", "orders", "-", input="one\ntwo\nthree\n")
    run("receive", "orders", "--max", 3, "--visibility-timeout", 0)
    assert ask("receive", "orders", "--max", 3) == []
    assert ask("counts", "failed")["visible"] == 3
    assert run("redrive", "failed", "--where", "body = 'two'", "-y").stdout == "1 message of failed moved back\n"
    assert "destination" in run("redrive", "failed", "--to", "failed", "--yes").stderr
    run("create", "aside")
    aside = run("redrive", "failed", "--max", 1, "--to", "aside", "--yes")
    assert aside.stdout == "1 message of failed moved to aside\n"
    assert ask("redrive", "aside", "--to", "orders", "--yes") == {"queue": "aside", "messages": 1}
    assert ask("redrive", "failed", "--max", 1, "--yes") == {"queue": "failed", "messages": 1}
    assert (ask("counts", "orders")["visible"], ask("counts", "failed")["visible"]) == (3, 0)
    assert run("set", "orders", "--max-receive-count", 5).exit_code == 2
    wrong = run("set", "orders", "--dead-letter-queue", "nowhere", "--max-receive-count", 5)
    assert wrong.exit_code == 1 and "QueueDoesNotExist" in wrong.stderr
    run("set", "orders", "-a", "redrive_policy=")
    assert ask("show", "orders")["attributes"]["redrive_policy"] is None


@pytest.mark.spec("RWD-9", "RWD-4")
def test_rewind_to_an_instant_or_so_many_seconds_back(run, ask):
    run("create", "orders", "-a", "rewind_range=3600")
    ask("send", "orders", "-", input="one\ntwo\n")
    assert len(run("receive", "orders", "--max", 5, "--delete").stdout.splitlines()) > 1
    assert ask("counts", "orders")["rewindable"] == 2
    assert run("rewind", "orders", "--ago", 1_800, "--yes").stdout == "2 messages of orders visible again\n"
    counts = ask("counts", "orders")
    assert (counts["visible"], counts["rewindable"]) == (2, 0)
    now = datetime.now(timezone.utc)
    assert ask("rewind", "orders", f"{now:%Y-%m-%dT%H:%M:%S.%fZ}", "--yes")["messages"] == 0
    assert ask("rewind", "orders", f"{now - timedelta(minutes=59):%Y-%m-%d %H:%M}", "--yes")["messages"] == 0
    for wrong in ([], ["yesterday"], ["2026-01-31", "--ago", 5]):
        assert run("rewind", "orders", *wrong, "--yes").exit_code == 2
    early = run("rewind", "orders", "--ago", 3_601, "--yes")
    assert early.exit_code == 1 and early.stderr.startswith("error: InvalidParameterValue: ")


@pytest.mark.spec("EXM-10", "SND-11")
@pytest.mark.parametrize("seconds", [1, 3_600])
def test_a_test_message_may_be_delayed_by_a_second_to_an_hour(run, ask, seconds):
    run("create", "orders", "--profile", "cmq")
    ask("send", "orders", "later", "--delay", seconds)
    counts = ask("counts", "orders")
    assert (counts["visible"], counts["delayed"]) == (0, 1)


def test_attributes_may_be_given_as_options_in_snake_case_and_by_wire_name(ask):
    ask("create", "orders", "--visibility-timeout", 7, "-a", "delay=3", "-a", "MaximumMessageSize=2048")
    ask("set", "orders", "--retention", 90, "-a", "DelaySeconds=4.5")
    attributes = ask("show", "orders")["attributes"]
    names = ("visibility_timeout", "maximum_message_size", "message_retention_period", "delay")
    assert [attributes[name] for name in names] == [7, 2_048, 90, 4.5]


@pytest.mark.spec("QUE-34")
def test_shards_are_raised_later(ask):
    ask("create", "orders")
    ask("set", "orders", "--shards", 8)
    assert [shard["shard"] for shard in ask("show", "orders")["shards"]] == [*range(8)]


@pytest.mark.spec("FAI-3", "FAI-4")
def test_show_names_the_largest_groups_of_a_standard_queue(run, ask):
    ask("create", "orders", "-a", "group_in_flight_limit=5")
    assert ask("show", "orders")["groups"] == [], "nobody has sent a group"
    for group in ("a", "b", "a"):
        ask("send", "orders", "x", "--group", group)
    ask("send", "orders", "x")
    shown = ask("show", "orders")
    assert shown["attributes"]["group_in_flight_limit"] == 5 and shown["attributes"]["fair_groups"] is True
    assert [(group["group_id"], group["visible"]) for group in shown["groups"]] == [("a", 2), ("b", 1), (None, 1)]
    assert " oldest " in run("show", "orders").stdout
    ask("set", "orders", "-a", "FairGroups=false", "-a", "group_in_flight_limit=unlimited")
    assert ask("show", "orders")["groups"] == [], "not counted where groups are no tenants"


@pytest.mark.spec("FAI-4")
@pytest.mark.parametrize("given", ["0", "120001", "x", "1.5", ""])
def test_a_limit_for_groups_out_of_range_is_refused(run, ask, given):
    ask("create", "orders")
    for command in (["create", "new"], ["set", "orders"]):
        told = run(*command, "-a", f"group_in_flight_limit={given}").output
        assert "group_in_flight_limit" in told and told.count("\n") == 1
    told = run("create", "orders.fifo", "--fifo", "-a", "group_in_flight_limit=5").output
    assert "group_in_flight_limit" in told and told.count("\n") == 1
    assert ask("show", "orders")["attributes"]["group_in_flight_limit"] is None
    assert [queue["name"] for queue in ask("list")] == ["orders"]


@pytest.mark.spec("QUE-28")
def test_tags_are_given_at_creation_added_and_removed(ask):
    ask("create", "orders", "--tag", "team=a=b")
    shown = ask("show", "orders")
    assert shown["tags"] == {"team": "a=b"} and [shard["shard"] for shard in shown["shards"]] == [0]
    assert ask("tag", "orders", "Team=x", "team=y") == {"queue": "orders", "tags": {"team": "y", "Team": "x"}}
    assert ask("untag", "orders", "team", "none")["tags"] == {"Team": "x"}


@pytest.mark.spec("QUE-11", "QUE-12")
def test_list_goes_through_all_pages(root, ask, monkeypatch):
    for name in ("a1", "a2", "a3", "b1", "b2"):
        LakeQueue(root).create_queue(name)
    monkeypatch.setattr(client, "MAX_LISTED", 2)

    def names(*args):
        return [queue["name"] for queue in ask("list", *args)]

    assert names() == ["a1", "a2", "a3", "b1", "b2"]
    assert names("--prefix", "a") == ["a1", "a2", "a3"]
    assert names("--limit", 2, "--after", "a2") == ["a3", "b1"]


@pytest.mark.spec("NAM-7")
def test_regions_are_apart(run, queue, root):
    LakeQueue(root, region="north").create_queue("rocks")
    assert "rocks" in run("--region", "north", "list").stdout
    assert "rocks" not in run("list").stdout


def test_counts_of_all_queues(queue, root, ask):
    LakeQueue(root).create_queue("bills").send("x")
    queue.send("x")
    queue.receive()
    queue.send("y", delay=60)
    states = [(c["queue"], c["visible"], c["in_flight"], c["delayed"]) for c in ask("counts")]
    assert states == [("bills", 1, 0, 0), ("orders", 0, 1, 1)]


@pytest.mark.spec("INF-9")
def test_held_messages_are_counted_where_there_are_any(run, ask):
    run("create", "orders", "-a", "max_delayed_messages=1")
    ask("send", "orders", "late", "--delay", 600)
    assert ask("counts", "orders")["held"] == 0 and "held" not in run("counts").stdout
    ask("send", "orders", "next")
    assert ask("counts", "orders")["held"] == 1
    table = run("counts").stdout
    assert "held" in table and table.split("\n")[-2].split()[:6] == ["orders", "0", "0", "1", "1", "0"]
    assert [message["state"] for message in ask("peek", "orders")] == ["delayed", "held"]


@pytest.mark.spec("PUR-1")
@pytest.mark.parametrize("answer", ["n\n", ""])
def test_purge_asks_and_does_nothing_without_a_yes(run, queue, answer):
    queue.send("keep")
    result = run("purge", "orders", input=answer)
    assert result.exit_code == 2 and "purged" not in result.stdout
    assert "Remove 1 message from orders?" in result.stderr and "not confirmed" in result.stderr
    assert queue.counts().visible == 1


@pytest.mark.spec("PUR-1", "PUR-2")
def test_purge_with_a_yes(run, queue):
    queue.send("away")
    assert run("purge", "orders", input="y\n").exit_code == 0
    assert queue.counts().visible == 0
    again = run("purge", "orders", "--yes")
    assert again.exit_code == 1 and again.stderr.startswith("error: PurgeQueueInProgress: ")


@pytest.mark.spec("JOB-1")
def test_a_queue_is_paused_and_resumed_and_doctor_says_so(run, ask, queue):
    queue.send("A")
    assert ask("pause", "orders", "--reason", "the bank is down") == {
        "queue": "orders",
        "paused": "the bank is down",
    }
    assert ask("receive", "orders") == []
    assert ask("show", "orders")["attributes"]["paused"] == "the bank is down"
    told = run("doctor")
    assert told.exit_code == 0 and "orders is paused: the bank is down; lakequeue resume orders" in " ".join(
        (told.stdout + told.stderr).split()
    )
    assert run("resume", "orders").stdout == "queue orders is resumed\n"
    assert ask("pause", "orders", "--group", "a&b")["group_id"] == "a&b"
    assert "lakequeue resume orders --group 'a&b'" in " ".join(run("doctor").output.split())
    assert ask("doctor")["paused_groups"] == {"orders": {"a&b": "paused"}}
    assert run("resume", "orders", "--group", "a&b").stdout == "group a&b of orders is resumed\n"
    assert [message["body"] for message in ask("receive", "orders")] == ["A"]


@pytest.mark.spec("JOB-1", "JOB-11")
def test_the_list_shows_what_slows_a_queue_where_something_does(run, ask, queue):
    columns = "queue visible in flight oldest"
    assert " ".join(run("list").stdout.split("\n")[1].split()) == columns
    run("create", "bills", "-a", "rate_limit=100/s")
    queue.pause("it is down", group_id="acme")
    head, _, *rows = (" ".join(line.split()) for line in run("list").stdout.strip("\n").split("\n"))
    assert head == f"{columns} rate limit paused groups"
    assert rows == ["bills 0 0 100/s", "orders 0 0 acme=it is down"]
    queue.pause("holidays")
    assert "paused" in run("list").stdout and "holidays" in run("list").stdout
    shown = [(each["rate_limit"], each["paused"], each["paused_groups"]) for each in ask("list")]
    assert shown == [("100/s", None, None), (None, "holidays", {"acme": "it is down"})]


@pytest.mark.spec("JOB-12")
def test_a_message_is_rescheduled(run, ask, queue):
    sent = queue.send("A").message_id
    answer = ask("reschedule", "orders", sent, "--in", "2h")
    assert answer["message_id"] == sent and queue.counts().delayed == 1
    at = answer["visible_at"]
    assert ask("reschedule", "orders", sent, "--at", at)["visible_at"] == at
    queue.cancel(sent)
    refused = run("reschedule", "orders", sent, "--in", "0s")
    assert refused.exit_code == 1 and "does not wait" in refused.stderr
    assert run("reschedule", "orders", sent).exit_code == 2


# --- messages


@pytest.mark.spec("MSA-3")
def test_message_attributes_have_types(ask, queue):
    given = [
        "text=a=b",
        "n:Number=42",
        "n2:Number.int=1",
        f"raw:Binary={base64.b64encode(bytes([0, 255])).decode()}",
    ]
    ask("send", "orders", "x", *(part for text in given for part in ("--attribute", text)))
    assert ask("receive", "orders")[0]["message_attributes"] == {
        "text": {"type": "String", "value": "a=b"},
        "n": {"type": "Number", "value": "42"},
        "n2": {"type": "Number.int", "value": "1"},
        "raw": {"type": "Binary", "value": "AP8="},
    }


def test_lines_of_standard_input_are_messages(ask, queue):
    result = ask("send", "orders", "-", "--group", "g", "--attribute", "k=v", input="one\r\n\ntwo\n  three")
    assert [sent["id"] for sent in result["successful"]] == ["1", "3", "4"]
    messages = ask("receive", "orders", "--max", 10)
    assert [(m["body"], m["group_id"]) for m in messages] == [("one", "g"), ("two", "g"), ("  three", "g")]
    assert all(m["message_attributes"]["k"]["value"] == "v" for m in messages)
    assert [m["message_id"] for m in messages] == [sent["message_id"] for sent in result["successful"]]


@pytest.mark.spec("BAT-4")
def test_refused_lines_do_not_stop_the_others(run, queue):
    result = run("send", "orders", "-", input="one\nb\x01d\ntwo\n")
    assert (result.exit_code, result.stdout) == (1, "sent 2 messages\n")
    assert result.stderr.startswith("error: InvalidMessageContents: ") and one_line(result.stderr)
    assert "(line 2; 1 of 3 refused)" in result.stderr
    assert [m.body for m in queue.receive(10)] == ["one", "two"]


@pytest.mark.spec("BAT-1", "BAT-5")
@pytest.mark.parametrize(("profile", "batches"), [("sqs", 3), ("lake", 1)])
def test_lines_of_a_file_go_in_as_few_batches_as_the_profile_allows(run, root, tmp_path, profile, batches):
    run("create", "orders", "--profile", profile)
    file = tmp_path / "lines"
    file.write_text("".join(f"line {n}\n" for n in range(25)))
    before = commits(root)
    assert run("send", "orders", "--lines", file).stdout == "sent 25 messages\n"
    assert sum(commits(root).values()) - sum(before.values()) == batches
    assert LakeQueue(root).queue("orders").counts().visible == 25


@pytest.mark.spec("BAT-5", "SND-2")
def test_batches_of_lines_keep_within_the_bytes_of_a_call(run, root, tmp_path):
    run("create", "orders", "--profile", "cmq")
    file = tmp_path / "lines"
    file.write_text("\n".join(["x" * 30_000] * 4 + ["y" * 70_000, "z"]))
    result = run("send", "orders", "--lines", file)
    assert (result.exit_code, result.stdout) == (1, "sent 5 messages\n")
    assert "(line 5; 1 of 6 refused)" in result.stderr


def test_a_line_that_is_no_text_ends_the_command_and_says_what_was_sent(run, queue, monkeypatch):
    monkeypatch.setattr("lakequeue.cli.lines.READ", 8)
    result = run("send", "orders", "-", input=b"one\ntwo\nb\xffd\n")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: usage: line 3 is not UTF-8; see lakequeue send --help (2 messages sent before that)\n"
    )
    assert queue.counts().visible == 2


def test_receive_deletes_only_when_told(run, queue):
    queue.send_batch([lakequeue.SendEntry(body) for body in "abc"])
    assert "body      a" in run("receive", "orders").stdout
    assert queue.counts().in_flight == 1
    taken = run("receive", "orders", "--max", 5, "--delete").stdout
    assert "body      b" in taken and "body      c" in taken
    assert (queue.counts().visible, queue.counts().in_flight) == (0, 1)


def test_receive_without_messages(run, ask, queue):
    result = run("receive", "orders", "--delete", "--wait", 0.1)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no messages\n")
    assert ask("receive", "orders") == []


@pytest.mark.spec("VIS-4", "RCV-5")
def test_visibility_is_set_at_receipt_and_changed_later(run, ask, queue):
    queue.send("x")
    handle = ask("receive", "orders", "--visibility-timeout", 600)[0]["receipt_handle"]
    assert ask("receive", "orders") == []
    assert run("change-visibility", "orders", handle, 0).stdout == "the message is visible\n"
    assert ask("receive", "orders")[0]["receive_count"] == 2


@pytest.mark.spec("DEL-10", "BAT-4")
def test_several_handles_are_deleted_one_by_one(run, queue):
    queue.send_batch([lakequeue.SendEntry(body) for body in "ab"])
    first, second = (m.receipt_handle for m in queue.receive(2))
    result = run("delete", "orders", first, HANDLE, second)
    assert (result.exit_code, result.stdout) == (1, "deleted 2 messages\n")
    assert result.stderr.startswith("error: ReceiptHandleIsInvalid: ")
    assert "(handle 2; 1 of 3 refused)" in result.stderr
    assert queue.counts().in_flight == 0


@pytest.mark.spec("ERR-2")
def test_a_part_that_fails_after_others_leaves_the_outcome_of_the_command_unknown(run, queue, monkeypatch):
    monkeypatch.setattr("lakequeue.cli.messages.max_batch", lambda queue: 2)
    queue.send_batch([lakequeue.SendEntry(body) for body in "abc"])
    handles = [message.receipt_handle for message in queue.receive(3)]
    delete = lakequeue.Queue.delete_batch

    def second_fails(self, part):
        if len(part) == 1:
            raise lakequeue.QueueClientError("the disk is full; nothing was deleted")
        return delete(self, part)

    monkeypatch.setattr(lakequeue.Queue, "delete_batch", second_fails)
    error = json.loads(run("delete", "orders", *handles, json=True).stderr)["error"]
    assert "(2 messages deleted before that)" in error["message"] and error["outcome_unknown"]
    error = json.loads(run("delete", "orders", HANDLE, HANDLE, *handles[2:], json=True).stderr)["error"]
    assert error["message"].endswith("nothing was deleted") and not error["outcome_unknown"]


def test_peek_changes_nothing(run, ask, queue, root):
    queue.send_batch([lakequeue.SendEntry(body) for body in "abc"])
    queue.receive()
    before = commits(root)
    seen = ask("peek", "orders", "--limit", 2)
    assert [(m["body"], m["state"]) for m in seen] == [("a", "in_flight"), ("b", "visible")]
    assert "in_flight" in run("peek", "orders").stdout
    assert [m["body"] for m in ask("peek", "orders", "--where", "state = 'visible' AND body <> 'b'")] == ["c"]
    assert commits(root) == before


def test_conditions_take_parameters_which_are_no_part_of_the_sql(run, ask, queue, root):
    dead = LakeQueue(root).create_queue("dead")
    dead.send_batch([lakequeue.SendEntry(body) for body in ("it's one", "two", "' OR true OR '")])
    one = ("--where", "body = ? AND receive_count < ?", "--parameter", "it's one", "--parameter", "3")
    assert [m["body"] for m in ask("peek", "dead", *one)] == ["it's one"]
    assert json.loads(run("export", "dead", "--state", "visible", *one).stdout)["body"] == "it's one"
    injected = ("--where", "body = ?", "--parameter", "' OR true OR '")
    assert [m["body"] for m in ask("peek", "dead", *injected)] == ["' OR true OR '"]
    assert run("redrive", "dead", "--to", "orders", "-y", *one).stdout == "1 message of dead moved to orders\n"
    assert [m.body for m in queue.peek()] == ["it's one"]
    for verb in (["peek"], ["export"], ["redrive", "--to", "orders", "-y"]):
        wrong = run(*verb, "dead", "--parameter", "x")
        assert wrong.exit_code == 1 and "one for each ? in where" in wrong.stderr


@pytest.mark.spec("DLQ-4")
def test_a_dead_letter_tells_why_it_failed_and_a_message_in_flight_who_has_it(run, ask, queue, root, monkeypatch):
    def fail(message, context):
        raise ValueError("no such customer")

    monkeypatch.setenv("COLUMNS", "300")  # a table of one line for each message
    dead = LakeQueue(root).create_queue("dead")
    queue.set_attributes(redrive_policy=lakequeue.RedrivePolicy("dead", 1))
    queue.send("a")
    options = {"wait_time": 0, "make_failed_messages_visible_immediately": True, "name": "worker"}
    lakequeue.Consumer(queue, fail, **options).run(until_empty=True)
    assert queue.receive() == []
    [letter] = dead.peek()
    for command in (["peek", "dead"], ["receive", "dead", "--visibility-timeout", 0]):
        reason = ask(*command)[0]["dead_letter_reason"]
        told = datetime.fromisoformat(reason.pop("at").replace("Z", "+00:00"))
        assert reason == {"error": "ValueError", "text": "no such customer", "consumer": "worker"}
        assert told == letter.dead_letter_reason.at
        shown = run(*command).stdout
        assert " reason" in shown and "ValueError: no such customer (worker, " in shown
    queue.send("b")
    queue.receive(consumer="picker")
    [seen] = ask("peek", "orders")
    assert (seen["consumer"], seen["dead_letter_reason"]) == ("picker", None)
    shown = run("peek", "orders").stdout
    assert " consumer" in shown and "picker" in shown and "reason" not in shown


def test_the_sql_of_the_views_is_printed_without_a_jvm(run, ask, queue):
    printed = run("views").stdout
    assert printed.count("CREATE OR REPLACE TEMPORARY VIEW") == printed.count(";\n") == 6
    assert f"/q/{queue.key}/0/receipts`" in printed and "VERSION AS OF" not in printed
    then = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%S.%fZ}"
    *past, stats = ask("views", "--as-of", then)
    assert all("VERSION AS OF" in statement for statement in past)
    assert "VIEW stats" in stats  # whose rows tell their own time
    assert run("views", "--as-of", "yesterday").exit_code == 2


def test_control_characters_of_a_body_do_not_reach_a_terminal(run, queue):
    queue.send("a\x9b31mb\x85\nc")
    for command in (["peek", "orders"], ["receive", "orders"]):
        shown = run(*command).stdout
        assert "\x9b" not in shown and "\x85" not in shown and "a�31mb�" in shown


@pytest.mark.parametrize(
    ("args", "kind"),
    [
        (["create", "orders"], dict),
        (["list"], list),
        (["show", "orders"], dict),
        (["set", "orders", "--delay", "1"], dict),
        (["counts", "orders"], dict),
        (["counts"], list),
        (["purge", "orders", "--yes"], dict),
        (["send", "orders", "x"], dict),
        (["receive", "orders"], list),
        (["peek", "orders"], list),
        (["delete-queue", "orders", "--yes"], dict),
    ],
)
def test_json_is_one_document(ask, queue, args, kind):
    queue.send("x")
    assert isinstance(ask(*args), kind)


# --- FIFO


@pytest.fixture
def fifo(root):
    return LakeQueue(root).create_queue("orders.fifo", fifo=True)


@pytest.mark.spec("EXM-10", "NAM-1", "QUE-1", "QUE-9", "DDP-14")
def test_a_fifo_queue_and_its_deduplication_are_chosen_at_creation(run, ask):
    ask("create", "plain.fifo", "--fifo")
    made = ask(
        "create",
        "orders.fifo",
        "--fifo",
        "--content-based-deduplication",
        "--deduplication-scope",
        "message_group",
    )
    assert (made["name"], made["fifo"]) == ("orders.fifo", True)

    def shown(queue):
        attributes = ask("show", queue)["attributes"]
        assert attributes["fifo"] and "created_deduplication_scope" not in attributes
        return attributes["content_based_deduplication"], attributes["deduplication_scope"]

    assert (shown("plain.fifo"), shown("orders.fifo")) == ((False, "queue"), (True, "message_group"))
    ask("set", "orders.fifo", "-a", "ContentBasedDeduplication=false", "-a", "deduplication_scope=queue")
    assert shown("orders.fifo") == (False, "queue")
    assert "orders.fifo" in run("list").stdout


@pytest.mark.spec("SEQ-2", "SEQ-4", "SEQ-5")
def test_people_see_group_and_sequence_number_on_fifo_queues_only(run, fifo, queue):
    sent = run("send", "orders.fifo", "x", "--group", "g", "--dedup-id", "d").stdout
    first, group, sequence = sent.splitlines()
    assert first.startswith("sent ") and group.split() == ["group", "g"]
    received = run("receive", "orders.fifo").stdout.splitlines()
    assert group in received and sequence in received and len(sequence.split()[1]) == 20
    assert run("send", "orders", "x", "--group", "g").stdout.count("\n") == 1
    standard = run("receive", "orders").stdout.splitlines()
    assert group in standard and not any("sequence" in line for line in standard)


@pytest.mark.spec("DDP-4", "BAT-6", "BAT-8")
def test_lines_keep_their_order_and_equal_ones_are_sent_once(run, ask):
    ask("create", "orders.fifo", "--fifo", "--content-based-deduplication")
    result = ask("send", "orders.fifo", "-", "--group", "g", input="one\ntwo\none\n")
    ids = [each["message_id"] for each in result["successful"]]
    assert ids[0] == ids[2] != ids[1]
    assert [m["body"] for m in ask("receive", "orders.fifo", "--max", 10)] == ["one", "two"]


@pytest.mark.spec("ATT-1", "ATT-3", "ATT-9")
def test_a_receive_may_be_repeated_with_its_attempt_id(ask, fifo):
    for body in "ab":
        ask("send", "orders.fifo", body, "--group", "g", "--dedup-id", body)

    def receive(attempt):
        messages = ask("receive", "orders.fifo", "--max", 10, "--attempt-id", attempt)
        return [(m["body"], m["receipt_handle"], m["receive_count"]) for m in messages]

    first = receive("x")
    assert [body for body, *_ in first] == ["a", "b"]
    assert receive("y") == [] and receive("x") == first


# --- errors


@pytest.mark.spec("ERR-8", "SND-4", "SND-5", "SND-6", "SND-16")
@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["send", "none", "x"], "QueueDoesNotExist"),
        (["counts", "none"], "QueueDoesNotExist"),
        (["delete-queue", "none"], "QueueDoesNotExist"),
        (["create", "a.b"], "InvalidParameterValue"),
        (["create", "b", "-a", "nonsense=1"], "InvalidAttributeName"),
        (["create", "b", "--profile", "none"], "InvalidAttributeValue"),
        (["send", "orders", "x", "--group", "a b"], "InvalidParameterValue"),
        (["create", "b", "--fifo"], "InvalidParameterValue"),
        (["create", "b.fifo"], "InvalidParameterValue"),
        (["create", "b", "--content-based-deduplication"], "InvalidAttributeName"),
        (["create", "b.fifo", "--fifo", "--deduplication-scope", "none"], "InvalidAttributeValue"),
        (["rewind", "orders", "--ago", "60"], "UnsupportedOperation"),
        (["create", "orders", "--delay", "5"], "QueueNameExists"),
        (["set", "orders", "--visibility-timeout", "43201"], "InvalidAttributeValue"),
        (["send", "orders", ""], "MissingParameter"),
        (["send", "orders", "x", "--attribute", "n:Number=x"], "InvalidParameterValue"),
        (["send", "orders", "x", "--dedup-id", "d"], "InvalidParameterValue"),
        (["receive", "orders", "--max", "0"], "InvalidParameterValue"),
        (["receive", "orders", "--wait", "21"], "InvalidParameterValue"),
        (["receive", "orders", "--attempt-id", "a"], "InvalidParameterValue"),
        (["delete", "orders", "nonsense"], "ReceiptHandleIsInvalid"),
        (["delete", "orders", HANDLE], "ReceiptHandleIsInvalid"),
        (["change-visibility", "orders", HANDLE, "1"], "ReceiptHandleIsInvalid"),
        (["peek", "orders", "--limit", "0"], "InvalidParameterValue"),
        (["peek", "orders", "--where", "nope = 1"], "InvalidParameterValue"),
        (["send", "orders.fifo", "x", "--dedup-id", "d"], "MissingParameter"),
        (["send", "orders.fifo", "x", "--group", "g", "--dedup-id", "d", "--delay", "2"], "InvalidParameterValue"),
        (["send", "orders.fifo", "--lines", __file__, "--group", "g"], "InvalidParameterValue"),
    ],
)
def test_refusals_exit_with_1_name_the_code_and_change_nothing(run, queue, fifo, root, args, code):
    queue.send("x")
    before = commits(root)
    result = run(*args)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: {code}: ") and one_line(result.stderr)
    assert commits(root) == before


@pytest.mark.spec("ERR-1")
def test_refusals_in_json_carry_all_fields(run, queue):
    result = run("delete", "orders", "nonsense", json=True)
    assert (result.exit_code, result.stdout) == (1, "")
    error = json.loads(result.stderr)["error"]
    assert (error["code"], error["http_status"], error["sender_fault"]) == ("ReceiptHandleIsInvalid", 404, True)
    assert error["message"] and len(error["request_id"]) == 36 and error["exit_code"] == 1


@pytest.mark.spec("ERR-7")
def test_cmq_queues_add_their_number(run):
    run("create", "orders", "--profile", "cmq")
    result = run("send", "orders", "x", "--delay", "-1", json=True)
    assert json.loads(result.stderr)["error"]["cmq_code"] == 4000


@pytest.mark.parametrize(
    "args",
    [
        ["bogus"],
        ["send"],
        ["send", "orders"],
        ["send", "orders", "x", "--lines", __file__],
        ["send", "orders", "--lines", "/nowhere/at/all"],
        ["send", "orders", "-", "--dedup-id", "d"],
        ["send", "orders", "--lines", __file__, "--dedup-id", "d"],
        ["send", "orders", "x", "--attribute", "novalue"],
        ["send", "orders", "x", "--attribute", "b:Binary=?"],
        ["send", "orders", "x", "--attribute", "k=1", "--attribute", "k:Number=2"],
        ["receive", "orders", "--max", "many"],
        ["receive", "orders", "--nonsense"],
        ["set", "orders"],
        ["create", "b", "--delay", "1", "-a", "delay=2"],
        ["tag", "orders", "novalue"],
    ],
)
def test_wrong_usage_exits_with_2(run, queue, root, args):
    before = commits(root)
    result = run(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: usage: ") and one_line(result.stderr)
    assert commits(root) == before
    in_json = run(*args, json=True)
    assert in_json.exit_code == 2 and json.loads(in_json.stderr)["error"]["code"] == "usage"


def test_the_root_is_an_option_or_in_the_environment(run, queue, root):
    without = run("list", root=None)
    assert without.exit_code == 2 and one_line(without.stderr)
    assert "--root DIR" in without.stderr and "LAKEQUEUE_ROOT" in without.stderr
    result = CliRunner(env={"LAKEQUEUE_ROOT": root}).invoke(app, ["list"])
    assert result.exit_code == 0 and "orders" in result.stdout


@pytest.mark.spec("ERR-2")
@pytest.mark.parametrize("command", ["list", "counts", "show x", "send x y", "sql select"])
def test_a_root_that_does_not_exist_is_trouble_of_storage_and_is_not_made(run, root, command):
    result = run(*command.split())
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith(f"error: storage: {root} does not exist") and one_line(result.stderr)
    assert not Path(root).exists()
    error = json.loads(run(*command.split(), json=True).stderr)["error"]
    assert (error["code"], error["outcome_unknown"], error["exit_code"]) == ("storage", False, 3)


@pytest.mark.spec("ERR-2")
def test_a_root_that_holds_something_else_is_left_alone(run, tmp_path):
    (tmp_path / "mine").write_text("x")
    for args in (["create", "orders"], ["list"]):
        result = run(*args, root=str(tmp_path))
        assert result.exit_code == 3 and one_line(result.stderr)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.spec("ERR-2")
def test_a_root_that_is_a_file(run, tmp_path):
    (tmp_path / "file").write_text("x")
    for args in (["create", "orders"], ["list"]):
        result = run(*args, root=str(tmp_path / "file"))
        assert result.exit_code == 3 and one_line(result.stderr)


@pytest.mark.parametrize("error", [RuntimeError("boom\nmore"), ZeroDivisionError(), OSError(28, "disk full")])
def test_what_nobody_expects_is_one_line_and_a_stack_trace_only_if_asked(run, queue, monkeypatch, error):
    def fail(*args):
        raise error

    monkeypatch.setattr(LakeQueue, "list_queues", fail)
    result = run("list")
    assert (result.exit_code, result.stdout) == (3, "") and one_line(result.stderr)
    if isinstance(error, OSError):
        assert result.stderr == "error: environment: [Errno 28] disk full\n"
    else:
        assert f"error: internal: {type(error).__name__}" in result.stderr and "-v" in result.stderr
    verbose = run("-v", "list")
    assert verbose.exit_code == 3 and "Traceback" in verbose.stderr and "in fail" in verbose.stderr


def test_refusals_show_a_stack_trace_only_if_asked(run, queue):
    assert "Traceback" in run("-v", "counts", "none").stderr
    assert "Traceback" not in run("counts", "none").stderr


@pytest.mark.parametrize("status", [0, 3])
def test_demo_passes_its_arguments_and_its_exit_code_on(run, root, tmp_path, monkeypatch, status):
    calls = []

    def run_demo(root, input_dir, console, with_spark):
        calls.append((root, input_dir, with_spark))
        console.print("working")
        return status

    monkeypatch.setattr("lakequeue.cli.demo.run_demo", run_demo)
    shown = run("demo", "--input", tmp_path)
    assert (shown.exit_code, shown.stdout) == (status, "working\n")
    in_json = run("demo", "--no-spark", root=None, json=True)
    assert in_json.exit_code == status and in_json.stderr == "working\n"
    assert json.loads(in_json.stdout) == {"root": None, "complete": status == 0}
    assert calls == [(root, str(tmp_path), True), (None, None, False)]


# --- as a process


@pytest.mark.parametrize(
    ("args", "status"),
    [
        (["counts", "orders"], 0),
        (["--root", "/no", "list"], 3),
    ],
)
def test_the_process_exits_with_the_code(start, queue, args, status):
    process = start(*args)
    out, err = process.communicate(timeout=30)
    assert process.returncode == status
    assert bool(out) == (status == 0) and (status == 0 or one_line(err))


WAITS = """
from lakequeue import SystemClock
from lakequeue.cli import main
wait = SystemClock.wait
def noted(*args):
    print("waiting", flush=True)
    wait(*args)
SystemClock.wait = noted
main()
"""


JUDGES = """
from lakequeue.conditions import sandbox
from lakequeue.cli import main
sandbox.SECONDS = 60
send = sandbox.Worker.send

def told(self, request, rows=b""):
    send(self, request, rows)
    if request.get("what") == "judge":
        print("judging", flush=True)

sandbox.Worker.send = told
main()
"""


@pytest.mark.parametrize("json_too", [False, True])
def test_ctrl_c_in_a_long_poll(start, queue, json_too):
    options = ["--json"] if json_too else []
    process = start(*options, "receive", "orders", "--wait", "20", program=WAITS)
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 130 and one_line(err)
    assert (json.loads(err)["error"]["code"] if json_too else err.strip()) == "interrupted"


def test_ctrl_c_ends_a_condition(start, queue):
    queue.send(SLOW_BODY)
    process = start("peek", "orders", "--where", SLOW, program=JUDGES)
    assert process.stdout.readline() == "judging\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "interrupted\n")


def test_ctrl_c_while_lines_are_sent_tells_how_many_were(start, queue):
    process = start("send", "orders", "-", stdin=subprocess.PIPE)
    for body in ("one", "two"):
        process.stdin.write(body + "\n")
        process.stdin.flush()
        assert [m.body for m in queue.receive(wait_time=20)] == [body]  # sent before the input ends
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 130
    err = process.stderr.read()
    assert err in (f"interrupted ({n} sent before that)\n" for n in ("1 message", "2 messages"))


def test_a_terminal_shows_that_a_command_waits(start, queue):
    terminal, its_side = pty.openpty()
    process = start("receive", "orders", "--wait", "20", stderr=its_side)
    os.close(its_side)
    shown = b""
    while b"waiting for messages" not in shown:
        shown += os.read(terminal, 1_000)
    queue.send("at last")
    out, _ = process.communicate(timeout=20)
    os.close(terminal)
    assert process.returncode == 0 and "at last" in out


def test_a_message_that_crashes_duckdb_does_not_crash_the_command(start, queue):
    queue.send("[" * 500_000 + "]" * 500_000)
    deep = "[" * 10_000 + '"INT"' + "]" * 10_000
    process = start("peek", "orders", "--where", f"from_json('1', '{deep}') IS NULL OR json_contains(body, '1')")
    out, error = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "") and one_line(error) and "not one of those" in error


def test_messages_that_nobody_could_read_are_not_deleted(start, queue):
    queue.send("precious")
    reader, writer = os.pipe()
    os.close(reader)
    process = start("receive", "orders", "--delete", stdout=writer)
    os.close(writer)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (3, "")
    assert queue.counts().in_flight == 1


def test_sql_with_spark_says_that_java_is_missing(start, queue):
    process = start("sql", "--spark", "SELECT 1", env={"PATH": "/nowhere", "JAVA_HOME": ""})
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (3, "")
    assert "Java" in err and one_line(err)


def test_version_and_help(run):
    assert run("--version", root=None).stdout == f"lakequeue {lakequeue.__version__}\n"
    help = run("--help", root=None)
    assert help.exit_code == 0 and "change-visibility" in help.stdout
    assert run(root=None).exit_code == 2
