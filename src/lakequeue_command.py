"""Entry point of the command ``lakequeue``: Ctrl-C ends it without a stack trace, also while modules are imported.

It is a module of its own because importing the commands takes a few tenths of a second, in which Python would
answer an interrupt with a stack trace.
"""

import gc
import signal
import sys


def main() -> None:
    """Runs the command line."""
    handler = signal.getsignal(signal.SIGINT)
    ours = handler is signal.default_int_handler  # else whoever started it ignores the signal
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
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
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
