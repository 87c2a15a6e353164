"""What the console shows and does, over the Python API; takes and answers what JSON can tell."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar
from urllib.parse import quote

from lakequeue import PeekedMessage, Queue
from lakequeue.conditions.predicate import Predicate
from lakequeue.errors import (
    InvalidParameterValue,
    LakeQueueError,
    MissingParameter,
    QueueDoesNotExist,
    ResourceNotFoundException,
)
from lakequeue.model.clock import from_micros, to_micros
from lakequeue.model.interrupts import Interrupt
from lakequeue.operations import browse, plot, rewind
from lakequeue.operations.depth import Depth, depth
from lakequeue.operations.results import QueueCounts
from lakequeue.serve.auth import Caller, denied
from lakequeue.serve.console.depth_history import SPAN, Depths
from lakequeue.serve.faults import Fault, malformed
from lakequeue.serve.sqs.actions import Actions
from lakequeue.serve.sqs.model import checked, operation

Answer = dict[str, Any]
_TEXT = operation("SendMessage").input_shape.members["MessageBody"]
_Result = TypeVar("_Result")

MOST_QUEUES = 200
MOST_MESSAGES = 200
LONGEST_BODY = 400
"""Characters of a body, or of a message attribute, in a list."""
MOST_POINTS = 240
MOST_HOURS = 24 * 7
MOST_MOVED = 1_000
"""Messages that one request may redrive: whoever wants more asks again, and can stop in between."""
STATES = ("visible", "in_flight", "delayed", "held")
ACTIONS = (
    *("ReceiveMessage", "SendMessage", "PurgeQueue", "StartMessageMoveTask", "Rewind"),
    *("ListQueueTags", "ListDeadLetterSourceQueues"),
)
"""What the page of a queue asks permission for, beside GetQueueAttributes."""


class Given:
    """Members of a request, each to be taken once.

    Every method raises InvalidParameterValue or a WireError for a member of another kind.

    Attributes:
        interrupt: set when nobody wants the answer any more.
    """

    def __init__(self, members: Mapping[str, Any], interrupt: Interrupt | None = None) -> None:
        self._left = dict(members)
        self.interrupt = interrupt

    def text(self, name: str) -> str | None:
        """A text; None if it is absent or empty."""
        value = self._left.pop(name, None)
        return None if value is None else checked(_TEXT, value, name) or None

    def whole(self, name: str, default: int, most: int) -> int:
        """A whole number from 1 on."""
        value = self._left.pop(name, default)
        if isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise _refused(name, value, f"Must be a whole number between 1 and {most}")
        return value

    def instant(self, name: str) -> datetime | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            instant = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))  # Python 3.10 knows no Z
            if instant.tzinfo is None:
                raise ValueError
            return instant.astimezone(timezone.utc)
        except (ValueError, OverflowError):
            raise _refused(name, text, "Must be an instant with a time zone") from None

    def rest(self) -> Answer:
        """Everything that was not taken."""
        rest, self._left = self._left, {}
        return rest

    def end(self) -> None:
        """Refuses members that nobody asked for."""
        for name in self._left:
            raise malformed(f"{name} is not a member of this request.")


class Desk:
    """Everything blocks; thread-safe. That a caller may do the action itself was seen to before."""

    def __init__(self, actions: Actions) -> None:
        self._actions = actions
        self._lake = actions.lake
        self.depths = Depths(actions.lake)

    # --- looking

    def queues(self, caller: Caller, name: str, given: Given) -> Answer:
        """A page of the queues, by name, with how they stand where the caller may know that."""
        text, after = given.text("text") or "", given.text("after") or ""
        most = given.whole("limit", MOST_QUEUES, MOST_QUEUES)
        given.end()
        found = [queue for queue in self.depths.queues() if text.lower() in queue.name.lower()]
        rest = [queue for queue in found if queue.name > after]
        page = rest[:most]
        rows = [(queue, row) for queue in page if (row := self._row(caller, queue)) is not None]
        known = [queue for queue, row in rows if row["counts"] is not None]
        lines = dict(zip((queue.name for queue in known), self.depths.sparklines(known), strict=True))
        return {
            "queues": [row | {"depths": lines.get(queue.name)} for queue, row in rows],
            "total": len(found),
            "next": page[-1].name if len(rest) > most else None,
            "hours": SPAN / timedelta(hours=1),
            "region": self._lake.region,
            "caller": caller.name,
        }

    def _row(self, caller: Caller, queue: Queue) -> Answer | None:
        row: Answer = {"name": queue.name, "fifo": queue.fifo, "counts": None, "error": None}
        if not caller.may("GetQueueAttributes", queue.name):
            return row
        row["dead_letter_queue"] = _named(queue.dead_letter_queue)
        try:
            stands = depth(queue.runtime)
        except QueueDoesNotExist:  # deleted since it was listed
            return None
        except LakeQueueError as error:
            return row | {"error": Fault.of(error).message}
        self.depths.saw(queue, stands)
        return row | {"counts": _counts(stands.counts)}

    def queue(self, caller: Caller, name: str, given: Given) -> Answer:
        """One queue: what it is, how it stands, and what the caller may do with it."""
        given.end()
        may = {action: caller.may(action, name) for action in ACTIONS}

        def shown(queue: Queue) -> Answer:
            attributes = queue.attributes()
            stands = depth(queue.runtime)
            self.depths.saw(queue, stands)
            policy, earliest = queue.runtime.attributes.redrive, queue.min_rewind_time
            return {
                "name": queue.name,
                "region": queue.region,
                "fifo": queue.fifo,
                "created_at": _instant(queue.created_at),
                "counts": _counts(stands.counts),
                "attributes": attributes,
                "tags": queue.tags() if may["ListQueueTags"] else None,
                "min_rewind_time": None if earliest is None else _instant(earliest),
                "dead_letter_queue": _named(queue.dead_letter_queue),
                "max_receive_count": None if policy is None else policy.max_receive_count,
                "sources": [source.name for source in queue.dead_letter_sources()]
                if may["ListDeadLetterSourceQueues"]
                else None,
                "may": may,
                "caller": caller.name,
                "now": _instant(from_micros(stands.at)),
            }

        return self._on(name, shown)

    def points(self, caller: Caller, name: str, given: Given) -> Answer:
        """How a queue stood over some hours."""
        hours = given.whole("hours", SPAN // timedelta(hours=1), MOST_HOURS)
        given.end()
        since = self._lake.clock.now() - timedelta(hours=hours)

        def found(queue: Queue) -> list[Depth]:
            points = plot.points(queue.runtime, since)
            seen = [point for point in self.depths.seen(queue) if to_micros(since) <= point.at < points[-1].at]
            return sorted([*points, *seen], key=lambda point: point.at)

        points = self._on(name, found)
        step = -(-len(points) // MOST_POINTS)
        chosen = points[::-step][::-1]  # the last one in any case
        return {"hours": hours, "points": [{"at": point.at // 1_000} | _counts(point.counts) for point in chosen]}

    def messages(self, caller: Caller, name: str, given: Given) -> Answer:
        """The oldest messages that pass the filters; nothing changes."""
        where, most = _condition(given), given.whole("limit", 50, MOST_MESSAGES)
        given.end()
        found = self._on(name, lambda queue: queue.peek(where, most + 1, given.interrupt))
        return _page(found, most)

    def message(self, caller: Caller, name: str, given: Given) -> Answer:
        """A message as a whole."""
        where = f"message_id = {_literal(given.text('id') or '')}"
        given.end()
        return _whole(self._on(name, lambda queue: queue.peek(where, 1, given.interrupt)))

    def history(self, caller: Caller, name: str, given: Given) -> Answer:
        """The oldest deleted messages that can be rewound, sent at an instant or later, that pass the filters."""
        since, where, most = given.instant("since"), _condition(given), given.whole("limit", 50, MOST_MESSAGES)
        given.end()
        return _page(self._look_back(name, since, where, most + 1, given.interrupt), most)

    def past_message(self, caller: Caller, name: str, given: Given) -> Answer:
        """A deleted message as a whole."""
        where = f"message_id = {_literal(given.text('id') or '')}"
        given.end()
        return _whole(self._look_back(name, None, where, 1, given.interrupt))

    def _look_back(
        self, name: str, since: datetime | None, where: str | None, most: int, interrupt: Interrupt | None
    ) -> list[PeekedMessage]:
        begin = since or from_micros(0)

        def looked(queue: Queue) -> list[PeekedMessage]:
            predicate = None if where is None else Predicate(where, browse.SCHEMA, interrupt=interrupt)
            return browse.peek_history(queue.runtime, begin, predicate, most)

        return self._on(name, looked)

    # --- what an action would do

    def would_rewind(self, caller: Caller, name: str, given: Given) -> Answer:
        """How many messages a rewind would bring back."""
        to = _needed("to", given.instant("to"))
        given.end()
        return {"messages": self._on(name, lambda queue: rewind.rewindable(queue.runtime, to)), "to": _instant(to)}

    def would_redrive(self, caller: Caller, name: str, given: Given) -> Answer:
        """How many messages a redrive would take where."""
        where = _allowed_condition(caller, name, given)
        given.end()
        found = self._on(name, lambda queue: queue.redrivable(where, given.interrupt))
        destinations = [{"queue": queue, "messages": count} for queue, count in sorted(found.items())]
        return {"messages": sum(found.values()), "destinations": destinations}

    # --- acting

    def send(self, caller: Caller, name: str, given: Given) -> Answer:
        """Sends a message that is told as in SQS's SendMessage; the answer likewise."""
        members = given.rest() | {"QueueUrl": _url(name)}
        return self._actions.do("SendMessage", checked(operation("SendMessage").input_shape, members, ""), "")

    def purge(self, caller: Caller, name: str, given: Given) -> Answer:
        """Purges a queue whose name was typed."""
        typed = given.text("name")
        given.end()
        if typed != name:
            raise InvalidParameterValue("What was typed is not the name of the queue; nothing was purged.")
        self._on(name, Queue.purge)
        return {}

    def rewind(self, caller: Caller, name: str, given: Given) -> Answer:
        to = _needed("to", given.instant("to"))
        given.end()
        return {"messages": self._on(name, lambda queue: queue.rewind(to))}

    def redrive(self, caller: Caller, name: str, given: Given) -> Answer:
        """Moves some messages back, and says how many; there may be more."""
        where, most = _allowed_condition(caller, name, given), given.whole("messages", MOST_MOVED, MOST_MOVED)
        given.end()
        return {"messages": self._on(name, lambda queue: queue.redrive(most, where, interrupt=given.interrupt))}

    def _on(self, name: str, act: Callable[[Queue], _Result]) -> _Result:
        return self._actions.on_queue(_url(name), act)


