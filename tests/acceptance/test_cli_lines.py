"""Messages as JSON Lines, and queues drained into others: `send --jsonl`, `export`, `drain`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lakequeue import LakeQueue, Queue, SendEntry
from lakequeue.cli import app, drain
from lakequeue.operations import browse

Run = Callable[..., Any]
TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793"


@pytest.fixture
def run(root: str) -> Run:
    def command(*args: object, input: str | None = None) -> Any:
        return CliRunner(env={"LAKEQUEUE_ROOT": root}).invoke(app, [*map(str, args)], input=input)

    return command


@pytest.fixture
def lake(root: str) -> LakeQueue:
    return LakeQueue(root)


@pytest.fixture
def orders(lake: LakeQueue) -> Queue:
    return lake.create_queue("orders")


def jsonl(*documents: object) -> str:
    return "".join(f"{json.dumps(document)}\n" for document in documents)


def all_of(queue: Queue) -> list[dict[str, Any]]:
    """What a queue has, by what a send can say."""
    kept = ("body", "message_attributes", "group_id", "dedup_id", "trace_header", "state")
    return [{name: getattr(m, name) for name in kept} for m in browse.export(queue._runtime, None, None)]


# --- send --jsonl


def test_a_line_has_body_attributes_group_and_delay(run: Run, orders: Queue) -> None:
    attributes = {
        "k": "v",
        "n": 5,
        "c": {"type": "Number.int", "value": "7"},
        "b": {"type": "Binary", "value": "AP8="},
    }
    lines = jsonl({"body": "a", "attributes": attributes, "group_id": "g"}, {"body": "b", "delay": "1h"})
    sent = run(
        "send",
        "orders",
        "-",
        "--jsonl",
        "--attribute",
        "k=default",
        "--attribute",
        "x=1",
        "--group",
        "all",
        input=lines,
    )
    assert (sent.exit_code, sent.stdout) == (0, "sent 2 messages\n")
    first, second = orders.peek()
    assert dict(first.message_attributes) == {
        "k": ("String", "v"),
        "x": ("String", "1"),
        "n": ("Number", "5"),
        "c": ("Number.int", "7"),
        "b": ("Binary", b"\0\xff"),
    }
    assert (first.group_id, second.group_id) == ("g", "all")
    assert second.state == "delayed" and (second.visible_at - second.sent_at).total_seconds() == 3_600
    assert dict(second.message_attributes) == {"k": ("String", "default"), "x": ("String", "1")}


def test_a_line_of_a_fifo_queue_has_its_deduplication_id(run: Run, lake: LakeQueue, tmp_path: Path) -> None:
    queue = lake.create_queue("q.fifo", fifo=True)
    file = tmp_path / "lines"
    file.write_text(
        jsonl(
            {"body": "a", "group_id": "g", "dedup_id": "1"},
            {"body": "b", "dedup_id": "2"},
            {"body": "a again", "group_id": "g", "dedup_id": "1"},
            {"body": "c", "group_id": "g"},
        )
    )
    done = run("send", "q.fifo", "--lines", file, "--jsonl")
    assert done.exit_code == 1 and [m.body for m in queue.peek()] == ["a"]
    assert "error: MissingParameter: Field group_id is missing" in done.stderr and "(line 2;" in done.stderr
    assert "line 4: MissingParameter: Field dedup_id is missing" in done.stderr and "2 of 4 refused" in done.stderr


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("x", "not JSON: Expecting value: line 1 column 1"),
        ("[" * 100_000, "not JSON: nested too deeply"),
        ("[1]", "not a JSON object"),
        ("{}", "Field body is missing or empty"),
        ('{"body": ""}', "Field body is missing or empty"),
        ('{"body": 5}', "Field body must be a text, not 5"),
        ('{"body": "a", "group": "g"}', "Unknown field 'group'; fields are body, attributes, group_id"),
        ('{"body": "a", "group_id": 5}', "Field group_id must be a text, not 5"),
        ('{"body": "a", "delay": "5x"}', "Field delay: '5x' is not a duration"),
        ('{"body": "a", "delay": true}', "Field delay: true is not a duration"),
        ('{"body": "a", "delay": -1}', "delay must be >= 0 and <= 345600"),
        ('{"body": "a", "dedup_id": "d"}', "not valid for this queue type"),
        ('{"body": "a", "attributes": []}', "Field attributes must be an object"),
        (
            '{"body": "a", "attributes": {"k": null}}',
            "Attribute 'k' must be a text, a number, or a type and a value",
        ),
        ('{"body": "a", "attributes": {"k": {"type": "String"}}}', "Attribute 'k' must have a type and a value"),
        ('{"body": "a", "attributes": {"k": {"type": "Binary", "value": "?"}}}', "attribute 'k' is not base64"),
        ('{"body": "a", "attributes": {"a b": "x"}}', "a b"),
        ('{"body": "\\ud800"}', "InvalidMessageContents"),
        ('{"body": "' + "a" * 1_048_577 + '"}', "1048576"),
    ],
    ids=lambda value: value[:30],
)
def test_a_bad_line_is_named_by_number_field_and_limit(run: Run, orders: Queue, line: str, told: str) -> None:
    done = run(
        "send", "orders", "-", "--jsonl", input=jsonl({"body": "one"}) + line + "\n" + jsonl({"body": "two"})
    )
    assert (done.exit_code, done.stdout) == (1, "sent 2 messages\n")
    assert told in done.stderr and "(line 2; 1 of 3 refused)" in done.stderr and done.stderr.count("\n") == 1
    assert [message.body for message in orders.receive(10)] == ["one", "two"]


def test_several_bad_lines_are_all_told(run: Run, orders: Queue) -> None:
    lines = 'x\n{"body": "a"}\n{"body": 1}\n' + "y\n" * 20
    done = run("send", "orders", "-", "--jsonl", input=lines)
    assert done.exit_code == 1 and "(line 1; 22 of 23 refused)" in done.stderr
    assert (
        "line 3: InvalidParameterValue: Field body must be a text" in done.stderr and done.stderr.count("\n") == 10
    )
    in_json = run("send", "orders", "-", "--jsonl", "--json", input=lines)
    assert len(json.loads(in_json.stdout)["failed"]) == 22
    assert run("send", "orders", "x", "--jsonl").exit_code == 2


# --- export


def test_the_import_of_an_export_gives_the_same_messages(run: Run, lake: LakeQueue, tmp_path: Path) -> None:
    queue = lake.create_queue("orders", shards=2)
    attributes = {"k": "v\u2028", "n": 5, "b": b"\0\xff"}
    for number in range(30):
        queue.send(f"body {number}\n\u2028é", attributes=attributes, group_id=f"g{number % 3}")
    queue.send("traced", system_attributes={"AWSTraceHeader": TRACE})
    queue.send("late", delay=600)
    queue.receive(3)
    before = queue.counts()
    file = tmp_path / "orders.jsonl"
    assert run("export", "orders", "--out", file).stdout == f"wrote 32 messages of orders into {file}\n"
    assert queue.counts().in_flight == before.in_flight == 3  # nothing was received
    lines = file.read_text().splitlines()
    assert len(lines) == 32 and [p.name for p in tmp_path.iterdir() if p.name.endswith(".part")] == []
    copy = lake.create_queue("copy")
    assert run("send", "copy", "--lines", file, "--jsonl").stdout == "sent 32 messages\n"

    def said(queue: Queue) -> list[dict[str, Any]]:
        return sorted(({**m, "state": m["state"] == "delayed"} for m in all_of(queue)), key=lambda m: m["body"])

    assert said(copy) == said(queue)
    late = copy.peek("body = 'late'")[0]
    assert late.visible_at is not None and 590 <= (late.visible_at - late.sent_at).total_seconds() <= 600


def test_a_fifo_queue_is_exported_with_groups_and_deduplication_ids(run: Run, lake: LakeQueue) -> None:
    queue, copy = (lake.create_queue(name, fifo=True) for name in ("a.fifo", "b.fifo"))
    queue.send_batch([SendEntry(f"{n}", group_id=f"g{n % 2}", dedup_id=f"d{n}") for n in range(6)])
    lines = run("export", "a.fifo").stdout
    for _ in range(2):  # the second adds nothing
        assert run("send", "b.fifo", "-", "--jsonl", input=lines).stdout == "sent 6 messages\n"
    assert all_of(copy) == all_of(queue) and len(all_of(copy)) == 6


@pytest.mark.spec("JOB-5")
def test_priorities_are_printed_where_there_are_some(run: Run, lake: LakeQueue) -> None:
    for name, given in (("mails", {"priorities": 3}), ("plain", {})):
        queue = lake.create_queue(name, **given)
        sent = queue.send("x", priority=2 if given else None)
        shown = [
            run("peek", name),
            run("show", name, sent.message_id),
            run("receive", name, "--visibility-timeout", "0"),
        ]
        assert ["priority" in each.stdout for each in shown] == [bool(given)] * 3
        for command in (["peek", name], ["receive", name]):
            assert json.loads(run(*command, "--json").stdout)[0]["priority"] == (2 if given else 0)


@pytest.mark.spec("JOB-5")
def test_an_export_has_the_priorities(run: Run, lake: LakeQueue) -> None:
    queue, copy = (lake.create_queue(name, priorities=3, shards=6) for name in ("a", "b"))
    queue.send_batch([SendEntry(f"{n}", priority=n % 3) for n in range(6)])
    lines = run("export", "a").stdout
    assert run("send", "b", "-", "--jsonl", "--priority", "0", input=lines).stdout == "sent 6 messages\n"
    assert [(each.body, each.priority) for each in sorted(copy.peek(), key=lambda each: each.body)] == [
        (f"{n}", n % 3) for n in range(6)
    ]
    assert copy.get(copy.peek("body = '5'")[0].message_id).priority == 2
    plain = lake.create_queue("plain")
    refused = run("send", "plain", "-", "--jsonl", input=lines)
    assert refused.exit_code == 1 and "without priorities" in refused.stderr and plain.counts().visible == 2


def test_an_export_is_in_the_order_of_sending_and_may_be_filtered(run: Run, orders: Queue) -> None:
    orders.send_batch([SendEntry("a"), SendEntry("b"), SendEntry("c"), SendEntry("d", delay=60)])
    orders.receive()

    def bodies(*args: str) -> list[str]:
        return [json.loads(line)["body"] for line in run("export", "orders", *args).stdout.splitlines()]

    assert bodies() == ["a", "b", "c", "d"]
    assert bodies("--state", "visible") == ["b", "c"]
    assert bodies("--state", "in_flight", "--state", "delayed") == ["a", "d"]
    assert bodies("--where", "body > 'b'", "--state", "visible") == ["c"]
    assert bodies("--state", "visible", "--where", "body = 'a' OR body = 'b'") == ["b"]
    assert bodies("--state", "visible", "--where", "false) OR (true") == ["b", "c"]
    assert bodies("--state", "visible", "--where", "body > 'b' -- a comment") == ["c"]
    assert run("export", "orders", "--state", "gone").exit_code == 2
    assert run("export", "orders", "--where", "nope = 1").exit_code == 1
    assert "nope" in run("export", "orders", "--state", "visible", "--where", "nope = 1").stderr


def test_an_export_is_for_its_owner_and_follows_no_link(run: Run, orders: Queue, tmp_path: Path) -> None:
    orders.send("a")
    for name in ("out.part", "out"):
        aimed = tmp_path / f"aimed at by {name}"
        aimed.write_text("kept")
        (tmp_path / name).symlink_to(aimed)
        assert run("export", "orders", "--out", tmp_path / "out").exit_code == 0
        assert aimed.read_text() == "kept"
        assert not (tmp_path / "out").is_symlink() and (tmp_path / "out").stat().st_mode & 0o777 == 0o600
        (tmp_path / "out").unlink()


def test_an_export_that_fails_leaves_no_file_and_the_old_one(
    run: Run, orders: Queue, tmp_path: Path, monkeypatch
) -> None:
    file = tmp_path / "out"
    file.write_text("old")
    orders.send("a")

    def fails(*_: object) -> Any:
        raise OSError(28, "disk full")

    monkeypatch.setattr("lakequeue.cli.json_lines.document", fails)
    assert run("export", "orders", "--out", file).exit_code == 3
    assert file.read_text() == "old" and not (tmp_path / "out.part").exists()


@pytest.mark.parametrize("folder", ["missing", "file"])
def test_an_export_that_cannot_write_names_the_file_that_was_given(
    run: Run, orders: Queue, tmp_path: Path, folder: str
) -> None:
    (tmp_path / "file").touch()
    failed = run("export", "orders", "--out", tmp_path / folder / "x")
    assert failed.exit_code == 3 and f"{tmp_path / folder / 'x'}'" in failed.stderr


def test_an_export_holds_a_bounded_number_of_messages(orders: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    orders.send_batch([SendEntry(str(number)) for number in range(1_000)])
    read: list[int] = []
    rows = browse._read
    monkeypatch.setattr(browse, "ROWS", 100)
    monkeypatch.setattr(browse, "_read", lambda *args: (read.append(len(t)) or (o, t) for o, t in rows(*args)))
    messages = browse.export(orders._runtime, None, None)
    assert [next(messages).body for _ in range(10)] == [str(number) for number in range(10)]
    assert sum(read) <= browse.PAGE + 100  # no more than a page, and the batch that it ends in
    assert sum(1 for _ in messages) == 990


# --- drain


def test_drain_moves_everything_that_is_visible(run: Run, lake: LakeQueue, orders: Queue) -> None:
    aside = lake.create_queue("aside")
    orders.send_batch([SendEntry("late", delay=60), *(SendEntry(str(n), attributes={"n": n}) for n in range(5))])
    [held] = orders.receive()
    assert run("drain", "orders", "aside", "--dry-run").stdout == "would move 4 messages to aside\n"
    asked = run("drain", "orders", "aside", input="n\n")
    assert asked.exit_code == 2 and "Move 4 messages from orders to aside?" in asked.stderr
    assert (orders.counts().visible, aside.counts().visible) == (4, 0)
    done = run("drain", "orders", "aside", "--yes")
    assert done.stdout == "moved 4 messages from orders to aside\n"
    assert "1 in flight, 1 delayed left in orders" in done.stderr
    assert [m["body"] for m in all_of(aside)] == [str(n) for n in range(5) if str(n) != held.body]
    assert all("n" in m["message_attributes"] for m in all_of(aside))
    document = json.loads(run("drain", "orders", "aside", "--json").stdout)
    left = {"visible": 0, "in_flight": 1, "delayed": 1, "held": 0}
    assert document == {"queue": "orders", "to": "aside", "messages": 0, "left": left}


@pytest.mark.parametrize("profile", ["lake", "sqs"])
@pytest.mark.parametrize(
    ("options", "groups"),
    [
        (["--group-by", "customer"], ["ada", "bob", "ada", "bob"]),
        (["--group-by", "$.order.lines.0.customer"], ["7", "x", "7", "x"]),
        (["--group", "all"], ["all"] * 4),
        ([], ["own0", "own1", "own0", "own1"]),
    ],
)
def test_a_standard_queue_is_drained_into_a_fifo_queue(
    run: Run, lake: LakeQueue, options: list[str], groups: list[str], profile: str
) -> None:
    source = lake.create_queue("orders", profile=profile)
    target = lake.create_queue("orders.fifo", fifo=True, profile=profile)
    for number in range(24):
        body = json.dumps({"order": {"lines": [{"customer": [7, "x"][number % 2]}]}, "n": number})
        attributes = {"customer": ["ada", "bob"][number % 2]}
        source.send(body, attributes=attributes, group_id=f"own{number % 2}")
    source.send("{}", delay=600)
    done = run("drain", "orders", "orders.fifo", "--yes", *options)
    assert done.stdout == "moved 24 messages from orders to orders.fifo\n" and "1 delayed left" in done.stderr
    moved = all_of(target)
    assert [json.loads(m["body"])["n"] for m in moved] == list(range(24))
    assert [m["group_id"] for m in moved[:4]] == groups
    assert moved[0]["message_attributes"] == {"customer": ("String", "ada")}
    assert source.counts().in_flight == source.counts().visible == 0


def test_a_message_without_a_group_stops_the_drain_and_stays(run: Run, lake: LakeQueue, orders: Queue) -> None:
    target = lake.create_queue("q.fifo", fifo=True)
    orders.send('{"c": "a b"}')
    for options, told in (
        ([], "it has no group; give --group-by or --group"),
        (["--group-by", "c"], "--group-by c finds no text or whole number in it"),
        (["--group-by", "$.x"], "--group-by $.x finds no text"),
        (["--group-by", "$.c"], "a b"),  # no group may have a blank
    ):
        done = run("drain", "orders", "q.fifo", "--yes", *options)
        assert done.exit_code == 1 and told in done.stderr and done.stderr.count("\n") == 1, done.stderr
        assert orders.counts().visible == 1 and target.counts().visible == 0


def test_drains_that_cannot_keep_their_promise_are_refused(run: Run, lake: LakeQueue, orders: Queue) -> None:
    fifo, other = (lake.create_queue(name, fifo=True) for name in ("a.fifo", "b.fifo"))
    lake.create_queue("slow", rate_limit="1/s")
    fifo.send_batch([SendEntry(body, group_id="g", dedup_id=body) for body in "abc"])
    orders.send_batch([SendEntry("a", group_id="g"), SendEntry("b", group_id="g")])
    orders.receive()
    fifo.receive()
    for source, target, *options, told in (
        ("a.fifo", "orders", "order and deduplication would be lost"),
        ("orders", "orders", "cannot be drained into itself"),
        ("orders", "b.fifo", "--wait", "0", "1 message of orders in flight after 0s"),
        ("a.fifo", "b.fifo", "--wait", "100ms", "1 message of a.fifo in flight after 0.1s"),
        ("orders", "none", "there is no none"),
        (
            "slow",
            "b.fifo",
            "--group",
            "g",
            "slow has a rate limit: lift it first, lakequeue set slow -a rate_limit=",
        ),
        ("orders", "b.fifo", "--group", "g", "--group-by", "x", "give either"),
        ("a.fifo", "b.fifo", "--group", "g", "for draining a standard queue into a FIFO queue"),
    ):
        done = run("drain", source, target, "--yes", *options)
        assert done.exit_code in (1, 2) and told in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert other.counts().visible == 0 and orders.counts().visible == 1
    assert fifo.attributes(["paused"]) == {"paused": None}


@pytest.mark.spec("JOB-1", "FIF-1")
def test_a_fifo_queue_is_paused_while_it_is_drained(
    run: Run, lake: LakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (lake.create_queue(name, fifo=True) for name in ("a.fifo", "b.fifo"))
    first.send_batch([SendEntry(str(n), group_id=f"g{n}", dedup_id=str(n)) for n in range(3)])
    (held,) = first.receive()
    seen: list[object] = []

    def looked(source: Queue, wait: float) -> None:
        """Whoever consumes it goes on with what it has, and gets nothing more."""
        seen.append((first.attributes(["paused"])["paused"], first.receive(10)))
        held.change_visibility(0)

    monkeypatch.setattr(drain, "_wait_for_flights", looked)
    first.pause("it is drained into b.fifo")  # by one that died
    assert run("drain", "a.fifo", "b.fifo", "-y").exit_code == 0
    assert seen == [("it is drained into b.fifo", [])]
    assert first.attributes(["paused"]) == {"paused": None} and second.counts().visible == 3
    monkeypatch.setattr(drain, "_wait_for_flights", lambda source, wait: first.pause("the bank is down"))
    assert run("drain", "a.fifo", "b.fifo", "-y").exit_code == 0
    assert first.attributes(["paused"]) == {"paused": "the bank is down"}, "somebody else paused it meanwhile"
    monkeypatch.undo()
    assert run("drain", "a.fifo", "b.fifo", "-y").exit_code == 0
    assert first.attributes(["paused"]) == {"paused": "the bank is down"}


def test_a_fifo_queue_is_drained_into_another_in_order(run: Run, lake: LakeQueue) -> None:
    first, second = (lake.create_queue(name, fifo=True) for name in ("a.fifo", "b.fifo"))
    first.send_batch([SendEntry(str(n), group_id=f"g{n % 2}", dedup_id=str(n)) for n in range(10)])
    assert run("drain", "a.fifo", "b.fifo", "-y").stdout == "moved 10 messages from a.fifo to b.fifo\n"
    assert [m["body"] for m in all_of(second)] == [str(n) for n in range(10)]
