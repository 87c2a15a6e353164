"""Finds problems with a queue's consumers. An example is a consumer whose handlers hang."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from lakequeue.errors import counted
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import MICROS, from_micros, shown_duration, to_micros
from lakequeue.model.consumer_processes import ConsumerProcess
from lakequeue.operations.advice import Concern, Remedy
from lakequeue.operations.consumers import ActiveConsumer
from lakequeue.operations.depth import Depth
from lakequeue.operations.results import QueueCounts

UNREAD_SECONDS = 15 * 60
"""Seconds after which a queue counts as unread: it has visible messages, and nobody receives them."""
SILENT_SECONDS = 3600  # then a consumer without a report is no concern any more
OUTAGE_SECONDS = 5 * 60  # as the alert LakequeueConsumerOutage
STUCK_SECONDS = 3600
"""Seconds after which a consumer that holds a message is stuck, unless the visibility timeout is longer."""
SLOW_SECONDS, SLOW_TIMEOUTS = 300, 10
"""A handler is slow after ``SLOW_SECONDS``, or after ``SLOW_TIMEOUTS`` visibility timeouts if these take longer.
If messages wait, and all running handlers of the queue are slow, the handlers' consumers count as stuck.
"""


def waiting(counts: QueueCounts) -> str:
    return f"{counted(counts.visible, 'visible message')} wait{'s' * (counts.visible == 1)}"


def outage(name: str, now: Depth, known: Sequence[ActiveConsumer]) -> Iterator[Concern]:
    failing = [
        (process.outage_since, f"{each.consumer}, {process}", process)
        for each in known
        for process in each.processes
        if process.outage_since is not None
    ]
    if failing:
        since, first, process = min(failing, key=lambda each: each[:2])
        seconds, some = (now.at - to_micros(since)) / MICROS, counted(len(failing), "consumer")
        more, told = f", and {len(failing) - 1:,} more" * (len(failing) > 1), process.outage_reason
        fails, do = "storage", "do not restart it: it goes on by itself, with what it has in work"
        if process.failing_table is not None:
            fails = f"the delivery table {process.failing_table}"
            do = "once the table is back, mounted or readable again, the consumer goes on by itself"
        fails += f" has failed for {shown_duration(seconds)}"
        text = f"{fails}, since {since:%F %T}Z, for {some} of {name}: {first}{more}"
        hint = f"{told or 'its log says why'}; {do}"
        yield Concern(name, "outage", text, hint, (), f"{fails}, for {some}", notice=seconds <= OUTAGE_SECONDS)


def silent(name: str, now: Depth, known: Sequence[ActiveConsumer], unread: bool) -> Iterator[Concern]:
    gone, runs = list[str](), any(each.processes for each in known)
    for each in known:
        for one in each.silent:
            seconds = (now.at - to_micros(one.seen_at)) / MICROS
            who = f"{each.consumer}, {one}, last report {shown_duration(seconds)} ago"
            if one.stopped:
                text = f"a process is stopped, and receives nothing of {name}: {who}"
                hint = "messages that it holds come back after their visibility timeout"
                steps = (
                    Remedy(f"kill -CONT {one.pid}", f"on {one.host} lets it go on"),
                    Remedy(f"kill -9 {one.pid}", f"on {one.host} ends it instead"),
                )
                yield Concern(name, "silent", text, hint, steps, f"{each.consumer} is stopped")
            elif not one.ended and not unread and seconds <= SILENT_SECONDS:
                gone.append(who)
    if gone:
        some = counted(len(gone), "consumer")
        text = f"{some} of {name} no longer report{'s' * (len(gone) == 1)}: {'; '.join(gone[:3])}"
        hint = "a process was killed, is stopped or frozen as a paused container is, or cannot write to the root"
        step = Remedy(
            f"lakequeue consumers {shlex.quote(name)}", "on the same host says if it was killed or is stopped"
        )
        yield Concern(name, "silent", text, hint, (step,), f"{some} without a report", notice=runs)


def stuck(
    name: str, attributes: QueueAttributes, now: Depth, known: Sequence[ActiveConsumer]
) -> Iterator[Concern]:
    limit = max(STUCK_SECONDS, attributes.visibility_timeout)
    slow = max(SLOW_SECONDS, SLOW_TIMEOUTS * attributes.visibility_timeout)
    blocked = not attributes.paused and now.counts.visible > 0 and _all_older(now, known, slow)
    wait = f"; all handlers are slow, and {waiting(now.counts)}" * blocked
    for each in known:
        seconds = 0.0 if each.oldest_receive is None else (now.at - to_micros(each.oldest_receive)) / MICROS
        if each.is_gone and each.in_flight:
            yield _abandoned(name, attributes, each, now, seconds, seconds <= limit)
        elif seconds > (min(slow, limit) if blocked and each.processes else limit):
            who, lasts = each.consumer or "a consumer without a name", shown_duration(seconds)
            text, brief = (
                f"{who} has held a message of {name} for {lasts}{wait}",
                f"{who} has held a message for {lasts}{f', {now.counts.visible:,} wait' * blocked}",
            )
            if each.silent and not each.processes:
                state = "is stopped" if each.silent[0].stopped else "was killed"
                text, brief = f"{text}; {each.silent[0].not_seen()}", f"{brief}, its process {state}"
            steps, gone = _release(shlex.quote(name), each), None if each.processes else each.consumer
            others = [process for process in each.processes if not process.dumps]  # not `lakequeue consume`
            hint = (
                "its messages return at once if it stops on SIGTERM, else after their visibility timeout"
                if others
                else ""
            )
            may_be_slow = seconds <= min(UNREAD_SECONDS, limit)
            yield Concern(name, "stuck", text, hint, steps, brief, consumer=gone, notice=may_be_slow)


def _abandoned(
    name: str, attributes: QueueAttributes, held: ActiveConsumer, now: Depth, seconds: float, recent: bool
) -> Concern:
    """Returns the concern about messages of a killed consumer. A notice if they come back within minutes."""
    messages = counted(held.in_flight, "message")
    text = f"a killed process has held {messages} of {name} for {shown_duration(seconds)}"
    text = f"{text}: {held.consumer}, {held.silent[0].not_seen()}"
    brief = f"{held.consumer} was killed and holds {messages}"
    returns_at = from_micros(now.at) if held.returns_at is None else held.returns_at
    left = max(0.0, (to_micros(returns_at) - now.at) / MICROS)
    when = f"at {returns_at:%F %H:%M}Z, in {shown_duration(left)}"
    hint = f"{'it comes back by itself' if held.in_flight == 1 else 'they come back by themselves'} {when}"
    steps = [*_release(shlex.quote(name), held)]
    if held.spent and attributes.redrive is not None:
        letters = attributes.redrive.dead_letter_queue.rpartition(":")[2]
        hint = _spent(held, letters, when)
        back = "sends them back from there, once the cause is fixed"
        steps.append(Remedy(f"lakequeue redrive {shlex.quote(letters)}", back))
    soon = recent and left <= SLOW_SECONDS and not held.spent
    return Concern(name, "abandoned", text, hint, steps, brief, consumer=held.consumer, notice=soon)


def _spent(held: ActiveConsumer, letters: str, when: str) -> str:
    """Says which messages of a killed consumer become dead letters at their next receive."""
    every = held.spent == held.in_flight
    which = "it goes" if held.in_flight == 1 else "all go" if every else f"{held.spent:,} of them go"
    which += "es" * (held.spent == 1 and not every)
    why = "as each death of a consumer counts as a receive"
    return (
        f"{which} to {letters} at the next receive, {when}, {why}{'' if every else '; the others come back then'}"
    )


def _all_older(now: Depth, known: Sequence[ActiveConsumer], seconds: float) -> bool:
    """True if handlers run, the oldest handler call of each process began more than ``seconds`` ago, and all
    messages in flight were received more than ``seconds`` ago.
    """
    until = now.at - seconds * MICROS
    handlers = [process.oldest_handler for each in known for process in each.processes if process.oldest_handler]
    receives = [each.newest_receive for each in known if each.newest_receive]
    return bool(handlers) and all(to_micros(each) < until for each in (*handlers, *receives))


def _look(process: ConsumerProcess) -> Remedy:
    """Returns the command that shows where a process hangs."""
    if process.dumps:
        command = f"kill -USR1 {process.pid}"
        return Remedy(command, f"on {process.host} has it print where its handler hangs, to its log")
    return Remedy(f"py-spy dump --pid {process.pid}", f"on {process.host} shows where its handler hangs")


def _end(process: ConsumerProcess) -> Remedy:
    """Returns the command that ends a process. `lakequeue consume` may need its drain timeout, 30 s, to end."""
    ends = f"on {process.host} ends it"
    if process.dumps:
        ends += " within 30s, unless --drain-timeout is longer, and hands its messages back; kill -9 if it stays"
    return Remedy(f"kill {process.pid}", ends)


def _release(quoted: str, held: ActiveConsumer) -> Sequence[Remedy]:
    """Returns commands that free the messages that a stuck consumer holds."""
    if held.processes:
        return [step for one in held.processes[:3] for step in (_look(one), _end(one))]
    of_it = f'"consumer = ?" --parameter {shlex.quote(held.consumer)}' if held.consumer else '"consumer IS NULL"'
    return (
        Remedy(f"lakequeue reschedule {quoted} --in-flight --where {of_it}", "frees what it has, after asking"),
    )
