"""What the command prints: nothing that a terminal would obey, whoever wrote it."""

from __future__ import annotations

import ast
import logging
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import lakequeue.cli
from command_table import COMMANDS
from insides import place_of
from lakequeue import AttributeValue, Consumer, Context, LakeQueue, Message, Queue
from lakequeue.cli import app
from lakequeue.cli.output import print_error, printable
from lakequeue.storage import layout

# what makes colours, moves the cursor, ends lines, and turns text around
HOSTILE = "\x1b[31m\x9b31m\x85\u2028\u202e\u2066\u200f\u061c\x7f\r\b"
ALLOWED = "\x9b31m\x85\u2028\u202e\u2066\u200f\u061c\x7f"
"""What of it a message may hold."""
OBEYED = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    queue = LakeQueue(str(tmp_path / "root")).create_queue("orders", tags={f"a{ALLOWED}": f"b{ALLOWED}"})
    attributes = {"kind": AttributeValue(f"String.x{ALLOWED}", f"1{ALLOWED}\n  body      forged")}
    queue.send(f"body{ALLOWED}\n  handle    forged", attributes=attributes)
    return queue


def run(queue: Queue, *arguments: str) -> str:
    """All that a command prints."""
    result = CliRunner(env={"LAKEQUEUE_ROOT": None}).invoke(app, ["--root", place_of(queue), *arguments])
    return result.stdout + result.stderr


def test_the_filter_knows_what_terminals_obey():
    assert printable(f"a{HOSTILE}b") == "a\ufffd[31m\ufffd31m" + "\ufffd" * 9 + "b"
    assert printable("é\t中\n\U0001f600 שלום") == "é\t中\n\U0001f600 שלום"
    assert not OBEYED.search(printable("".join(map(chr, range(0x3000)))))


@pytest.mark.parametrize(
    "arguments",
    [
        ["receive", "orders"],
        ["--json", "receive", "orders"],
        ["peek", "orders"],
        ["--json", "peek", "orders"],
        ["show", "orders"],
        ["--json", "show", "orders"],
        ["list"],
        ["counts"],
        ["watch", "--count", "1"],
        ["tag", "orders", f"k{HOSTILE}=v{HOSTILE}"],
        ["peek", "orders", "--where", f"{HOSTILE} = 1"],
        ["peek", "orders", "--where", f"body = '{HOSTILE}'::INT"],
        ["peek", "orders", "--where", "body::INT = 1"],
        ["-v", "peek", "orders", "--where", f"{HOSTILE} = 1"],
        ["--json", "peek", "orders", "--where", f"{HOSTILE} = 1"],
        ["redrive", "orders", "--where", f"{HOSTILE} = 1"],
        ["counts", HOSTILE],
        ["counts", HOSTILE, "--by-priority"],
        ["purge", HOSTILE],
        ["delete", "orders", HOSTILE],
        ["create", f"new{HOSTILE}"],
        ["set", "orders", "-a", f"{HOSTILE}=1"],
        ["rewind", "orders", HOSTILE],
        ["send", "orders", HOSTILE],
        [HOSTILE],
        ["--root", f"/nowhere/{HOSTILE}", "list"],
    ],
    ids=lambda arguments: " ".join(arguments).encode("unicode_escape").decode()[:60],
)
def test_no_command_prints_what_a_terminal_obeys(queue: Queue, arguments: list[str]):
    printed = run(queue, *arguments)
    assert printed and not OBEYED.search(printed)


def test_an_attribute_and_a_body_cannot_pass_for_lines_of_ours(queue: Queue):
    lines = run(queue, "receive", "orders").splitlines()
    assert sum(line.startswith("  handle ") for line in lines) == 1
    assert sum(line.startswith("  body ") for line in lines) == 1
    assert sum(line.endswith("forged") for line in lines) == 2


def test_warnings_pass_the_filter_too(queue: Queue, monkeypatch, capsys):
    run(queue, "list")
    monkeypatch.setattr(logging.getLogger("lakequeue"), "propagate", False)
    logging.getLogger("lakequeue").warning("a move is unfinished: %s", HOSTILE)
    told = capsys.readouterr().err
    assert "a move is unfinished" in told and not OBEYED.search(told)
    print_error("text", title="title:")
    assert capsys.readouterr().err == "title: text\n"


