"""The command ``export``: writes the messages of a queue as JSON Lines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from lakequeue.cli import lines, render
from lakequeue.cli.options import Name, Parameter, Where, option
from lakequeue.cli.output import OutputClosed
from lakequeue.cli.session import CommandContext, Session, json_text, usage
from lakequeue.errors import QueueClientError
from lakequeue.model.arguments import Condition
from lakequeue.model.states import STORED

if TYPE_CHECKING:
    from collections.abc import Callable

_STATES = ", ".join(STORED)


def export(
    ctx: CommandContext,
    queue: Name,
    out: Path | None = option(None, "File to write; standard output if not given.", "FILE", dir_okay=False),
    state: list[str] | None = option(
        None,
        f"Only messages in this state: {_STATES}; repeatable.",
        "STATE",
        autocompletion=lambda: list(STORED),
    ),
    where: Where = None,
    parameter: Parameter = None,
) -> None:
    """Write messages as JSON Lines without receiving them; send --lines FILE --jsonl sends them."""
    from lakequeue import entry_verbs

    wrong = [each for each in state or () if each not in STORED]
    if wrong:
        usage(f"--state {wrong[0]}: must be one of {_STATES}")
    # a device, a pipe, or a link to either, which the file would replace
    if out is not None and ((out.exists() and not out.is_file()) or os.path.realpath(out.parent) == "/dev"):
        usage(f"--out {out}: must be a regular file; without --out, lines go to standard output")
    source = ctx.obj.queue(queue)
    condition = where
    if state:
        # double: inside single brackets, "false) OR (true" would undo the states
        condition = f"state IN ({', '.join(repr(each) for each in state)})" + (
            f" AND (({where}\n))" if where else ""
        )
    count = 0
    # a bar would disturb lines on a terminal
    bar = nullcontext(lambda *_: None) if out is None else render.progress("exporting", None)
    with _lines(ctx.obj, out) as write, bar as advance:
        for message in entry_verbs.export(source, Condition.of(condition, parameter or ()), None):
            write(lines.document(message, source.clock.now(), source.fifo))
            count += 1
            ctx.obj.done = f"{render.count(count, 'message')} written"
            if count % 1_000 == 0:
                advance(count, ctx.obj.done)
    if out is not None:
        document = {"queue": queue, "messages": count, "file": str(out)}
        ctx.obj.changed(document, f"wrote {render.count(count, 'message')} of {queue} into {out}")


@contextmanager
def _lines(session: Session, out: Path | None) -> Iterator[Callable[[object], None]]:
    """Yields a function that writes a line to standard output or a file. A file appears once it is complete."""
    if out is None:
        with suppress(OutputClosed):  # `export | head` has read enough
            yield session.line
        return
    part = out.with_name(f"{out.name}.part")
    try:
        part.unlink(missing_ok=True)
        # readable only by its owner; follows no link
        with open(part, "x", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            try:
                yield lambda document: file.writelines([json_text(document), "\n"])
                file.flush()
                if not _is_at(part, file):
                    raise QueueClientError(f"another export has begun to write {out}; this one is given up")
                part.replace(out)
            finally:
                if _is_at(part, file):
                    part.unlink()
    except OSError as error:
        if str(error.filename) == str(part):
            error.filename = str(out)  # the path that the user named
        raise


def _is_at(path: Path, file: IO[str]) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    return False