def _url(name: str) -> str:
    return "/" + quote(name, safe="")


def _condition(given: Given) -> str | None:
    """The filters of a list of messages as one condition."""
    state, text, where = given.text("state"), given.text("text"), given.text("where")
    parts = []
    if state is not None:
        if state not in STATES:
            raise _refused("state", state, f"Must be one of {', '.join(STATES)}")
        parts.append(f"state = '{state}'")
    if text is not None:
        wanted = f"lower({_literal(text)})"
        parts.append(
            f"(contains(lower(body), {wanted}) OR contains(lower(message_id), {wanted}) "
            f"OR coalesce(contains(lower(group_id), {wanted}), false))"
        )
    if where is None:
        return " AND ".join(parts) or None
    if parts:
        Predicate(where, browse.SCHEMA, interrupt=given.interrupt)  # a refusal shall show what was typed
        parts.append(f"(({where}\n))")  # two: what is one expression in brackets may be "true) OR (true"
    return " AND ".join(parts) or where


def _allowed_condition(caller: Caller, name: str, given: Given) -> str | None:
    where = given.text("where")
    if where is not None and not caller.may("ReceiveMessage", name):  # counts would tell what bodies say
        raise denied(caller, "ReceiveMessage", name)
    return where


def _literal(text: str) -> str:
    """A text in SQL."""
    if "\0" in text:
        raise _refused("text", text.replace("\0", "\\0"), "Must not hold a character of code 0")
    return "'" + text.replace("'", "''") + "'"


