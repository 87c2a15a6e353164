"""SQL conditions on messages, evaluated by DuckDB in worker processes."""

from __future__ import annotations

from datetime import datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakequeue.conditions import sandbox
from lakequeue.errors import InvalidParameterValue
from lakequeue.model.arguments import Condition
from lakequeue.model.clock import Interrupt, to_micros

LONGEST = 65_536
"""Maximum number of characters in a condition."""


class Predicate:
    """A condition that is checked once, and then used on any number of tables. Not thread-safe.

    Args:
        condition: a boolean SQL expression over the columns, with the values of its parameters.
        columns: names and types of the allowed columns.
        parameter: name of the parameter in error messages.
        interrupt: once set, every method raises ``sandbox.Interrupted``, even while the method runs.

    Raises:
        InvalidParameterValue: the text is not a condition. Includes the first line of DuckDB's message.
        QueueClientError: no worker process can be started.
    """

    def __init__(
        self,
        condition: str | Condition,
        columns: pa.Schema,
        parameter: str = "where",
        interrupt: Interrupt | None = None,
    ) -> None:
        text, values = condition if isinstance(condition, Condition) else (condition, ())
        self._text = text
        self._values = [{"at": to_micros(each)} if isinstance(each, datetime) else each for each in values]
        self._parameter = parameter
        self._interrupt = interrupt
        self._judged = 0
        if not isinstance(text, str) or not text.strip():
            raise self._refused("Must be a condition in SQL")
        if len(text) > LONGEST:
            raise self._refused(f"Must have {LONGEST:,} characters at most, not {len(text):,}")
        checked = self._ask("check", columns.empty_table())
        self.columns = frozenset(checked.document["columns"])

    def select(self, rows: pa.Table) -> npt.NDArray[np.int64]:
        """Returns the indexes of the rows that meet the condition. Raises InvalidParameterValue if it fails."""
        marks = self._ask("judge", rows).marks
        self._judged += len(rows)
        return np.flatnonzero(np.frombuffer(marks, np.uint8))

    def _ask(self, what: str, rows: pa.Table) -> sandbox.Reply:
        size = f"{len(rows):,} message{'' if len(rows) == 1 else 's'}"
        work = "checking it" if what == "check" else f"evaluating it for {size}"
        try:
            reply = sandbox.shared.ask(
                {"what": what, "text": self._text, "values": self._values}, rows, self._interrupt
            )
        except sandbox.Slow:
            before = f"; messages evaluated before: {self._judged:,}" if self._judged else ""
            raise self._refused(
                f"It is too slow: {work} took more than {sandbox.SECONDS:g} s, the limit{before}"
            ) from None
        except sandbox.Crashed as crash:
            most = sandbox.MEMORY // 2**20
            raise self._refused(
                f"The process that evaluates it ended by {crash}: it needs more than {most} MiB, or is too nested"
            ) from None
        if "refused" in reply.document:
            raise self._refused(reply.document["refused"])
        return reply

    def _refused(self, reason: str) -> InvalidParameterValue:
        shown, why = _line(str(self._text), 100), _line(reason.rstrip("."), 500)
        return InvalidParameterValue.of(shown, self._parameter, f"{why}.")


def _line(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"
