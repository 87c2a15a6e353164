"""Prints the stack of each thread when the process gets a signal. The stacks show where a handler hangs."""

from __future__ import annotations

import faulthandler
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress

_answering = False


def answer_signal(calls: Callable[[], Iterable[str]]) -> None:
    """Makes SIGUSR1 print the stacks of all threads to standard error. Does nothing if the program handles SIGUSR1
    itself.

    After the stacks, the signal prints the lines that ``calls`` returns, which describe the running calls of the
    handler. These lines are missing if a handler keeps the interpreter busy, or if the main thread does not run.
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
    """True if ``kill -USR1`` prints the stacks of this process. If False, the signal may end the process."""
    return _answering
