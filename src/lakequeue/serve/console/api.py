"""The console API: data and actions of the console's page, by means of the Python API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import partial
from math import inf
from typing import Any, TypeVar
from urllib.parse import quote

import attrs

from lakequeue import PeekedMessage, Queue, __version__
from lakequeue.entry_verbs import (
    Depth,
    concurrently,
    consumers,
    delete_selected,
    depth,
    depth_history,
    make_visible,
    page_of,
    predicate,
    redrivable,
    redrive_checked,
    search,
    settings,
    unknown_spans,
)
from lakequeue.errors import LakeQueueError, QueueDoesNotExist, QueueNameExists
from lakequeue.model.arguments import Condition
from lakequeue.model.clock import format_instant, from_micros, to_micros
from lakequeue.model.secrets import command_prefix, shown_root
from lakequeue.serve.auth import Caller, require
from lakequeue.serve.console import documents
from lakequeue.serve.console.attention import PAUSE, Attention, consumer_row
from lakequeue.serve.console.depth_history import SPAN, DepthHistory, throughput
from lakequeue.serve.console.parameters import Parameters, about, about_one_of, refusal
from lakequeue.serve.damage import MetDamage
from lakequeue.serve.errors import ErrorResponse
from lakequeue.serve.group_depths import GroupDepths
from lakequeue.serve.keys import ANY
from lakequeue.serve.sqs.actions import Actions
from lakequeue.serve.sqs.authorization import check_permissions
from lakequeue.serve.sqs.messages import PRIORITY, SENDER
from lakequeue.serve.sqs.model import operation, validated

Answer = dict[str, Any]
_Result = TypeVar("_Result")

ROWS, MAX_ROWS = 50, 200
"""Default and maximum number of queues or messages on a page."""
SORTED = ("visible", "in_flight", "delayed", "held", "undecided", "oldest_age")
"""Counts by which a list of queues can be sorted."""
MAX_TESTED = 100_000
"""Maximum number of messages that are read for a page if a condition selects the messages."""
LETTERS = "source_queue IS NOT NULL AND state = 'visible'"
MAX_LETTERS = 10_000
"""Maximum number of a queue's dead letters whose errors are counted. The newest dead letters are counted."""
MAX_POINTS = 240
MAX_HOURS = 24 * 7
MAX_MOVED = 1_000
"""Maximum number of messages that one redrive request moves. For more messages, the page repeats the request."""
ACTIONS = (
    *("ReceiveMessage", "SendMessage", "PurgeQueue", "StartMessageMoveTask", "Rewind"),
    *("DeleteMessage", "ChangeMessageVisibility", "SetQueueAttributes", "DeleteQueue"),
    *("TagQueue", "UntagQueue", "ListQueueTags", "ListDeadLetterSourceQueues"),
)
"""Actions on the page of a queue that need a permission besides GetQueueAttributes."""


