"""What surrounds every command: the global options, and how an error becomes one line and an exit code."""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import attrs
import typer
from typer.core import TyperGroup

from lakequeue.cli.output import ReaderGone, Told, tell, write
from lakequeue.errors import InvalidOptions, QueueClientError, QueueServiceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import RenderableType

    from lakequeue import LakeQueue

DONE, REFUSED, USAGE, ENVIRONMENT, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit codes."""


@attrs.define
class Session:
    """One run of the command: its global options, and what it had done when it was stopped."""

    root: str | None = None
    root_mode: int | None = None
    region: str = "local"
    json: bool = False
    verbose: bool = False
    done: str = ""
    """Effects that stay even if the command fails now, for its error line: ``3 messages were sent``."""

    def lake(self, spark: SparkSession | None = None) -> LakeQueue:
        """The root's queues.

        Raises:
            typer.BadParameter: no root is given.
        """
        if not self.root:
            usage("no root: give --root DIR before the command, or set LAKEQUEUE_ROOT")
        from lakequeue import LakeQueue

        if self.root_mode is None:
            return LakeQueue(self.root, spark=spark, region=self.region)
        os.umask(0o777 & ~self.root_mode)  # whom the root is shared with shall read and write what is in it
        return LakeQueue(self.root, spark=spark, region=self.region, root_mode=self.root_mode)

    def answer(self, document: object, shown: RenderableType) -> None:
        """Prints a result: the document with ``--json``, else the text or table for people."""
        write(_json(document, indent=2) if self.json else shown)

    def line(self, document: object) -> None:
        """Prints one of several results as a line of JSON."""
        write(_json(document))

    def note(self, text: str) -> None:
        """Tells people, not programs, something on standard error."""
        if not self.json:
            tell(text)

    def fail(self, status: int, code: str, message: str, details: dict[str, Any] | None = None) -> int:
        """Prints an error as one line, or as an object with ``--json``; returns its exit status."""
        line = " ".join(message.split())
        if self.done:
            line += f" ({self.done} before that)"
        if self.json:
            error = {"code": code, "message": line, "exit_code": status} | (details or {})
            tell(_json({"error": error}))
        elif status == INTERRUPTED:
            tell(line)
        else:
            tell(f"{code}: {line}", title="error:")
        return status


def usage(message: str) -> NoReturn:
    """Refuses the command line as it stands."""
    raise typer.BadParameter(message)


class Commands(TyperGroup):
    """The group of all commands; maps what they raise to the exit codes."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        arguments = sys.argv[1:] if args is None else list(args)
        session = Session()
        logging.lastResort = Told(logging.WARNING)  # warnings where nobody has configured logging
        if "--json" in arguments:  # until the options are parsed, or should that fail
            session.json = True
        try:
            status = super().main(
                arguments, "lakequeue", complete_var, False, windows_expand_args, obj=session, **extra
            )
            if status == INTERRUPTED:  # typer's answer to Ctrl-C
                raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            status = explained(session, error)
        except Exception as error:
            status = explained(session, error)
        if standalone_mode:
            sys.exit(status or DONE)
        return status


def explained(session: Session, error: BaseException) -> int:
    """Reports an error; returns the exit status."""
    wrong_usage = getattr(error, "format_message", None)  # what typer finds by itself, or `usage` found
    if session.verbose and not wrong_usage and not isinstance(error, KeyboardInterrupt):
        tell("".join(traceback.format_exception(error)).rstrip())
    match error:
        case KeyboardInterrupt():
            return session.fail(INTERRUPTED, "interrupted", "interrupted")
        case ReaderGone():
            _forget_output()
            return ENVIRONMENT
        case QueueServiceError():
            details = {
                name: getattr(error, name)
                for name in ("http_status", "sender_fault", "request_id", "cmq_code")
                if getattr(error, name) is not None
            }
            return session.fail(REFUSED, error.code, error.message, details)
        case QueueClientError():
            return session.fail(ENVIRONMENT, "storage", error.message, {"outcome_unknown": error.outcome_unknown})
        case InvalidOptions():
            return session.fail(USAGE, "usage", str(error))
        case typer.Abort():  # no answer, or no, to a question; the prompt's line may still be open
            session.note("")
            return session.fail(USAGE, "usage", "not confirmed, nothing was done")
        case OSError():
            return session.fail(ENVIRONMENT, "environment", str(error))
    if wrong_usage:
        return session.fail(USAGE, "usage", _usage_text(error, wrong_usage()))
    return session.fail(
        ENVIRONMENT, "internal", f"{type(error).__name__}: {error}; run with -v for the stack trace"
    )


def _usage_text(error: BaseException, text: str) -> str:
    text = text.removeprefix("Invalid value: ").rstrip(".")
    context = getattr(error, "ctx", None)
    path = "lakequeue" if context is None else context.command_path
    option = getattr(error, "option_name", None)
    if path.startswith("lakequeue ") and option in (
        "--root",
        "--root-mode",
        "--json",
        "--region",
        "--verbose",
        "-v",
    ):
        return f"{option} belongs before the command"
    return f"{text}; see {path} --help"


def _forget_output() -> None:
    """Keeps Python from complaining at exit that it cannot flush into a closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _json(document: object, indent: int | None = None) -> str:
    from lakequeue.cli.render import jsonable

    return json.dumps(document, default=jsonable, indent=indent).replace("\x7f", "\\u007f")
