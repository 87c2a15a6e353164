"""The command line as transcripts: what is typed and all that comes back, compared as a whole.

Files in ``transcripts`` hold sections. A section has a title of its behaviour, the ids of rules that it shows, and
lines as a shell shows them:

- ``$ lakequeue …`` is run in this process, on a root of the section's own. Before it may stand variables of the
  environment and ``printf 'one\\n' |``. Behind it may stand ``| grep 'a|b'``, which chooses lines of what it
  prints, or ``| jq '.a.b, .c[].d'``, which chooses parts of its JSON. JSON is shown on one line, tables without
  their rules, and no empty lines.
- ``% lakequeue …`` is run as well and must succeed; what it prints is shown elsewhere.
- ``$ printf 'one\\n' > FILE`` and ``$ cat FILE`` write and show a file of the section's directory.
- ``$ sleep 5m`` moves the clock, which stands still otherwise; a command that waits moves it itself.
- lines that begin with ``!`` are standard error, of a command that ends with code 0; ``1!``, ``2!``, ``3!`` of one
  that ends with that code. Other lines are standard output.
- ``#`` begins a comment.

``ID-1``, ``HANDLE-1``, ``SEQUENCE-1`` … stand for message ids, receipt handles and sequence numbers in the order
in which they appear, ``ROOT`` and ``HERE`` for the root and its directory, and ``…`` for whatever else varies.
``pytest tests/acceptance/test_transcripts.py --write-transcripts`` writes anew what comes back.
"""

from __future__ import annotations

import json
import re
import shlex
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from lakequeue import client
from lakequeue.cli import app, values
from lakequeue.cli.help import COMMANDS, name_of
from lakequeue.testing import ManualClock

FOLDER = Path(__file__).parent / "transcripts"
IDS = {
    "ID": re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\bMsg-\w{8}\b"),
    "SEQUENCE": re.compile(r"\b1\d{19}\b"),
    "HANDLE": re.compile(r"\b[0-9a-f]{24}x\d+x\d+x[0-9a-f]{64}\b"),
}


class Section(NamedTuple):
    file: Path
    title: str
    rules: tuple[str, ...]
    lines: list[str]


