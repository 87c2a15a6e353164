"""Global options, output and exit codes of a command."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import attrs
import typer

from lakequeue.cli.output import OutputFailed, print_error, printable, rendered, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import RenderableType

    from lakequeue import LakeQueue, Queue

DONE, REFUSED, USAGE, ENVIRONMENT, INTERRUPTED = 0, 1, 2, 3, 130

spares_pandas = False
"""True to open roots without importing pandas. False once a user's code, which may need pandas, was imported."""


@attrs.define
class Session:
    """Global options and output of a command. ``done`` describes the work that was done before an error."""

    root: str | None = None
    root_mode: int | None = None
    storage_options: dict[str, str] = attrs.field(factory=dict, repr=False)
    network_file_system: bool = False
    durability: str | None = None
    poll_interval: float | None = None
    region: str = "local"
    json: bool = False
    verbose: bool = False
    done: str = ""
    flags: dict[str, str] = attrs.field(factory=dict)
    """Maps Python names of the command's options to their flags."""
    prefix: str = "lakequeue"
    """Beginning of the commands that are printed, with root and region of the command line."""

    def pasted(self, command: str) -> str:
        """Returns a command of lakequeue with ``prefix``, ready to paste. Returns other commands unchanged."""
        first, _, rest = command.partition(" ")
        return f"{self.prefix} {rest}" if first == "lakequeue" else command

    def with_root(self, text: str) -> str:
        """Returns a text whose commands of lakequeue in backticks are ready to paste."""
        return re.sub("`(lakequeue [^`]+)`", lambda found: f"`{self.pasted(found[1])}`", text)

    def spelled(self, text: str) -> str:
        """Returns an error text with flags of the command instead of Python's names of options, and with commands
        of lakequeue in backticks that are ready to paste.
        """
        text = self.with_root(text)

        def flag(found: re.Match[str]) -> str:
            name, quoted, value = found.groups()
            if name not in self.flags:
                return found[0]
            return f"{self.flags[name]} {quoted or value}" if quoted or value else self.flags[name]

        # one word is a name only before = and at the beginning of a problem
        names = r"[a-z]+(?:_[a-z]+)+|[a-z]+(?==)|(?:(?<=^)|(?<=; ))[a-z]+(?=: )"
        return re.sub(rf"""(?<![\w./-])({names})(?![\w/-]|\.\w)(?:="(\w+)"|=(\w+))?""", flag, text)

    def lake(self, spark: SparkSession | None = None) -> LakeQueue:
        """Opens the root. Raises typer.BadParameter if no root is given."""
        if not self.root:
            usage("no root: give --root DIR, or set LAKEQUEUE_ROOT")
        from lakequeue import LakeQueue

        if spares_pandas and spark is None:
            _spare_pandas()
        if self.root_mode is not None:
            os.umask(0o777 & ~self.root_mode)  # every user of the root can read and write its files
        return LakeQueue(
            self.root,
            spark=spark,
            region=self.region,
            root_mode=0o700 if self.root_mode is None else self.root_mode,
            storage_options=self.storage_options,
            network_file_system=self.network_file_system,
            durability=self.durability,  # type: ignore[arg-type]  # checked there
            poll_interval=self.poll_interval,
        )

    def queue(self, name: str) -> Queue:
        """Opens a queue. Raises QueueDoesNotExist with a hint to similar names."""
        return self.lake().queue(name)

    def ask(self, question: str) -> None:
        """Asks a question on standard error. Raises typer.Abort unless the answer is yes."""
        typer.confirm(printable(question), abort=True, err=True)

    def answer(self, document: object, shown: RenderableType) -> None:
        """Prints a result: a JSON document with ``--json``, else a text or table."""
        write(json_text(document, indent=2) if self.json else shown)

    def changed(self, document: object, shown: RenderableType) -> bool:
        """Prints the result of a change. If standard output fails, uses standard error and returns False."""
        try:
            self.answer(document, shown)
        except OutputFailed as error:
            self.note(f"{error}; done all the same:")
            print_error(json_text(document) if self.json else shown if isinstance(shown, str) else rendered(shown))
            return False
        return True

    def line(self, document: object) -> None:
        write(json_text(document))

    def note(self, text: str) -> None:
        """Prints a note on standard error, but nothing with ``--json``."""
        if not self.json:
            print_error(text)

    def note_pauses(self, queue: Queue) -> None:
        from lakequeue.entry_verbs import settings

        for pause in settings(queue).pauses:
            self.note(pause.advice(queue.name))

    def fail(self, status: int, code: str, message: str, details: dict[str, Any] | None = None) -> int:
        """Prints an error as one line, or as JSON with ``--json``. Returns the exit code."""
        line = " ".join(message.split())
        if self.done:
            line += f" ({self.done} before that)"
        if self.json:
            error = {"code": code, "message": line, "exit_code": status} | (details or {})
            print_error(json_text({"error": error}))
        elif status == INTERRUPTED:
            print_error(line)
        else:
            print_error(f"{code}: {line}", title="error:")
        return status


class _NoPandas:
    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


class CommandContext(typer.Context):
    obj: Session


def _spare_pandas() -> None:
    """Keeps Arrow from importing pandas, which takes 0.17 s."""
    import pyarrow as pa

    sys.meta_path.insert(0, _NoPandas)
    pa.array([])
    sys.meta_path.remove(_NoPandas)


def usage(message: str) -> NoReturn:
    """Always raises typer.BadParameter. ``message`` says what is wrong in the command line."""
    raise typer.BadParameter(message)


def json_text(document: object, indent: int | None = None) -> str:
    """Returns a document as JSON. If ``indent`` is None, the JSON is one line."""
    from lakequeue.cli.documents import jsonable

    return json.dumps(document, default=jsonable, indent=indent).replace("\x7f", "\\u007f")
