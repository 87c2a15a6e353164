"""Entry point of the command ``lakequeue``: Ctrl-C ends it without a stack trace, also while modules are imported.

It is a module of its own because importing the commands takes a few tenths of a second, in which Python would
answer an interrupt with a stack trace.
"""

import gc
import os
import signal
import sys
from typing import Any


def main() -> None:
    """Runs the command line."""
    _open_streams()
    end_by_sigterm()
    handler = signal.getsignal(signal.SIGINT)
    ours = handler is signal.default_int_handler  # else whoever started it ignores the signal
    if ours:
        signal.signal(signal.SIGINT, _ENDS)
    gc.set_threshold(20_000, 20, 20)  # 50 ms of a short command went into collections while modules are imported
    from lakequeue.cli import main as command
    from lakequeue.cli import session

    session.spares_pandas = True
    if ours:
        signal.signal(signal.SIGINT, handler)
    try:
        command()
    except KeyboardInterrupt:  # before the command's own answer to it, or after
        sys.exit(session.INTERRUPTED)
    finally:
        gc.freeze()  # and 50 ms into the last ones, of what the interpreter ends with
        if ours:  # while the interpreter ends
            signal.signal(signal.SIGINT, _ENDS)


def end_by_sigterm() -> None:
    """Lets SIGTERM end the first process of a container, until the command has a handler of its own."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _ENDS)


def _end(number: int, _: Any) -> None:
    os._exit(128 + number)


_ENDS: Any = _end if os.getpid() == 1 else signal.SIG_DFL
"""Handler that ends the process at once: the first one of a container ignores signals with the default action."""


def _open_streams() -> None:
    """Connects streams that the caller closed to nothing, before a file of the root gets their descriptors."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False, encoding="utf-8"))


if __name__ == "__main__":
    main()
