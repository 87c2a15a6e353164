"""How commands are written: options in any place, durations, sizes, instants, questions, completion, hints."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import runpy
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import lakequeue
from lakequeue import LakeQueue, Queue, RedrivePolicy, SendEntry
from lakequeue.cli import app, values
from lakequeue.cli.help import COMMANDS, name_of

Run = Callable[..., Any]


@pytest.fixture
def run(root: str) -> Run:
    def command(*args: str, input: str | None = None, env: dict[str, str] | None = None) -> Any:
        return CliRunner(env={"LAKEQUEUE_ROOT": root} | (env or {})).invoke(app, [*args], input=input)

    return command


@pytest.fixture
def orders(root: str) -> Queue:
    return LakeQueue(root).create_queue("orders", rewind_range=3_600)


# --- options in any place


@pytest.mark.parametrize(
    "args",
    [
        ["--root", "ROOT", "--json", "list", "--prefix", "ord"],
        ["list", "--json", "--root", "ROOT", "--prefix", "ord"],
        ["list", "--prefix", "ord", "--root=ROOT", "--json", "-v"],
        ["-v", "list", "--prefix=ord", "--json", "--region", "local", "--root", "ROOT"],
    ],
)
def test_options_of_all_commands_stand_in_any_place(root: str, orders: Queue, args: list[str]) -> None:
    given = [arg.replace("ROOT", root) for arg in args]
    done = CliRunner(env={"LAKEQUEUE_ROOT": None}).invoke(app, given)
    assert (done.exit_code, done.stderr) == (0, "")
    assert [queue["name"] for queue in json.loads(done.stdout)] == ["orders"]


def test_what_looks_like_such_an_option_but_is_a_value_stays_where_it_is(run: Run, orders: Queue) -> None:
    run("send", "orders", "a", "--group", "-v")
    run("send", "orders", "--", "--json")
    run("send", "orders", "--group=--root", "--", "-v", "--verbose")
    assert [(m.body, m.group_id) for m in orders.receive(10)] == [("a", "-v"), ("--json", None)]


def test_an_error_after_the_command_is_json_and_traced_as_before_it(run: Run, orders: Queue) -> None:
    assert json.loads(run("counts", "none", "--json").stderr)["error"]["code"] == "QueueDoesNotExist"
    assert "Traceback" in run("counts", "none", "--verbose").stderr
    assert run("list", "--root").exit_code == 2  # its value is missing


# --- durations, sizes, instants


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("5m", 300), ("12h", 43_200), ("2d", 172_800), ("1h30m", 5_400), ("1w", 604_800), ("90", 90)),
        *(("0.5", 0.5), ("500ms", 0.5), ("1.5h", 5_400), ("1D 2H", 93_600), ("-5", -5), ("0", 0), (" 7 ", 7)),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert values.duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64KiB", 65_536),
        ("1MB", 1_000_000),
        ("1 MiB", 1_048_576),
        ("1.5kib", 1_536),
        ("262144", 262_144),
        ("7B", 7),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert values.size(text) == size


@pytest.mark.parametrize("text", ["", "abc", "5 parsecs", "m5", "1h-30m", "5mm", "-5m", "1e", "PT5M"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a duration; write seconds, or 90s, 5m"):
        values.duration(text)


@pytest.mark.parametrize("text", ["", "KiB", "5m", "1.0001KiB", "64 KiBs", "-1KiB", "1TBB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a (size; write bytes, or 64KiB|whole number of bytes)"):
        values.size(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2026-01-31T08:00Z", "2026-01-31T08:00:00+00:00"),
        ("2026-01-31T08:00", "2026-01-31T08:00:00+00:00"),
        ("2026-01-31 08:00+02:00", "2026-01-31T08:00:00+02:00"),
    ],
)
def test_instants_without_a_zone_are_utc(text: str, shown: str) -> None:
    at = values.moment(text).at
    assert at is not None and at.isoformat() == shown


@pytest.mark.parametrize(("text", "ago"), [("-10m", 600), ("10m ago", 600), ("now", 0), ("-90", 90)])
def test_instants_before_now(text: str, ago: float) -> None:
    assert values.moment(text) == values.Moment(ago=ago)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["send", "orders", "x", "--delay", "5x"], "'5x' is not a duration; write seconds, or 90s, 5m"),
        (["set", "orders", "-a", "delay=soon"], "--attribute delay: 'soon' is not a duration"),
        (["set", "orders", "--max-size", "64KX"], "'64KX' is not a size; write bytes, or 64KiB"),
        (["set", "orders", "-a", "maximum_message_size=1x"], "'1x' is not a size"),
        (["rewind", "orders", "yesterday"], "'yesterday' is not an instant; write it such as 2026-01-31T08:00Z"),
        (["rewind", "orders", "-5y"], "'5y' is not a duration"),
        (
            ["rewind", "orders", "--ago", "-1h"],
            "'-1h' is not a duration; write seconds, or 90s, 5m, 12h, 2d, 1h30m, without a minus",
        ),
        (["plot", "orders", "--json", "--since", "5m"], "'5m' is not an instant"),
        (["views", "--as-of", "5y ago"], "'5y' is not a duration"),
        (["watch", "--every", "-1"], "-1 is too short; the least is 0 s"),
        (["receive", "orders", "--wait", "a"], "'a' is not a duration"),
        (["list", "--poll-interval", "a"], "'a' is not a duration"),
        (["set", "orders", "--visibility-timeout", "13h"], "must be 0 to 43,200 seconds in profile lake"),
        (["set", "orders", "-a", "profile=sqs"], "can only be set when a queue is created"),
        (["set", "orders", "--shards", "0"], "shards: must be 1 to 1,024"),
        (["set", "orders", "--dead-letter-queue", "orders", "--max-receive-count", "3"], "name another queue"),
        (["set", "orders", "-a", "visibility_timeot=2"], "did you mean visibility_timeout?"),
        (["set", "orders", "-a", "fifo=true"], "Unknown Attribute fifo: whether a queue is FIFO is fixed at its"),
        (["set", "orders", "-a", "VisibilityTimeOut=2"], "did you mean VisibilityTimeout?"),
        (["set", "orders", "-a", "profile_strict=maybe"], "neither true nor false: 'maybe'"),
        (["create", "b", "--profile", "sq"], "profiles are lake, sqs, sqs-2018, cmq"),
        (["create", "b.fifo", "--fifo", "--deduplication-scope", "x"], "none of ['queue', 'message_group']: 'x'"),
        (["create", "b", "--shards", "2000"], "must be 1 to 1,024"),
        (["counts", "ordres"], "there is no ordres in ROOT, region local; did you mean orders?"),
        (["check", "ordres"], "there is no ordres in ROOT, region local; did you mean orders?"),
        (["repair", "ordres"], "there is no ordres in ROOT, region local; did you mean orders?"),
        (
            ["copy", "ROOT", "to", "--queue", "ordres"],
            "there is no ordres in ROOT, region local; did you mean orders?",
        ),
        (["send", "Orders", "x"], "did you mean orders?"),
        (["counts", "bills"], "lakequeue list shows its queues"),
        (["counts", "orders", "--region", "north"], "region north, which has no queues"),
        (["redrive", "orders"], "orders is no dead-letter queue: no redrive policy names it"),
        (["cuonts"], "Did you mean 'counts'"),
        (["create", "b", "--visibilty-timeout", "3"], "No such option: --visibilty-timeout; did you mean --visib"),
        (["peek", "orders", "--where", "stat = 'visible'"], "There is no column stat; did you mean state or"),
        (
            ["sql", "SELECT m.reciept_count FROM messages m"],
            "no column reciept_count at line 1, column 8; did you",
        ),
        (["send", "orders", "x", "-a", "k=v"], "No such option: -a; did you mean --attribute?"),
        (["send", "orders", "-yes"], "No such option: -y; -- goes before an argument that begins with -; see"),
        (["create", "b.fifo"], "a name that ends in .fifo needs fifo=True (--fifo)"),
        (["create", "orders", "--delay", "5"], "lakequeue set orders changes it"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_error_is_one_line_that_says_what_would_be_right(
    run: Run, root: str, orders: Queue, args: list[str], told: str
) -> None:
    orders.send("x")
    result = run(*(arg.replace("ROOT", root) for arg in args))
    assert result.exit_code in (1, 2) and result.stdout == ""
    assert result.stderr.count("\n") == 1 and told.replace("ROOT", root) in result.stderr
    assert orders.attributes()["visibility_timeout"] == 30 and orders.counts().visible == 1


def test_values_reach_the_queue(run: Run, root: str) -> None:
    done = run("create", "orders", "--visibility-timeout", "5m", "-a", "rewind_range=1d", "--max-size", "64KiB")
    assert done.exit_code == 0
    run("set", "orders", "-a", "DelaySeconds=1.5m", "-a", "maximum_message_size=2KiB")
    found = LakeQueue(root).queue("orders").attributes()
    names = ("visibility_timeout", "rewind_range", "maximum_message_size", "delay")
    assert [found[name] for name in names] == [300, 86_400, 2_048, 90]
    limit = ("rate_limit=5/s", "rate_burst=3", "deduplication_interval=1m")
    run("create", "calls", *(f"-a{given}" for given in limit))
    assert run("set", "calls", "-a", "RateBurst=", "-a", "deduplication_interval=").exit_code == 0
    found = LakeQueue(root).queue("calls").attributes()
    assert [found[given.partition("=")[0]] for given in limit] == ["5/s", None, None]
    run("send", "orders", "x", "--delay", "0ms")
    [message] = json.loads(
        run("receive", "orders", "--json", "--visibility-timeout", "1h", "--wait", "10ms").stdout
    )
    changed = run("change-visibility", "orders", message["receipt_handle"], "2m")
    assert changed.stdout == "the message stays hidden for 2m\n"


# --- help

EXAMPLES = {name_of(place): examples for places in COMMANDS.values() for place, examples in places.items()}


def help_of(run: Run, *command: str) -> str:
    return str(run(*command, "--help", env={"COLUMNS": "100"}).stdout)


def test_help_shows_no_types_of_python(run: Run) -> None:
    for command in ["", *EXAMPLES]:
        shown = help_of(run, *command.split())
        assert "Usage: lakequeue" in shown and not re.search("<(?!INSTANT)[a-zA-Z]+>", shown), shown
    assert re.search("--prefix +PREFIX +Only names", help_of(run, "list"))


def test_a_short_option_means_one_thing() -> None:
    group, found = typer.main.get_command(app), dict[str, set[tuple[str, str | None]]]()
    for command in [group, *(group.get_command(None, name) for name in EXAMPLES)]:  # type: ignore[attr-defined]
        for option in command.params:
            for short in (name for name in option.opts if re.fullmatch("-[a-z]", name)):
                found.setdefault(short, set()).add((option.opts[0], getattr(option, "help", None)))
    assert {"-a", "-y", "-v"} <= found.keys() and all(len(meanings) == 1 for meanings in found.values()), found


def test_help_files_commands_by_what_they_are_for(run: Run) -> None:
    panels = {name_of(place): panel for panel, places in COMMANDS.items() for place in places}
    assert (panels["demo"], panels["views"], panels["doctor"]) == ("To try it", "In SQL", "Roots")
    lines = help_of(run).splitlines()
    assert "demo" in lines[next(n for n, line in enumerate(lines) if "To try it" in line) + 1]


@pytest.mark.parametrize("command", EXAMPLES)
def test_the_examples_of_a_command_are_in_its_help_and_can_be_typed(
    run: Run, command: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("messages.txt").touch()
    shown, group = help_of(run, command), typer.main.get_command(app)
    for example in EXAMPLES[command]:
        assert f"lakequeue {example}" in shown
        name, *args = shlex.split(example)
        assert name == command
        each = group.get_command(None, command)  # type: ignore[attr-defined]
        each.make_context(command, [arg for arg in args if arg != "--json"])  # type: ignore[attr-defined]


# --- questions


def test_delete_queue_asks_as_purge_does(run: Run, root: str, orders: Queue) -> None:
    orders.send("keep")
    for answer in ("n\n", ""):
        asked = run("delete-queue", "orders", input=answer)
        assert asked.exit_code == 2 and "is deleted" not in asked.stdout
        assert "Delete orders with 1 message?" in asked.stderr and "not confirmed" in asked.stderr
    assert orders.counts().visible == 1
    assert run("delete-queue", "orders", input="y\n").exit_code == 0
    assert LakeQueue(root).list_queues() == []


def test_rewind_shows_first_what_it_would_do(run: Run, orders: Queue) -> None:
    orders.send_batch([SendEntry("a"), SendEntry("b")])
    orders.delete_batch([message.receipt_handle for message in orders.receive(2)])
    shown = json.loads(run("rewind", "orders", "-10m", "--dry-run", "--json").stdout)
    assert (shown["messages"], shown["dry_run"]) == (2, True)
    asked = run("rewind", "orders", "--ago", "10m", input="n\n")
    assert asked.exit_code == 2
    assert "Make 2 deleted messages of orders visible again, sent at 20" in asked.stderr
    assert orders.counts().visible == 0
    assert run("rewind", "orders", "10m ago", input="y\n").stdout.endswith("2 messages of orders visible again\n")
    assert run("rewind", "orders", "-10m").stdout == "0 messages of orders visible again\n"  # nothing to ask


def test_a_rewind_by_the_whole_range_goes_as_far_as_it_can_and_says_so(run: Run, orders: Queue) -> None:
    orders.send("a")
    orders.delete(orders.receive()[0].receipt_handle)
    done = run("rewind", "orders", "--ago", "1h", "--yes")
    assert (done.exit_code, done.stdout) == (0, "1 message of orders visible again\n")
    assert "the earliest instant in the rewind range of orders" in done.stderr
    assert run("rewind", "orders", "--ago", "3605", "--yes").exit_code == 1
    assert run("rewind", "orders", "--ago=-5", "--yes").exit_code == 1


def test_redrive_shows_first_what_it_would_do(run: Run, root: str) -> None:
    lake = LakeQueue(root)
    dead = lake.create_queue("dead")
    orders = lake.create_queue("orders", redrive_policy=RedrivePolicy("dead", 1))
    assert run("redrive", "dead", "--yes").stdout == "0 messages of dead moved back\n"  # it is one, though empty
    orders.send_batch([SendEntry("a"), SendEntry("b")])
    orders.receive(2, visibility_timeout=0)
    assert orders.receive(2) == []
    shown = json.loads(run("redrive", "dead", "--dry-run", "--json").stdout)
    assert (shown["messages"], shown["targets"]) == (2, {"orders": 2})
    assert run("redrive", "dead", "--dry-run").stdout == "would move 2 messages to orders from dead\n"
    asked = run("redrive", "dead", "--max", "1", input="n\n")
    assert asked.exit_code == 2 and "Move at most 1 of 2 messages to orders from dead?" in asked.stderr
    lake.create_queue("aside")
    to = run("redrive", "dead", "--to", "aside", input="n\n")
    assert "Move 2 messages to aside from dead?" in to.stderr and dead.counts().visible == 2
    orders.set_attributes(redrive_policy=None)  # its letters know where they came from
    assert run("redrive", "dead", input="y\n").stdout.endswith("2 messages of dead moved back\n")
    assert run("redrive", "dead").exit_code == 1


# --- roots


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("file", "PLACE cannot be a root: PLACE is a file, not a directory"),
        ("file/below", "PLACE cannot be a root: TMP/file is a file, not a directory"),
        ("missing", "PLACE does not exist; creating a queue makes it"),
        ("empty", "PLACE holds no queues; creating a queue makes it a root"),
        ("other", "PLACE holds something else, and no queues"),
        ("s3://id:hidden@bucket/x", "keys are no part of a URI; give them as storage_options"),
        ("ftp://host/x", "unsupported scheme ftp://; use a path, s3://, az://, abfss://, gs://"),
        ("s3://", "the bucket is missing"),
        ("s3:/bucket/x", "a URI begins with s3://"),
        ("file://elsewhere/x", "elsewhere is another machine"),
        ("s3://bucket/x", "there are no credentials"),
        ("az://container/x", "there are no credentials"),
        ("gs://bucket/x", "there are no credentials"),
    ],
)
def test_what_is_wrong_with_a_root_is_told_apart(tmp_path: Path, place: str, told: str, monkeypatch: Any) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").write_text("x")
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    if place.startswith("gs:"):  # the machine's own service, which may or may not be there
        answer = "Error performing GET http://host/computeMetadata/v1/token in 1s - Server returned status: 403"
        monkeypatch.setattr("lakequeue.storage.catalog.Catalog._found", lambda *_: _fail(OSError(answer)))
    if place.startswith("s3://b"):
        monkeypatch.setattr("socket.create_connection", lambda *_, **__: _fail(OSError("no route")))
    path = place if "://" in place or ":" in place else str(tmp_path / place)
    result = CliRunner(env={"LAKEQUEUE_ROOT": None}).invoke(app, ["list", "--root", path])
    assert result.exit_code == (1 if "parameter root" in result.stderr else 3) and result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert told.replace("PLACE", path).replace("TMP", str(tmp_path)) in result.stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == ["empty", "file", "other"]


def _fail(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize(("denied", "told"), [("root", "cannot be read: user"), (".", "cannot be reached: user")])
def test_a_root_without_the_right_to_read_it(tmp_path: Path, denied: str, told: str) -> None:
    place = tmp_path / "open"
    LakeQueue(str(place / "root")).create_queue("orders")
    temporary = Path(tempfile.gettempdir()).resolve()
    for directory in (place, tmp_path, *tmp_path.parents):
        if temporary in directory.resolve().parents:
            directory.chmod(0o755)
    (place / denied).chmod(0o000)
    program = f"import sys; sys.path[:0] = {sys.path!r}; from lakequeue.storage.roots import obstacle; "
    program += f"import os; os.geteuid() or os.seteuid(65534); print(obstacle({str(place / 'root')!r}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    (place / denied).chmod(0o700)
    assert told in done.stdout, done.stderr


# --- completion


def complete(words: str, root: str | None) -> list[str]:
    env = {
        "_LAKEQUEUE_COMPLETE": "complete_bash",
        "COMP_WORDS": f"lakequeue {words}",
        "COMP_CWORD": str(len(words.split(" "))),
        "LAKEQUEUE_ROOT": root,
    }
    result = CliRunner(env=env).invoke(app, [], prog_name="lakequeue")
    assert result.stderr == ""
    return result.stdout.split()


def test_a_shell_completes_names(root: str) -> None:
    for name in ("orders", "orders-eu", "letters"):
        LakeQueue(root).create_queue(name)
    assert complete("counts ord", root) == ["orders", "orders-eu"]
    assert complete(f"counts --root {root} let", None) == ["letters"]
    assert complete("redrive letters --to let", root) == ["letters"]
    assert complete("watch orders let", root) == ["letters"]
    assert complete("create x --profile sqs", root) == ["sqs", "sqs-2018"]
    assert complete("create x --deduplication-scope m", root) == ["message_group"]
    assert complete("set orders -a visib", root) == ["visibility_timeout="]
    assert "delete-queue" in complete("del", root)


@pytest.mark.parametrize("root", ["/nowhere/at/all", "s3://bucket/x", "ftp://x/y", __file__, None])
def test_completion_without_a_usable_root_prints_nothing(root: str | None) -> None:
    assert complete("counts o", root) == []


# --- Ctrl-C


IMPORTING = """
import sys, lakequeue_command