class ConsoleApi:
    """Has one blocking, thread-safe method for each request of the console. Callers check permissions first."""

    def __init__(self, actions: Actions, command_prefix: str | None = None) -> None:
        self._actions = actions
        self._prefix = command_prefix
        self._lake = actions.lake
        self.depths, self.damage = DepthHistory(actions.lake), MetDamage()
        self._groups = GroupDepths()
        self._attention = Attention(actions.lake, self.depths, self.damage)

    # --- read

    def queues(self, caller: Caller, name: str, given: Parameters) -> Answer:
        """Returns a page of queues, with the depths that the caller may see.

        The parameter ``sort`` is "name", one of ``SORTED``, or "trouble". Sorting by "trouble" puts the queues
        with the worst known problems first, and then the queues with the most dead letters. In the answer,
        ``counted`` is the number of queues whose depths were read for the sorting; None if no depth was needed.
        """
        text, after = given.string("text") or "", given.string("after") or ""
        sort, down = given.choice("sort", "name", "trouble", *SORTED), bool(given.choice("down", "", "1"))
        limit = given.integer("limit", ROWS, MAX_ROWS)
        given.end()
        queues = self.depths.queues()
        found = [queue for queue in queues if text.lower() in queue.name.lower()]
        may = {queue.name: queue for queue in queues if caller.may("GetQueueAttributes", queue.name)}
        sources = Counter(documents.name_of(queue.dead_letter_queue) for queue in may.values())
        counted, targets, down = None, may.keys() & sources.keys(), down or sort == "trouble"

        def letters(queue: Queue) -> int | None:
            depth = self.depths.latest(queue)
            return None if depth is None or queue.name not in targets else depth.stored

        urgent = self._attention.ranks(caller) if sort == "trouble" else {}

        def rank(queue: Queue) -> tuple[float, float]:
            if sort == "trouble":
                return -urgent.get(queue.name, inf), letters(queue) or 0
            depth = self.depths.latest(queue)
            value = None if depth is None or queue.name not in may else getattr(depth.counts, sort)
            return (-1 if value is None else value), 0

        if sort == "name":
            found = found[::-1] if down else found
            begin = sum(queue.name >= after if down else queue.name <= after for queue in found) if after else 0
        else:
            if len(found) > limit:
                ranked = targets if sort == "trouble" else may.keys()
                counted = self._count_others(queue for queue in found if queue.name in ranked)
                found.sort(key=rank, reverse=down)
            begin = next((place for place, queue in enumerate(found, 1) if queue.name == after), 0)
        page = found[begin : begin + limit]
        known = zip(page, concurrently(partial(self._row, caller), page), strict=True)
        rows = [(queue, row) for queue, row in known if row is not None]
        if sort != "name":
            rows.sort(key=lambda each: rank(each[0]), reverse=down)
        if sort == "trouble":
            rows.sort(key=lambda each: each[1]["error"] is None)
        seen = [queue for queue, row in rows if row["counts"] is not None]
        lines = dict(zip((queue.name for queue in seen), self.depths.sparklines(seen), strict=True))
        consuming = self._attention.consumers()

        def more(queue: Queue) -> Answer:
            dead = may.get(documents.name_of(queue.dead_letter_queue) or "") if queue.name in may else None
            died = None if dead is None else self._shared(queue, dead.name, letters(dead), sources[dead.name])
            found = {"depths": lines.get(queue.name), "dead_letters": letters(queue), "died": died}
            return found | {"consumers": consuming.get(queue.name) if queue.name in may else None}

        return {
            "queues": [row | more(one) for one, row in rows],
            "total": len(found),
            "next": page[-1].name if begin + limit < len(found) else None,
            "counted": counted,
            "hours": SPAN / timedelta(hours=1),
            "may": {"CreateQueue": caller.may_on_any_queue("CreateQueue")},
        } | self._place(caller)

    def _count_others(self, queues: Iterable[Queue]) -> int:
        """Reads the depths of queues without a recent depth. Returns the number of these queues."""
        others = [queue for queue in queues if self.depths.latest(queue) is None]
        return sum(1 for _ in concurrently(self.depths.read, others))

    def _row(self, caller: Caller, queue: Queue) -> Answer | None:
        row: Answer = {"name": queue.name, "fifo": queue.fifo, "counts": None, "error": None}
        if not caller.may("GetQueueAttributes", queue.name):
            return row
        row["dead_letter_queue"] = documents.name_of(queue.dead_letter_queue)
        try:
            now = depth(queue)
        except QueueDoesNotExist:  # deleted since it was listed
            return None
        except LakeQueueError as error:
            return row | {"error": ErrorResponse.of(error, queue.name).message}
        self.depths.record(queue, now)
        row |= {"pauses": documents.pauses(settings(queue)), "may": {"Pause": caller.may(PAUSE, queue.name)}}
        return row | {"counts": attrs.asdict(now.counts), "rates": self.depths.rates(queue, now)}

    def attention(self, caller: Caller, name: str, given: Parameters) -> Answer:
        """Returns the problems of the root, and the problems of queues that the caller may see."""
        only = given.string("queue")
        given.end()
        return self._attention.of(caller, only) | {"place": self._place(caller)}

    def workers(self, caller: Caller, name: str, given: Parameters) -> Answer:
        given.end()
        found = self._attention.workers(caller)
        return {"workers": found[:MAX_ROWS], "total": len(found)} | self._partly(caller)

    def schedules(self, caller: Caller, name: str, given: Parameters) -> Answer:
        given.end()
        now, names = self._lake.clock.now(), {queue.name for queue in self.depths.queues()}
        return {
            "schedules": [
                documents.schedule(row, now)
                | {"may": {"SendMessage": caller.may("SendMessage", row.queue)}, "exists": row.queue in names}
                for row in self._lake.schedules.list()
                if caller.may("GetQueueAttributes", row.queue)
            ]
        } | self._partly(caller)

    def change_schedule(self, caller: Caller, name: str, given: Parameters) -> Answer:
        """Pauses a schedule, resumes a schedule, or sends the message of a schedule now."""
        schedule, act = given.string("name"), given.choice("act", "", "pause", "resume", "run_now")
        given.end()
        known = [row for row in self._lake.schedules.list() if row.name == schedule]
        for row in known:
            require(caller, "SendMessage", row.queue)
        if not known or not act:
            raise refusal(schedule or "", "name", "There is no such schedule, or nothing to do with it.")
        getattr(self._lake.schedules, act)(known[0].name)
        return {}

    def _partly(self, caller: Caller) -> Answer:
        return {"limited": not caller.may("GetQueueAttributes", None)} | self._place(caller)

    def _place(self, caller: Caller) -> Answer:
        place = {"region": self._lake.region, "root": self._root(caller), "command": self._command(caller)}
        return place | {"version": __version__, "caller": caller.name}

    def queue(self, caller: Caller, name: str, given: Parameters) -> Answer:
        """Returns the attributes and the depth of a queue, and the caller's permissions for the queue."""
        given.end()
        may = {action: caller.may(action, name) for action in ACTIONS}

        def read(queue: Queue) -> Answer:
            attributes = queue.attributes(wire=True)
            now = depth(queue)
            self.depths.record(queue, now)
            policy, earliest = settings(queue).redrive, queue.min_rewind_time
            return {
                "name": queue.name,
                "region": queue.region,
                "root": self._root(caller),
                "command": self._command(caller),
                "version": __version__,
                "fifo": queue.fifo,
                "created_at": format_instant(queue.created_at),
                "counts": attrs.asdict(now.counts),
                "rates": self.depths.rates(queue, now),
                "attributes": attributes,
                "pauses": documents.pauses(settings(queue)),
                "tags": queue.tags() if may["ListQueueTags"] else None,
                "min_rewind_time": None if earliest is None else format_instant(earliest),
                "dead_letter_queue": documents.name_of(queue.dead_letter_queue),
                "max_receive_count": None if policy is None else policy.max_receive_count,
                "died": self._died(caller, queue),
                "sources": [source.name for source in queue.dead_letter_sources()]
                if may["ListDeadLetterSourceQueues"]
                else None,
                "may": may,
                "caller": caller.name,
                "now": format_instant(from_micros(now.at)),
            }

        return self._on_queue(name, read)

    def _died(self, caller: Caller, queue: Queue) -> tuple[int | None, int] | None:
        """Returns the number of a queue's dead letters, and of the queues that share its dead-letter queue.

        The answer is None if the dead-letter queue is unknown.
        """
        name = documents.name_of(queue.dead_letter_queue)
        if name is None or not caller.may("GetQueueAttributes", name):
            return None
        try:
            dead = self._lake.queue(name)
            return self._shared(queue, name, depth(dead).stored, len(dead.dead_letter_sources()))
        except LakeQueueError:  # the queue's own page shows the error
            return None

    def _shared(self, queue: Queue, dead: str, stored: int | None, of: int) -> tuple[int | None, int] | None:
        """Returns the number of a queue's own dead letters, None if unknown, and the number of sources, ``of``."""
        if stored is None or dead == queue.name:
            return None
        return stored if of < 2 or not stored else self._attention.letters_of(queue.name, dead), of

    def shards(self, caller: Caller, name: str, given: Parameters) -> Answer:
        given.end()
        return {"shards": [attrs.asdict(shard) for shard in self._on_queue(name, Queue.shard_counts)]}

    def groups(self, caller: Caller, name: str, given: Parameters) -> Answer:
        """Returns the largest groups, as counted some seconds ago. ``groups`` is None if the queue has none."""
        given.end()
        found = self._on_queue(name, self._groups.of)
        if found is None or not found.groups:
            return {"groups": None}
        top = [attrs.asdict(group) for group in found.top]
        return {"groups": top, "total": found.groups, "noisy": found.noisy, "seconds_ago": self._groups.age(found)}

    def consumers(self, caller: Caller, name: str, given: Parameters) -> Answer:
        """Returns the consumers of a queue. The consumer with the latest receive comes first."""
        given.end()

        def read(queue: Queue) -> Answer:
            found = consumers(queue)
            return {"consumers": [consumer_row(queue, each) for each in found[:ROWS]], "total": len(found)}

        return self._on_queue(name, read)

    def errors(self, caller: Caller, name: str, given: Parameters) -> Answer:
        """Counts the newest visible dead letters of a queue by their source queue and their error."""
        given.end()

        def read(queue: Queue) -> Answer:
            condition = predicate(LETTERS, given.interrupt)
            found = search(queue, condition, MAX_LETTERS, newest=True, budget=MAX_LETTERS)
            return page_of(found, documents.errors)

        return self._on_queue(name, read)

    def points(self, caller: Caller, name: str, given: Parameters) -> Answer:
        """Returns the depth of a queue over the last hours."""
        hours = given.integer("hours", SPAN // timedelta(hours=1), MAX_HOURS)
        given.end()
        since = self._lake.clock.now() - timedelta(hours=hours)

        def read(queue: Queue) -> tuple[list[Depth], datetime]:
            points = depth_history(queue, since)
            recorded = [
                point for point in self.depths.recorded(queue) if to_micros(since) <= point.at < points[-1].at
            ]
            return sorted([*points, *recorded], key=lambda point: point.at), max(since, queue.created_at)

        points, begin = self._on_queue(name, read)
        spans = unknown_spans(points, begin)
        step = -(-len(points) // MAX_POINTS)
        chosen = [*zip(points, throughput(points), strict=True)][::-step][::-1]  # always includes the last one
        return {
            "hours": hours,
            "points": [{"at": point.at // 1_000} | attrs.asdict(point.counts) | rates for point, rates in chosen],
            "unknown": [[to_micros(first) // 1_000, to_micros(last) // 1_000] for first, last in spans],
        }

    def messages(self, caller: Caller, name: str, given: Parameters, history: bool = False) -> Answer:
        """Returns a page of messages; with ``history``, deleted messages that a rewind to ``since`` restores."""
        since = given.instant("since") if history else None
        where, limit, places = given.condition(), given.integer("limit", ROWS, MAX_ROWS), given.places()
        newest = given.choice("order", "oldest", "newest") == "newest"
        given.end()

        def read(queue: Queue) -> Answer:
            condition = predicate(where, given.interrupt)
            found = partial(search, queue, condition, limit + 1, places, newest=newest, since=since)
            page = partial(documents.message_list, limit=limit)
            return page_of(found(history=history, budget=MAX_TESTED), page)

        with about("where"):
            return self._on_queue(name, read)

    def message(self, caller: Caller, name: str, given: Parameters, history: bool = False) -> Answer:
        """Returns one message with its whole body. With ``history``, also finds a deleted message."""
        where = given.message_id()
        given.end()

        def read(queue: Queue) -> list[PeekedMessage]:
            condition = predicate(where, given.interrupt)
            return page_of(search(queue, condition, 1, history=history), list)

        return documents.whole_message(self._on_queue(name, read))

    # --- preview

    def preview_rewind(self, caller: Caller, name: str, given: Parameters) -> Answer:
        """Returns the number of messages that a rewind would make visible."""
        to = given.required_instant("to")
        given.end()
        with about("to"):
            count = self._on_queue(name, lambda queue: queue.rewindable(to))
        return {"messages": count, "to": format_instant(to)}

    def preview_redrive(self, caller: Caller, name: str, given: Parameters) -> Answer:
        """Returns the number of messages that a redrive would move to each target queue."""
        where = _redrive_condition(caller, name, given)
        given.end()
        with about("where"):
            found = self._on_queue(name, lambda queue: redrivable(queue, where, given.interrupt))
        destinations = [{"queue": queue, "messages": count} for queue, count in sorted(found.items())]
        return {"messages": sum(found.values()), "destinations": destinations}

    # --- change

    def send(self, caller: Caller, name: str, given: Parameters) -> Answer:
        """Sends a message. Request and answer have the fields of SendMessage. The request may add ``Priority``."""
        priority = given.priority()
        members = _members("SendMessage", name, given) | ({} if priority is None else {PRIORITY: priority})
        if self._actions.sender is None:
            members[SENDER] = caller.name
        with about_one_of("priority"):
            return self._run("SendMessage", members)

    def pause(self, caller: Caller, name: str, given: Parameters) -> Answer:
        reason, group = given.string("reason") or "paused", given.string("group")
        given.end()
        with about_one_of("reason", "group"):
            self._change(name, lambda queue: queue.pause(reason, group))
        return {}

    def resume(self, caller: Caller, name: str, given: Parameters) -> Answer:
        group = given.string("group")
        given.end()
        self._change(name, lambda queue: queue.resume(group))
        return {}

    def purge(self, caller: Caller, name: str, given: Parameters) -> Answer:
        """Purges a queue. Refused unless the user has typed the name of the queue."""
        _check_typed(name, given, "purged")
        self._change(name, Queue.purge)
        return {}

    def rewind(self, caller: Caller, name: str, given: Parameters) -> Answer:
        to = given.required_instant("to")
        given.end()
        with about("to"):
            return {"messages": self._change(name, lambda queue: queue.rewind(to))}

    def redrive(self, caller: Caller, name: str, given: Parameters) -> Answer:
        """Moves at most ``MAX_MOVED`` messages of a dead-letter queue. Returns the number of moved messages."""
        where, limit = _redrive_condition(caller, name, given), given.integer("messages", MAX_MOVED, MAX_MOVED)
        given.end()
        with about("where"):
            check = partial(require, caller, "SendMessage")
            moved = self._change(name, lambda queue: redrive_checked(queue, limit, check, where, given.interrupt))
        return {"messages": moved}

    # --- change chosen messages

    def delete_messages(self, caller: Caller, name: str, given: Parameters) -> Answer:
        """Deletes messages with given ids. Only visible messages are deleted."""
        ids = given.message_ids()
        given.end()
        return documents.outcome(self._change(name, lambda queue: delete_selected(queue, ids)))

    def make_visible(self, caller: Caller, name: str, given: Parameters) -> Answer:
        """Makes delayed messages with given ids visible; with ``in_flight``, also messages in flight."""
        ids, in_flight = given.message_ids(), given.flag("in_flight")
        given.end()
        outcome = self._change(name, lambda queue: make_visible(queue, ids, in_flight))
        return documents.outcome(outcome)

    # --- change queues

    def create(self, caller: Caller, name: str, given: Parameters) -> Answer:
        """Creates a queue from the parameters of CreateQueue. Raises QueueNameExists if the queue exists."""
        members = validated(operation("CreateQueue").input_shape, given.rest(), "")
        check_permissions(caller, "CreateQueue", members)
        with about("QueueName"), about_one_of(*members.get("Attributes", ())):
            if self._exists(members["QueueName"]):  # SQS would answer as if it had created it
                raise QueueNameExists()
            self._run("CreateQueue", members)
        return {"name": members["QueueName"]}

    def _exists(self, name: str) -> bool:
        try:
            return bool(self._lake.queue(name))
        except QueueDoesNotExist:
            return False

    def set_attributes(self, caller: Caller, name: str, given: Parameters) -> Answer:
        """Changes attributes of a queue. The request has the parameters of the SQS action SetQueueAttributes."""
        members = _members("SetQueueAttributes", name, given)
        check_permissions(caller, "SetQueueAttributes", members)
        with about_one_of(*members["Attributes"]):
            return self._run("SetQueueAttributes", members)

    def run(self, action: str, caller: Caller, name: str, given: Parameters) -> Answer:
        """Runs an SQS action on a queue. The request has the parameters of this action."""
        return self._run(action, _members(action, name, given))

    def delete(self, caller: Caller, name: str, given: Parameters) -> Answer:
        """Deletes a queue. Refused unless the user has typed the name of the queue."""
        _check_typed(name, given, "deleted")
        return self._run("DeleteQueue", {"QueueUrl": _url(name)})

    def _root(self, caller: Caller) -> str | None:
        """Returns the root as a text. Returns None unless the caller has every permission on every queue."""
        return shown_root(self._lake.root) if caller.may(ANY, None) else None

    def _command(self, caller: Caller) -> str:
        return self._prefix or (command_prefix(self._lake.root) if caller.may(ANY, None) else "lakequeue")

    def _on_queue(self, name: str, call: Callable[[Queue], _Result]) -> _Result:
        return self._actions.on_queue(_url(name), call)

    def _change(self, name: str, call: Callable[[Queue], _Result]) -> _Result:
        try:
            return self._on_queue(name, call)
        finally:
            self._attention.forget()

    def _run(self, action: str, members: Answer) -> Answer:
        try:
            return self._actions.run(action, members, "")
        finally:
            self._attention.forget()


def _redrive_condition(caller: Caller, name: str, given: Parameters) -> Condition | None:
    """Returns a redrive's condition, or None. The caller needs the permission ReceiveMessage, because the number
    of messages that meet a condition reveals what their bodies contain.
    """
    ids = given.message_ids() if "ids" in given else None
    where = given.condition()
    require(caller, "ReceiveMessage", name)
    if ids is None:
        return where
    if where is not None:
        raise refusal(where.text, "where", "Give a condition or ids, not both.")
    return Condition(f"message_id IN ({', '.join('?' * len(ids))})", ids)


def _check_typed(name: str, given: Parameters, done: str) -> None:
    typed = given.string("name")
    given.end()
    if typed != name:
        raise refusal(typed, "name", f"It is not the name of the queue; nothing was {done}.")


def _members(action: str, name: str, given: Parameters) -> Answer:
    found: Answer = validated(operation(action).input_shape, given.rest() | {"QueueUrl": _url(name)}, "")
    return found


def _url(name: str) -> str:
    return "/" + quote(name, safe="")
