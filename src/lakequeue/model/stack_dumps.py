"""Prints where each thread is, on a signal, so that an operator sees where a handler hangs."""

from __future__ import annotations

import faulthandler
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress

_answering = False


def answer_signal(calls: Callable[[], Iterable[str]]) -> None:
    """Prints the stacks of all threads to standard error on SIGUSR1, unless the program handles SIGUSR1.

    Then prints the lines of ``calls``, which describe the running calls of the handler. They are missing if a
    handler keeps the interpreter busy, or if the main thread does not run.
    """
    global _answering
    number = getattr(signal, "SIGUSR1", None)
    if number is None or sys.__stderr__ is None or signal.getsignal(number) is not signal.SIG_DFL:
        return
    stream = sys.__stderr__.fileno()

    def describe(*_: object) -> None:
        # An error here would end the program. The stream's own lock may be held by the interrupted thread.
        with suppress(Exception), open(stream, "w", encoding="utf-8", errors="replace", closefd=False) as out:
            out.write("\n".join(["", "running handlers, the oldest first:", *calls(), ""]))

    signal.signal(number, describe)
    faulthandler.register(number, sys.__stderr__, all_threads=True, chain=True)
    _answering = True


def answers() -> bool:
    """True if ``kill -USR1`` prints the stacks of this process. It ends a process that does not answer."""
    return _answering
