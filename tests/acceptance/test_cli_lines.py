"""Messages as JSON Lines, and queues drained into others, beyond what transcripts show of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from acceptance.commands import Run
from lakequeue import LakeQueue, Queue, SendEntry
from lakequeue.cli import drain, lines
from lakequeue.operations import browse

TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793"


def all_of(queue: Queue) -> list[dict[str, Any]]:
    """What a queue has, by what a send can say."""
    kept = ("body", "message_attributes", "group_id", "dedup_id", "trace_header", "state")
    return [{name: getattr(m, name) for name in kept} for m in browse.export(queue._runtime, None, None)]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        pytest.param("[" * 100_000, "The line is not JSON: nested too deeply.", id="nested too deeply"),
        pytest.param(json.dumps({"body": "a" * 1_048_577}), "must be shorter than 1048576 bytes", id="too long"),
    ],
)
def test_a_line_without_end_is_refused_alone(run: Run, orders: Queue, line: str, told: str) -> None:
    done = run("send", "orders", "-", "--jsonl", input=f'{{"body": "one"}}\n{line}\n{{"body": "two"}}\n')
    assert (done.exit_code, done.stdout) == (1, "sent 2 messages\n")
    assert told in done.stderr and "(line 2; 1 of 3 refused)" in done.stderr and done.stderr.count("\n") == 1


_JSON = b'{"body": "%s"}'


@pytest.mark.parametrize("read", [7, lines.READ])
@pytest.mark.parametrize("source", ["pipe", "file"])
@pytest.mark.parametrize("form", [b"%s", _JSON], ids=["plain", "json"])
@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (b"b\xffd", "The line is not UTF-8: byte {} is 0xff."),
        (b"\xed\xa0\x80", "The line is not UTF-8: byte {} is 0xed."),  # half a surrogate pair
        (b"x\xe2\x82", "The line is not UTF-8: byte {} is 0xe2."),  # the beginning of a character
        (b"b\x00d", None),
        (b"y" * 60, "The line is too long for a message."),
    ],
    ids=["wrong byte", "surrogate", "cut off", "NUL", "too long"],
)
def test_a_bad_line_stops_no_other(
    run: Run, orders: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    read: int, source: str, form: bytes, bad: bytes, told: str | None,
) -> None:  # fmt: skip
    monkeypatch.setattr(lines, "READ", read)
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 50)
    given = b"\r\n".join(
        form % each for each in (b"one", b"two", bad, b"", b"four", bad)
    )  # without a last newline
    given = given.replace(form % b"", b"")
    (tmp_path / "lines").write_bytes(given)
    where = ("-",) if source == "pipe" else ("--lines", str(tmp_path / "lines"))
    done = run("send", "orders", *where, *(["--jsonl"] if form == _JSON else []), input=given)
    assert (done.exit_code, done.stdout) == (1, "sent 3 messages\n")
    assert "(line 3; 2 of 5 refused)" in done.stderr and "line 6: " in done.stderr
    if told is not None:
        offset = next((place for place, byte in enumerate(bad) if byte > 127), 0) + (form == _JSON) * 10 + 1
        assert done.stderr.count(told.format(offset)) == 2
    assert [message.body for message in orders.peek()] == ["one", "two", "four"]


@pytest.mark.parametrize("form", ["%s", '{"body": "%s"}'], ids=["plain", "json"])
def test_a_byte_order_mark_is_no_part_of_the_first_message(run: Run, orders: Queue, form: str) -> None:
    given = "\ufeff" + "\n".join(form % each for each in ("one", "\ufefftwo"))
    jsonl = [] if form == "%s" else ["--jsonl"]
    for text, sent in (given, 2), ("\ufeff\r\n" + form % "three", 1), ("\ufeff", 0):
        assert run("send", "orders", "-", *jsonl, input=text).stdout.startswith(f"sent {sent} ")
    assert [message.body for message in orders.peek()] == ["one", "\ufefftwo", "three"]


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

    monkeypatch.setattr("lakequeue.cli.lines.document", fails)
    assert run("export", "orders", "--out", file).exit_code == 3
    assert file.read_text() == "old" and not (tmp_path / "out.part").exists()


def test_an_export_takes_the_place_of_no_device(run: Run, orders: Queue, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/null")
    (tmp_path / "dev").symlink_to("/dev")
    for name in ("pipe", "link", "dev/stdout-of-ours"):
        refused = run("export", "orders", "--out", tmp_path / name)
        assert refused.exit_code == 2 and f"--out {tmp_path / name}: must be a regular file" in refused.stderr
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "link").is_symlink()


def test_of_two_exports_to_one_file_the_later_one_ends_well(
    run: Run, orders: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.send("a")
    file, document, ends = tmp_path / "out", lines.document, list[int]()

    def meanwhile(*given: Any) -> Any:
        monkeypatch.setattr("lakequeue.cli.lines.document", late)
        ends.append(run("export", "orders", "--out", file).exit_code)
        return document(*given)

    def late(*given: Any) -> Any:
        assert not file.exists()
        return document(*given)

    monkeypatch.setattr("lakequeue.cli.lines.document", meanwhile)
    first = run("export", "orders", "--out", file)
    assert (ends, first.exit_code, len(file.read_text().splitlines())) == ([0], 3, 1)
    assert f"another export has begun to write {file}" in first.stderr
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith("out")] == ["out"]


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


@pytest.mark.spec("EXM-8")
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
