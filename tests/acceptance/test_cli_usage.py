"""How commands are written: durations, sizes, instants, help, roots, completion; and the options of jobs."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import typer
from typer import rich_utils
from typer.testing import CliRunner

from acceptance.commands import Run
from lakequeue import LakeQueue, Queue
from lakequeue.cli import app, values
from lakequeue.cli.help import COMMANDS, name_of

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


@pytest.mark.parametrize("far", ["nan", "inf", "1e300", "99999999999999999999999999"])
@pytest.mark.parametrize(
    "command",
    [
        *("rewind orders --yes --ago=", "reschedule orders x --in=", "drain orders x --wait=", "watch --every="),
        *("plot orders --out x.png --hours=", "plot orders --out x.png --since=-", "sql 'SELECT 1' --as-of=-"),
    ],
)
def test_a_time_that_is_no_instant_is_refused_by_the_name_of_its_option(run: Run, command: str, far: str) -> None:
    done = run(*shlex.split(command + far))
    option = command.split()[-1].partition("=")[0]
    assert done.exit_code == 2 and option in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


# --- help

EXAMPLES = {name_of(place): examples for places in COMMANDS.values() for place, examples in places.items()}


def help_of(run: Run, *command: str) -> str:
    return str(run(*command, "--help", COLUMNS="100").stdout)


@pytest.mark.parametrize("columns", [60, 80])
def test_the_help_of_every_command_fits_and_shows_no_types_of_python(
    run: Run, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rich_utils, "MAX_WIDTH", columns)  # typer reads the environment when it is imported
    for command in ["", *EXAMPLES]:
        shown = run(*command.split(), "-h").stdout
        assert max(map(len, shown.splitlines())) <= columns
        if columns == 80:
            assert "Usage: lakequeue" in shown and not re.search("<(?!INSTANT)[a-zA-Z]+>", shown), shown
            assert not command or not re.search(r"…|\{|\[\[", shown), shown
    assert re.search("--prefix +PREFIX +Only names", run("list", "-h").stdout)


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


def test_a_rewind_by_the_whole_range_goes_as_far_as_it_can_and_says_so(run: Run, orders: Queue) -> None:
    orders.send("a")
    orders.delete(orders.receive()[0].receipt_handle)
    done = run("rewind", "orders", "--ago", "1h", "--yes")
    assert (done.exit_code, done.stdout) == (0, "1 message of orders visible again\n")
    assert "the earliest instant in the rewind range of orders" in done.stderr
    assert run("rewind", "orders", "--ago", "3605", "--yes").exit_code == 1
    assert run("rewind", "orders", "--ago=-5", "--yes").exit_code == 1


# --- roots


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("file", "PLACE cannot be a root: PLACE is a file, not a directory"),
        ("file/below", "PLACE cannot be a root: TMP/file is a file, not a directory"),
        ("missing", "PLACE does not exist (is its volume mounted, is the path right?); creating a queue makes it"),
        ("empty", "PLACE holds no queues; creating a queue makes it a root"),
        ("other", "PLACE holds something else, and no queues"),
        ("s3://id:hidden@bucket/x", "keys are no part of a URI; give them as storage_options"),
        ("ftp://host/x", "unsupported scheme ftp://; use a path, s3://, az://, abfss://, gs://"),
        ("s3://", "the bucket is missing"),
        ("s3:/bucket/x", "a URI begins with s3://"),
        ("file://elsewhere/x", "elsewhere is another machine"),
        ("file://id:hidden@elsewhere/x", "Reason: elsewhere is another machine"),
        ("s3://bucket/x", "there are no credentials"),
        ("az://container/x", "there are no credentials"),
        ("gs://bucket/x", "there are no credentials"),
    ],
)
def test_errors_distinguish_the_problems_of_a_root(
    tmp_path: Path, place: str, told: str, monkeypatch: Any
) -> None:
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


# --- jobs


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["compact.py", "--once"], "error: storage: /nowhere/at/all does not exist"),
        (["compact.py", "--every", "5"], "error: storage: /nowhere/at/all does not exist"),
        (["compact.py"], "either --once or --every"),
        (["compact.py", "--every", "0.5s"], "'--every': 0.5s is too short; the least is 1 s"),
        (["compact.py", "--every", "inf"], "'--every': inf is too long; the most is 36500d"),
        (["compact.py", "--once", "--engine", "fast"], "'fast' is not one of 'auto', 'point', 'spark'"),
        (["produce_stream.py", "--every", "soon"], "'soon' is not a duration; write seconds, or 90s"),
        (["consume_batch.py", "--visibility-timeout", "5x"], "'5x' is not a duration"),
    ],
)
def test_jobs_read_the_root_from_the_environment_and_take_durations(
    args: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAKEQUEUE_ROOT", "/nowhere/at/all")
    monkeypatch.setattr(sys, "argv", args)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(Path(__file__).parents[2] / "jobs" / args[0]), run_name="__main__")
    shown = capsys.readouterr().err
    assert ended.value.code == (3 if "/nowhere" in told else 2), shown
    assert told in shown and len(shown.splitlines()) == 1, shown
