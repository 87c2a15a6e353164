"""Log records as JSON lines."""

from __future__ import annotations

import json
import logging
from typing import Any

from lakequeue.model.clock import Clock
from lakequeue.model.secrets import hidden

FAILED_WITH = ("queue", "messages", "message_id", "receive_count", "consumer")
"""Fields of a log record about a failed handler. ``message_id`` is that of the first of ``messages``."""


class JsonLines(logging.Formatter):
    """Formats a log record as JSON on one ASCII line. If ``stacks`` is True, includes stack traces."""

    def __init__(self, clock: Clock, stacks: bool = False) -> None:
        super().__init__()
        self._clock = clock
        self._stacks = stacks

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(self.fields(record))

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """Returns the fields of a line. Includes the ``stack`` of a handler's error, even without ``stacks``."""
        line: dict[str, Any] = {
            "at": self._clock.now().isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": hidden(record.getMessage()),
        }
        line |= {name: getattr(record, name) for name in FAILED_WITH if hasattr(record, name)}
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line["error"] = hidden(f"{type(error).__name__}: {error}")
            if self._stacks or hasattr(record, "receive_count"):
                line["stack"] = hidden(self.formatException(record.exc_info))
        return line
