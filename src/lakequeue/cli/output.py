"""What the command prints: all of it passes `printable`, plain text here, and what rich draws in its console."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.segment import Segment

PIPE_WIDTH = 160
"""Columns of a table where no terminal sets the width."""

# controls of C0 and C1 but tab and line feed; separators of lines; marks, overrides and isolates of direction
_OBEYED = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class ReaderGone(Exception):
    """Whoever read standard output has closed it."""


def printable(text: str) -> str:
    """A text without the characters that a terminal would obey instead of showing them."""
    return _OBEYED.sub("\ufffd", text)


def write(content: RenderableType) -> None:
    """Writes a text, or what rich draws, to standard output, and does not return before it has left this process.

    Raises:
        ReaderGone: nobody reads it any more.
    """
    text = printable(content) if isinstance(content, str) else rendered(content)
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.rstrip("\n").encode(encoding, "backslashreplace").decode(encoding) + "\n")
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise ReaderGone from error


def tell(text: str, title: str = "") -> None:
    """Writes a text to standard error, after a title in red."""
    typer.echo((typer.style(title, fg="red") + " " if title else "") + printable(text), err=True)


class Told(logging.Handler):
    """Writes records to standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        tell(self.format(record))


def rendered(content: RenderableType) -> str:
    """What rich makes of it for standard output: colours only on a terminal, no line padded."""
    out = console()
    with out.capture() as captured:
        out.print(content)
    return "\n".join(line.rstrip() for line in captured.get().strip("\n").splitlines())


def console() -> Console:
    """Rich on standard output."""
    return _console_type()(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)


def error_console() -> Console:
    """Rich on standard error."""
    return _console_type()(stderr=True, highlight=False)


@cache
def _console_type() -> type[Console]:
    from rich.console import Console

    class Printing(Console):
        """Draws nothing that a terminal would obey but its own colours and movements."""

        def render(self, *arguments: Any, **options: Any) -> Iterable[Segment]:
            for segment in super().render(*arguments, **options):
                yield segment if segment.control else segment._replace(text=printable(segment.text))

    return Printing
