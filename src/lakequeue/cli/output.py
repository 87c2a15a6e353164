"""Prints results and errors. All output passes through ``printable``."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

import typer

from lakequeue.model.secrets import hidden

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.segment import Segment

PIPE_WIDTH = 160
"""Width of tables in characters if standard output is not a terminal."""

# C0 and C1 controls except tab and line feed, line separators, and bidirectional marks, overrides and isolates
_CONTROL = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_AS_IT_IS: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
"""Arguments that turn off rich's markup, because names and texts may contain markup."""


class OutputFailed(OSError):
    """Raised if standard output cannot be written."""


class OutputClosed(OutputFailed):
    """Raised if the reader of standard output has closed it."""


def printable(text: str) -> str:
    """Replaces the characters that control a terminal."""
    return _CONTROL.sub("\ufffd", text)


def write(content: RenderableType) -> None:
    """Writes to standard output, and flushes it. Raises OutputClosed if nobody reads it, else OutputFailed."""
    text = printable(content) if isinstance(content, str) else rendered(content)
    encoding = sys.stdout.encoding or "utf-8"
    if sys.__stdout__ is None:
        raise OutputFailed("standard output is closed")
    try:
        sys.stdout.write(text.rstrip("\n").encode(encoding, "backslashreplace").decode(encoding) + "\n")
        sys.stdout.flush()
    except OSError as error:
        discard(sys.stdout)
        kind = OutputClosed if isinstance(error, BrokenPipeError) else OutputFailed
        raise kind(f"standard output cannot be written: {error.strerror}") from error


def discard(stream: Any) -> None:
    """Redirects a stream to ``os.devnull``, because Python's flush at exit would fail otherwise."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_error(text: str, title: str = "") -> None:
    """Writes a text to standard error, after a red title and without secrets. Ignores a failed write."""
    try:
        typer.echo((typer.style(title, fg="red") + " " if title else "") + printable(hidden(text)), err=True)
    except OSError:
        discard(sys.stderr)


class StderrHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print_error(self.format(record))


def rendered(content: RenderableType) -> str:
    """Renders an object as text for standard output, with colours only for a terminal."""
    out = console()
    with out.capture() as captured:
        out.print(content, crop=False)
    return "\n".join(line.rstrip() for line in captured.get().strip("\n").splitlines())


def console() -> Console:
    # COLUMNS, if set, applies to a pipe, too
    wide = None if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit() else PIPE_WIDTH
    return _console_type()(width=wide, **_AS_IT_IS)


def error_console() -> Console:
    return _console_type()(stderr=True, **_AS_IT_IS)


@cache
def _console_type() -> type[Console]:
    from rich.console import Console

    class Printing(Console):
        """A rich console that passes texts through ``printable``."""

        def render(self, *arguments: Any, **options: Any) -> Iterable[Segment]:
            for segment in super().render(*arguments, **options):
                yield segment if segment.control else segment._replace(text=printable(segment.text))

    return Printing