def sections() -> Iterator[Section]:
    for file in sorted(FOLDER.glob("*.txt")):
        for part in re.split(r"^## ", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            head, *lines = part.rstrip("\n").split("\n")
            title, _, rules = head.removesuffix(")").partition(" (")
            yield Section(file, title, tuple(rules.split(", ")) if rules else (), lines)


class SteppingClock(ManualClock):
    """Whoever waits on it is at once where the wait ends."""

    def wait(self, until: datetime, wake: threading.Event) -> None:
        if not wake.is_set():
            self._now = max(self._now, until)


class Shell:
    """Runs the lines of a section."""

    def __init__(self, folder: Path, clock: SteppingClock) -> None:
        self._folder, self._root, self._clock = folder, folder / "root", clock
        self._names: dict[str, str] = {}
        """Names of ids and handles that appeared, by what they stand for."""

    def run(self, line: str) -> list[str]:
        """The lines that come back."""
        for what, name in self._names.items():
            line = re.sub(rf"\b{name}\b", what, line)
        line = re.sub(r"\bROOT\b", str(self._root), re.sub(r"\bHERE\b", str(self._folder), line))
        typed, pipe, chosen = re.fullmatch("(.*?)(?: \\| (grep|jq) (.*))?", line).groups()  # type: ignore[union-attr]
        words, given = shlex.split(typed), None
        if words[0] == "printf":
            text = words[1].encode("latin-1", "backslashreplace").decode("unicode_escape")
            if words[2] == ">":
                (self._folder / words[3]).write_text(text, encoding="utf-8")
                return []
            given, words = text, words[3:]
        if words[0] == "cat":
            return self._named((self._folder / words[1]).read_text(encoding="utf-8"))
        if words[0] == "sleep":
            self._clock.advance(timedelta(seconds=values.duration(words[1])))
            return []
        code, out, err = self._run_command(words, given)
        if pipe == "jq" and out:
            parts = [part for path in chosen.strip("'").split(", ") for part in at(json.loads(out), path)]
            out = "".join(f"{json.dumps(part)}\n" for part in parts)
        elif "--json" in words and out.startswith(("[\n", "{\n")):
            out = json.dumps(json.loads(out))
        pattern = shlex.split(chosen)[0] if pipe == "grep" else ""
        shown = [each for each in self._named(out) if re.search(pattern, each)]
        return shown + ([f"{code or ''}! {each}" for each in self._named(err)] or [f"{code}!"] * bool(code))

    def _run_command(self, words: list[str], given: str | None) -> tuple[int, str, str]:
        env: dict[str, str | None] = {"LAKEQUEUE_ROOT": str(self._root)}
        while "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            env[name] = value or None
        assert words.pop(0) == "lakequeue"
        before = self._commits()
        done = CliRunner(env=env).invoke(app, words, input=given)
        if done.exit_code and not done.stdout and words[0] != "drain":  # which pauses, and hands back
            assert self._commits() == before, "what is refused changes nothing"
            self._refused_in_json(words, given, env, done)
        return done.exit_code, done.stdout, done.stderr

    def _refused_in_json(self, words: list[str], given: str | None, env: dict[str, Any], text: Any) -> None:
        """The error of a command that did nothing is the same in JSON."""
        if "--json" not in words and text.stderr.count("\n") == 1:
            done = CliRunner(env=env).invoke(app, ["--json", *words], input=given)
            error = json.loads(done.stderr)["error"]
            assert (done.exit_code, done.stdout, error["exit_code"]) == (text.exit_code, "", text.exit_code)
            assert text.stderr == f"error: {error['code']}: {error['message']}\n"

    def _commits(self) -> int:
        return sum(1 for _ in self._root.rglob("_delta_log/*.json"))

    def _named(self, text: str) -> list[str]:
        """Lines in which names stand for ids; in tables, with spaces that keep columns in their places."""
        for kind, pattern in IDS.items():
            for found in pattern.findall(text):
                number = sum(name.startswith(kind) for name in self._names.values()) + 1
                self._names.setdefault(found, f"{kind}-{number}")
        for what, name in self._names.items():
            text = re.sub(rf"{what}(?=  )", name.ljust(len(what)), text).replace(what, name)
        text = text.replace(str(self._root), "ROOT").replace(str(self._folder), "HERE")
        return [line.rstrip() for line in text.splitlines() if line.strip(" ─")]


def at(document: Any, path: str) -> list[Any]:
    """The parts of a document at a path such as ``.a[].b``."""
    found = [document]
    for name in re.findall(r"-?\w+|\[\]", path):
        found = [
            part
            for each in found
            for part in (each if name == "[]" else [each[int(name) if isinstance(each, list) else name]])
        ]
    return found


def play(section: Section, shell: Shell) -> list[str]:
    """The lines of a section as they are when its commands are run."""
    played: list[str] = []
    for line in section.lines:
        if line.startswith(("$ ", "% ", "#")):
            played.append(line)
            back = [] if line[0] == "#" else shell.run(line[2:])
            assert line[0] != "%" or not any(re.match(r"\d!", each) for each in back), back
            played += back if line[0] == "$" else []
    return played


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    clock = SteppingClock()
    monkeypatch.setattr(client, "SystemClock", lambda: clock)
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path, clock)


ALL = list(sections())


@pytest.mark.parametrize(
    "section", [pytest.param(each, marks=pytest.mark.spec(*each.rules), id=each.title) for each in ALL]
)
def test_commands_print_what_the_transcript_says(
    section: Section, shell: Shell, request: pytest.FixtureRequest
) -> None:
    played, written = "\n".join(play(section, shell)), "\n".join(section.lines).rstrip()
    if re.fullmatch(".*".join(map(re.escape, written.split("…"))), played):
        return
    if request.config.getoption("--write-transcripts"):
        whole = section.file.read_text(encoding="utf-8")
        assert whole.count(written) == 1
        section.file.write_text(whole.replace(written, played), encoding="utf-8")
    assert played == written


def test_the_page_of_the_command_line_has_every_command_and_transcripts_have_most() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    names = {name_of(place) for places in COMMANDS.values() for place in places}
    assert {name for name in names if not re.search(rf"`{name}[` ]", page)} == set()
    shown = {word for each in ALL for line in each.lines if line[:1] in "$%" for word in line.split()}
    processes = {"consume", "serve", "demo"}
    others = {"deploy-files", "erase", "relay", "upgrade"}  # tests/conformance, test_deploy.py, test_cli_relay.py
    assert names - shown == processes | others