def test_there_is_no_other_way_to_print():
    folder = Path(lakequeue.cli.__file__).parent
    allowed = {
        ("app.py", "typer.echo"): 2,  # the version, and the help
        ("output.py", "typer.echo"): 1,
        ("output.py", "sys.stdout.write"): 1,
        ("output.py", "out.print"): 1,
        ("session.py", "typer.confirm"): 1,
        ("job.py", "print"): 1,  # two numbers, in the output of spark-submit
        ("demo.py", "console.print"): 2,  # a console of output.py
        ("demo_spark.py", "console.print"): 10,
        ("demo_workers.py", "console.print"): 8,
    }
    found: dict[tuple[str, str], int] = {}
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                if re.search(
                    r"(^|\.)(print|echo|secho|confirm|prompt|Console|print_exception)$|std(out|err)\.write", name
                ):
                    found[path.name, name] = found.get((path.name, name), 0) + 1
    assert found == allowed


@pytest.mark.parametrize("named", ["[/x]", "[link=https://other.example]x[/link]", ":smile:"])
@pytest.mark.parametrize(
    "command",
    [
        *("doctor", "check", "repair --all", "peek orders", "export orders", "receive orders", "upgrade"),
        *("counts", "show orders", "compact", "list", "watch --count 1", "purge orders --yes"),
    ],
)
def test_what_looks_like_markup_is_text(queue: Queue, named: str, command: str):
    messages = Path(layout.messages_path(place_of(queue), queue.key, 0))
    entry = messages / "_delta_log/00000000000000000001.json"
    entry.write_text(re.sub(r'"path": ?"[^"]*"', f'"path":"{named}"', entry.read_text()))
    told = run(queue, *command.split())
    assert "Traceback" not in told and "MarkupError" not in told
    assert named in told or command in ("counts", "show orders", "compact", "upgrade", "watch --count 1")


NAMED = "[b]x[/x]"
"""A name that ends rich with an error where it takes it for markup."""


@pytest.fixture
def named(tmp_path: Path) -> Queue:
    """A queue whose tags, groups, messages, consumer and reasons of failures are named so."""
    lake = LakeQueue(f"{tmp_path}/\u202eroot")
    lake.create_queue("dead")
    queue = lake.create_queue("orders", tags={NAMED: NAMED}, dead_letter_queue="dead", max_receive_count=1)
    attributes = {"kind": AttributeValue(f"String.{NAMED}", f"{NAMED}{ALLOWED}")}

    def fail(message: Message, context: Context) -> None:
        raise ValueError(f"{NAMED}{ALLOWED}")

    def send() -> None:
        queue.send(f"{NAMED}{ALLOWED}", attributes=attributes, group_id=NAMED)

    send()
    Consumer(queue, fail, name=NAMED).run(until_empty=True)
    send()
    queue.receive(1, consumer=NAMED, visibility_timeout=600)
    send()
    return queue


@pytest.mark.parametrize(("arguments", "shown"), COMMANDS.items(), ids=COMMANDS)
def test_a_name_is_text_whatever_prints_it(named: Queue, arguments: str, shown: bool):
    places = {"root": place_of(named), "name": NAMED}
    given = [each.replace("&", " ").format(**places) for each in arguments.split()]
    told = run(named, *given)
    assert not OBEYED.search(told) and "MarkupError" not in told
    assert not shown or NAMED in told


def test_every_command_is_tried_with_such_a_name():
    tried = {each.removeprefix("-v ").split()[0] for each in COMMANDS}
    assert tried == set(typer.main.get_command(app).commands) - {"demo", "serve"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "root", ["s3:/id:s3cr3t@box/r", "S3://id:s3/cr3t@box/r", "az:id:s3cr3t@box", "http:/u:s3cr3t@h"]
)
@pytest.mark.parametrize(
    "arguments", ["list", "--json list", "-v list", "doctor", "-v --json check", "copy s3:/x:s3cr3t@b"]
)
def test_no_error_shows_the_keys_of_a_root(root: str, arguments: str):
    for by in ["--root", root, *arguments.split()], [*arguments.split(), root]:
        result = CliRunner().invoke(app, by, env={"LAKEQUEUE_ROOT": root})
        assert result.exit_code != 0 and "cr3t" not in result.output + result.stderr
