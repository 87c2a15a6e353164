"""Logs of the server: JSON lines on standard error."""

from __future__ import annotations

import json
import logging
from http import HTTPStatus
from typing import Any

from lakequeue.model.clock import Clock
from lakequeue.model.log_lines import JsonLines
from lakequeue.serve.instrumentation import ApiCall, RequestRecord

MAX_VALUE_LENGTH = 200
"""Maximum number of characters of a request's value in the access log."""

_access = logging.getLogger("lakequeue.access")


class AccessLog:
    """Logs each request as a line of JSON at level INFO. Bodies, query strings and headers are not logged."""

    def begun(self) -> None:
        pass

    def ended(self, record: RequestRecord) -> None:
        if _access.isEnabledFor(logging.INFO):
            line = json.dumps(_line(record))
            # like info(), but without its search for the calling line, which took half of the time here
            _access.handle(_access.makeRecord(_access.name, logging.INFO, __file__, 0, line, (), None))


def _line(record: RequestRecord) -> dict[str, Any]:
    status = record.status
    # a request without an action, such as ``/health``, has the code of its HTTP status
    code = "OK" if status is None or status < 400 else HTTPStatus(status).phrase.replace(" ", "")
    call = record.call or ApiCall(code=code)
    return {
        "at": record.at.isoformat(timespec="milliseconds"),
        "request_id": call.request_id or None,
        "client": record.client,
        "request": _cut(f"{record.method} {record.path}"),
        "caller": _cut(call.caller or "-"),
        "action": call.action,
        "queue": _cut(call.queue),
        "status": record.status,
        "code": call.code,
        "milliseconds": round(record.seconds * 1_000, 1),
        "bytes_in": record.bytes_in,
        "bytes_out": record.bytes_out,
    }


def _cut(text: str) -> str:
    return text if len(text) <= MAX_VALUE_LENGTH else text[: MAX_VALUE_LENGTH - 3] + "..."


def configure(clock: Clock, access_log: bool, stacks: bool) -> None:
    """Logs warnings and errors to standard error. With ``access_log``, also logs each request."""
    errors = logging.StreamHandler()
    errors.setFormatter(JsonLines(clock, stacks))
    logging.basicConfig(level=logging.WARNING, handlers=[errors], force=True)
    lines = logging.StreamHandler()
    lines.setFormatter(logging.Formatter("%(message)s"))
    _access.handlers, _access.propagate = [lines], False
    _access.setLevel(logging.INFO if access_log else logging.WARNING)