class Told:
    def find_spec(name, *_):
        if name == "lakequeue":
            print("importing", flush=True)

sys.meta_path.insert(0, Told)
lakequeue_command.main()
"""


@pytest.mark.parametrize("after", [0.0, 0.05, 0.2, 0.4])
def test_an_interrupt_while_modules_are_imported_prints_no_trace(tmp_path: Path, after: float) -> None:
    env = os.environ | {"PYTHONPATH": str(Path(lakequeue.__file__).parents[1]), "LAKEQUEUE_ROOT": str(tmp_path)}
    command = [sys.executable, "-c", IMPORTING, "list"]  # `watch` would end well once it has begun
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "importing\n"
        time.sleep(after)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode in (-signal.SIGINT, 130, 3) and out == ""  # 3: it had seen that there is no root
    assert "Traceback" not in err and err.count("\n") <= 1


def test_an_interrupt_before_a_command_begins_prints_no_trace() -> None:
    interrupted = "typer.main.get_command = lambda *_: signal.default_int_handler(2, None)"
    code = f"import lakequeue_command, signal, typer; {interrupted}; lakequeue_command.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_the_command_starts_at_the_module_that_handles_interrupts() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert 'lakequeue = "lakequeue_command:main"' in project and '"src/lakequeue_command.py"' in project
    code = "import lakequeue_command, sys; sys.argv = ['lakequeue', '--version']; lakequeue_command.main()"
    env = os.environ | {"PYTHONPATH": str(Path(lakequeue.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"lakequeue {lakequeue.__version__}\n")


def _interrupted(root: str, args: list[str], until: str, **streams: Any) -> tuple[int, str]:
    """Starts a command, sends SIGINT when its standard error has told this, and returns its code and the rest."""
    env = os.environ | {
        "PYTHONPATH": str(Path(lakequeue.__file__).parents[1]),
        "LAKEQUEUE_ROOT": root,
        "TERM": "xterm",
    }
    program = "import lakequeue_command; lakequeue_command.main()"
    terminal, its_side = pty.openpty()
    try:
        process = subprocess.Popen([sys.executable, "-c", program, *args], env=env, stderr=its_side, **streams)
        os.close(its_side)
        told = b""
        while until.encode() not in told:
            told += os.read(terminal, 1_000)
        process.send_signal(signal.SIGINT)
        rest = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(terminal, 1_000):
                rest += part
        return process.wait(30), rest.decode()
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def test_ctrl_c_ends_a_drain_that_waits(root: str, orders: Queue) -> None:
    LakeQueue(root).create_queue("q.fifo", fifo=True)
    orders.send_batch([SendEntry("a", group_id="g"), SendEntry("b", group_id="g")])
    orders.receive()
    code, told = _interrupted(root, ["drain", "orders", "q.fifo", "--yes", "--wait", "1h"], "waiting for messages")
    assert code == 130 and "interrupted" in told and "Traceback" not in told
    assert orders.counts().visible == 1


def _export(root: str) -> subprocess.Popen[bytes]:
    env = os.environ | {"PYTHONPATH": str(Path(lakequeue.__file__).parents[1]), "LAKEQUEUE_ROOT": root}
    command = [sys.executable, "-c", "import lakequeue_command; lakequeue_command.main()", "export", "orders"]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_ctrl_c_ends_an_export_that_nobody_reads(root: str, orders: Queue) -> None:
    orders.send_batch([SendEntry("x" * 1_000) for _ in range(5_000)])
    with _export(root) as process:
        assert process.stdout is not None and process.stderr is not None
        for _ in range(2):  # with the second line, the first one is counted
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        told = process.stderr.readline().decode()
        process.stdout.close()
        assert process.wait(30) == 130
    assert told.startswith("interrupted (") and told.endswith("written before that)\n")


def test_an_export_whose_reader_has_enough_ends_quietly(root: str, orders: Queue) -> None:
    orders.send_batch([SendEntry("x" * 1_000) for _ in range(1_000)])
    with _export(root) as process:
        assert process.stdout is not None and process.stderr is not None
        assert json.loads(process.stdout.readline())["body"] == "x" * 1_000
        process.stdout.close()
        assert (process.stderr.read(), process.wait(30)) == (b"", 0)


def test_ctrl_c_ends_a_send_from_a_terminal(root: str, orders: Queue) -> None:
    keyboard, its_side = pty.openpty()
    code, told = _interrupted(root, ["send", "orders", "-"], "Ctrl-D ends", stdin=its_side)
    assert code == 130 and "interrupted" in told and "Traceback" not in told
    os.close(keyboard)
    os.close(its_side)


def test_lines_go_to_standard_output_while_a_terminal_shows_progress(
    root: str, orders: Queue, tmp_path: Path
) -> None:
    orders.send_batch([SendEntry(str(number)) for number in range(3)])
    env = os.environ | {"PYTHONPATH": str(Path(lakequeue.__file__).parents[1]), "LAKEQUEUE_ROOT": root}
    terminal, its_side = pty.openpty()
    program = "import lakequeue_command; lakequeue_command.main()"
    command = [sys.executable, "-c", program, "export", "orders"]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=its_side, text=True, timeout=60)
    os.close(its_side)
    os.close(terminal)
    assert [json.loads(line)["body"] for line in done.stdout.splitlines()] == ["0", "1", "2"]


# --- jobs


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["compact.py", "--once"], "error: /nowhere/at/all does not exist; creating a queue makes it"),
        (["compact.py", "--every", "5"], "error: /nowhere/at/all does not exist; creating a queue makes it"),
        (["compact.py"], "either --once or --every"),
        (["compact.py", "--every", "0.5s"], "0.5s is too short; the least is 1 s"),
        (["produce_stream.py", "--every", "soon"], "'soon' is not a duration; write seconds, or 90s"),
        (["consume_batch.py", "--visibility-timeout", "5x"], "'5x' is not a duration"),
    ],
)
def test_jobs_read_the_root_from_the_environment_and_take_durations(
    args: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAKEQUEUE_ROOT", "/nowhere/at/all")
    monkeypatch.setattr(sys, "argv", args)
    with pytest.raises(SystemExit) as ended, monkeypatch.context() as patch:
        patch.setattr(signal, "signal", lambda *_: None)  # those of this process stay as they are
        runpy.run_path(str(Path(__file__).parents[2] / "jobs" / args[0]), run_name="__main__")
    shown = f"{capsys.readouterr().err}{ended.value.code}"
    assert ended.value.code and told in shown and "Traceback" not in shown