def _needed(name: str, value: _Result | None) -> _Result:
    if value is None:
        raise MissingParameter(f"The request must contain the parameter {name}.")
    return value


def _refused(name: str, value: object, reason: str) -> InvalidParameterValue:
    return InvalidParameterValue(f"Value {value} for parameter {name} is invalid. Reason: {reason}.")


def _instant(value: datetime) -> str:
    return value.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def _named(arn: str | None) -> str | None:
    return None if arn is None else arn.rpartition(":")[2]


def _counts(counts: QueueCounts) -> Answer:
    return {
        "visible": counts.visible,
        "in_flight": counts.in_flight,
        "delayed": counts.delayed,
        "held": counts.held,
        "rewindable": counts.rewindable,
        "oldest_age": counts.oldest_age,
    }


def _page(found: list[PeekedMessage], most: int) -> Answer:
    return {"messages": [_message(message, LONGEST_BODY) for message in found[:most]], "more": len(found) > most}


def _whole(found: list[PeekedMessage]) -> Answer:
    if not found:
        raise ResourceNotFoundException("The message is no longer there.")
    return _message(found[0], None)


def _message(message: PeekedMessage, longest: int | None) -> Answer:
    values = {
        name: {"type": type_, "value": base64.b64encode(value).decode() if isinstance(value, bytes) else value}
        for name, (type_, value) in message.message_attributes.items()
    }
    attributes = {name: value | {"value": value["value"][:longest]} for name, value in values.items()}
    return {
        "id": message.message_id,
        "state": message.state,
        "body": message.body[:longest],
        "length": len(message.body),
        "cut": message.body != message.body[:longest] or attributes != values,
        "receive_count": message.receive_count,
        "sent_at": _instant(message.sent_at),
        "visible_at": None if message.visible_at is None else _instant(message.visible_at),
        "group_id": message.group_id,
        "source_queue": message.source_queue,
        "attributes": attributes,
    }
