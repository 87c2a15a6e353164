"""What the server writes on standard error: lines of JSON."""

from __future__ import annotations

import json
import logging

from lakequeue.model.clock import Clock


class JsonLines(logging.Formatter):
    """A record as one line of JSON in ASCII.

    Args:
        stacks: whether stack traces are told, or only the exception that ended them.
    """

    def __init__(self, clock: Clock, stacks: bool = False) -> None:
        super().__init__()
        self._clock = clock
        self._stacks = stacks

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": self._clock.now().isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line["error"] = f"{type(error).__name__}: {error}"
            if self._stacks:
                line["stack"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure(clock: Clock, access_log: bool, stacks: bool) -> None:
    """Has this process log to standard error: warnings and errors of everything, and requests if asked for."""
    errors = logging.StreamHandler()
    errors.setFormatter(JsonLines(clock, stacks))
    logging.basicConfig(level=logging.WARNING, handlers=[errors], force=True)
    requests = logging.getLogger("lakequeue.access")
    lines = logging.StreamHandler()
    lines.setFormatter(logging.Formatter("%(message)s"))
    requests.handlers, requests.propagate = [lines], False
    requests.setLevel(logging.INFO if access_log else logging.WARNING)
