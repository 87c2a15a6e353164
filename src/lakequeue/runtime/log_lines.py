"""Records of the log as lines of JSON."""

from __future__ import annotations

import json
import logging

from lakequeue.model.clock import Clock


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON in ASCII.

    Args:
        stacks: include stack traces; otherwise only the exception.
    """

    def __init__(self, clock: Clock, stacks: bool = False) -> None:
        super().__init__()
        self._clock = clock
        self._stacks = stacks

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(self.fields(record))

    def fields(self, record: logging.LogRecord) -> dict[str, str]:
        """What a line says, by name: ``error`` and ``stack`` only if there are any."""
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
        return line
