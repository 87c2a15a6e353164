"""Prints where each thread is, on a signal, so that an operator sees where a handler hangs."""

from __future__ import annotations

import faulthandler
import signal
import sys

_answering = False


def answer_signal() -> None:
    """Prints the stacks of all threads to standard error on SIGUSR1, unless the program handles SIGUSR1."""
    global _answering
    number = getattr(signal, "SIGUSR1", None)
    if number is None or sys.__stderr__ is None or signal.getsignal(number) is not signal.SIG_DFL:
        return
    faulthandler.register(number, sys.__stderr__, all_threads=True)
    _answering = True


def answers() -> bool:
    """True if ``kill -USR1`` prints the stacks of this process. It ends a process that does not answer."""
    return _answering
