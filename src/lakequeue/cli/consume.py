"""The command that runs a consumer."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import typer

from lakequeue.cli.options import argument, duration_option, flag, option, queue_argument
from lakequeue.cli.output import printable
from lakequeue.cli.session import REFUSED, CommandContext, Session, usage
from lakequeue.cli.values import at_least, imported
from lakequeue.model.log_lines import FAILED_WITH, JsonLines
from lakequeue.model.stack_dumps import answer_signal

if TYPE_CHECKING:
    from lakequeue import Consumer, Queue, Renewal


RenewalName = Literal["heartbeat", "computed", "none"]


def consume(
    ctx: CommandContext,
    names: list[str] = queue_argument(..., "Names of the queues.", "QUEUE..."),
    handler: str = argument(..., "Handler of a message and its context; may be async.", "MODULE:FUNCTION"),
    weights: str | None = option(
        None, "How often a free handler takes a message of each queue; by default all equally often.", "N,N,..."
    ),
    concurrency: int = option(10, "Messages handled at a time.", "N", min=1),
    batch: int | None = option(None, "Call the handler with lists of up to N messages.", "N", min=1, max=10_000),
    batch_wait: float | None = duration_option(
        None, "How long a message waits for others of its batch: 1 s by default."
    ),
    claim_interval: float | None = duration_option(
        None,
        "How long to wait after a claim of all messages: 1 s by default on an object store, else 0.",
    ),
    as_arrow: bool = flag(False, "Call the handler with tables of Arrow instead of lists.", "--as-arrow"),
    merge_schema: bool = flag(
        False, "Add columns that the delivery table of the queue does not have.", "--merge-schema"
    ),
    prefetch: int | None = option(
        None, "Messages to receive ahead; by default as handlers keep up.", "N", min=0, max=10_000
    ),
    renewal: RenewalName = option(
        "heartbeat",
        "How messages are kept hidden while their handlers run: heartbeat, computed or none.",
        "POLICY",
    ),
    visibility_timeout: float | None = duration_option(
        None,
        "How long a received message stays hidden unless extended: 30 s by default with heartbeat, else the "
        "queue's timeout.",
    ),
    retry_delay: float | None = duration_option(
        None, "Delay before a failed message comes again; it doubles with each failure, up to 15 minutes."
    ),
    wait_time: float = duration_option(20, "How long a receive waits for messages.", "--wait"),
    until_empty: bool = flag(
        False, "End when no message is visible; code 1 if failed ones wait for a retry.", "--until-empty"
    ),
    fail_on_error: bool = flag(
        False,
        "End with code 1 if a handler failed, even if a retry succeeded, or dead letters were not handled.",
        "--fail-on-error",
    ),
    consumer_name: str | None = option(
        None,
        "Name in logs, dead letters and messages in flight; by default host and process id.",
        "NAME",
        "--name",
    ),
    drain_timeout: float = duration_option(
        30,
        "How long running handlers get after SIGTERM or SIGINT; then their messages are handed back.",
        parser=at_least(0),
    ),
    give_up_after: float | None = duration_option(
        None, "End once storage has failed for this long, or damage was met for this long; else wait."
    ),
    metrics_port: int | None = option(None, "Answer Prometheus at this port.", "PORT", min=0, max=65535),
    metrics_host: str = option(
        "127.0.0.1", "Address of that port; 0.0.0.0 for scrapes from elsewhere.", "ADDRESS"
    ),
    opentelemetry: bool = flag(
        False, "Record spans and metrics by OpenTelemetry, with the SDK that is configured.", "--opentelemetry"
    ),
) -> None:
    """Run a handler for each message of the queues, until SIGTERM or SIGINT. Exit code 1: met damaged messages."""
    # a shell without job control starts background jobs with SIGINT ignored, but a SIGINT sent here is meant
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _configure_logs(ctx.obj)
    ctx.obj.flags |= dict.fromkeys(("first", "longest"), "--retry-delay")
    ctx.obj.flags |= {"message_visibility_timeout": "--visibility-timeout"}
    function = imported(handler, handler)
    from lakequeue.consumer.consumer import Consumer
    from lakequeue.consumer.options import RetryBackoff
    from lakequeue.consumer.outages import Outage
    from lakequeue.consumer.stacks import running_calls

    if opentelemetry:
        from lakequeue.otel import instrument

        instrument()
    lake = ctx.obj.lake()
    consumed = [lake.queue(name) for name in names]
    consumer = Consumer(
        consumed,
        function,
        concurrency,
        _policy(renewal, visibility_timeout),
        wait_time=wait_time,
        prefetch=prefetch,
        outage=Outage(give_up_after),
        retry_delay=None if retry_delay is None else RetryBackoff(retry_delay, longest=max(900, retry_delay)),
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        name=consumer_name,
        batch=batch,
        batch_wait=batch_wait,
        claim_interval=claim_interval,
        as_arrow=as_arrow,
        merge_schema=merge_schema,
        weights=None if weights is None else _weights(weights),
    )
    answer_signal(partial(running_calls, consumer))  # unless the handler's module has a use of its own for SIGUSR1
    name = ", ".join(names)
    stopping = _Stopping(consumer, drain_timeout)
    logging.getLogger("lakequeue").info(
        "consuming %s with %s, %s at a time%s", name, handler, concurrency, _batches(consumed, batch)
    )
    with lake.schedules.running():
        consumer.run(until_empty)
    _end(consumed, consumer, stopping.signals, until_empty, fail_on_error)


def _batches(queues: Sequence[Queue], batch: int | None) -> str:
    """Says how many messages a batch has, and into which tables the rows of batches go."""
    from lakequeue.entry_verbs import settings

    tables = dict.fromkeys(table for queue in queues if (table := settings(queue).table) is not None)
    into = f", into {', '.join(tables)}" if tables else ""
    return "" if batch is None else f", in batches of up to {batch:,}{into}"


def _end(
    consumed: Sequence[Queue], consumer: Consumer, signals: Sequence[int], until_empty: bool, fail_on_error: bool
) -> None:
    """Logs how a run ended. Raises typer.Exit unless the exit code is 0."""
    from lakequeue.entry_verbs import forget_repaired_damage, met_damage

    ended = until_empty and not signals
    met = [queue for queue in consumed if met_damage(queue).error is not None]
    for queue in [*met]:
        if forget_repaired_damage(queue):
            logging.getLogger("lakequeue").info("the damage of %s is gone", queue.name)
            met.remove(queue)
    waiting = "; ".join(_left(consumed, consumer, met)) if ended else ""
    why = "stopped" if signals else waiting or ("it is empty" if len(consumed) == 1 else "they are empty")
    counted = _counted(consumed, consumer)
    if met and not ended:
        counted += f"; {'; '.join(map(_is_damaged, met))}"
    names = ", ".join(queue.name for queue in consumed)
    logging.getLogger("lakequeue").info("consumed %s, %s: %s", names, why, counted)
    if len(signals) > 1:
        raise typer.Exit(128 + signals[-1])
    if waiting or met or (fail_on_error and (consumer.failed or consumer.halved or consumer.moved_unhandled)):
        raise typer.Exit(REFUSED)


def _counted(consumed: Sequence[Queue], consumer: Consumer) -> str:
    from lakequeue.entry_verbs import settings

    text = f"{consumer.handled:,} handled, {consumer.failed:,} failed"
    if consumer.halved:
        text += f", {consumer.halved:,} of failed batches handled again in halves"
    if consumer.moved_unhandled:
        policies = filter(None, (settings(queue).redrive for queue in consumed))
        letters = " and ".join({policy.dead_letter_queue.rpartition(":")[2]: None for policy in policies})
        text += f", {consumer.moved_unhandled:,} went to {letters or 'a dead-letter queue'} without being handled"
    if consumer.unended:
        text += f", {consumer.unended:,} did not end in time, {consumer.handed_back:,} of them handed back"
    return text


def _weights(given: str) -> list[int]:
    try:
        return [int(weight) for weight in given.split(",")]
    except ValueError:
        usage(f"--weights: must be whole numbers such as 3,1, not {given!r}")


def _is_damaged(queue: Queue) -> str:
    from lakequeue.entry_verbs import repair_command

    return f"{queue.name} has damaged messages, repair it: {repair_command(queue)}"


def _left(queues: Sequence[Queue], consumer: Consumer, met: Sequence[Queue]) -> Iterator[str]:
    """Yields reasons why messages remain in the queues: pauses, undecided deliveries, waits for a retry, damage.

    ``met`` are the queues whose damage the run met. Damage of messages that were hidden then counts, too.
    """
    from lakequeue.entry_verbs import consumers, settings
    from lakequeue.errors import DamagedTable

    counted, damaged = [], [*met]
    for queue in queues:
        try:
            counted.append((queue, queue.counts()))
        except DamagedTable:
            damaged.append(queue)
    delivering = [counts for queue, counts in counted if settings(queue).table is not None]
    for queue, counts in counted:
        if (pauses := settings(queue).pauses) and counts.visible:
            yield from (pause.of(queue.name) for pause in pauses)
    if undecided := sum(counts.undecided for counts in delivering):
        yield f"{undecided:,} undecided"
    # failed messages have attempts, also those of an earlier run
    failed = "receive_count > 0 AND state <> 'undecided' AND (attempts IS NOT NULL{})"
    busy = [queue for queue, counts in counted if counts.in_flight or counts.visible or counts.delayed]
    found = 0
    for queue in busy:
        try:
            names = [consumer.name] * bool(consumer.failed or delivering)  # it has them until their timeout ends
            if settings(queue).table is not None:  # a batch that could not be delivered has no attempts
                names += [each.consumer for each in consumers(queue) if each.consumer and not each.processes]
            mine = f" OR consumer IS NULL OR consumer IN ({', '.join('?' * len(names))})" * bool(names)
            found += len(queue.peek(failed.format(mine), 100, parameters=names))
        except DamagedTable:
            damaged.append(queue)
    yield from dict.fromkeys(map(_is_damaged, damaged))
    if found:
        yield f"{found}{' or more' * (found >= 100)} wait for a retry"
    if consumer.health.outage_since is not None:
        yield f"not all was delivered: {consumer.health.last_error}"


class _Stopping:
    """Handles SIGTERM and SIGINT. The first signal stops the consumer, whose handlers get ``drain_timeout``
    seconds to end. The second signal stops the consumer at once. The third signal kills the process.
    """

    def __init__(self, consumer: Any, drain_timeout: float) -> None:
        self.signals: list[int] = []
        self._consumer = consumer
        self._drain_timeout = drain_timeout
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def _stop(self, number: int, _: object) -> None:
        self.signals.append(number)
        if len(self.signals) > 2:  # storage may never answer; being killed leaves the tables consistent
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            os._exit(128 + number)  # the first process of a container outlives its own signal
        self._consumer.stop(self._drain_timeout if len(self.signals) == 1 else 0)


def _policy(name: RenewalName, timeout: float | None) -> Renewal:
    from lakequeue.renewal.policies import ComputedRenewal, HeartbeatRenewal, NoRenewal

    match name:
        case "computed":
            return ComputedRenewal(timeout)
        case "none":
            if timeout is not None:
                usage("--visibility-timeout: --renewal none always uses the queue's timeout")
            return NoRenewal()
        case _ if timeout is None:
            return HeartbeatRenewal()
    # extends when a sixth of the timeout is left, as in the default: 5 of 30 s
    threshold = timeout / 6
    return HeartbeatRenewal(timeout, extension_threshold=threshold, heartbeat_interval=min(1, threshold / 5))


def _configure_logs(session: Session) -> None:
    from lakequeue.model.clock import SystemClock

    lines = logging.StreamHandler(sys.stderr)
    form = JsonLines if session.json else _TextLines
    lines.setFormatter(form(SystemClock(), stacks=session.verbose))
    logging.basicConfig(level=logging.INFO, handlers=[lines], force=True)


class _TextLines(JsonLines):
    def format(self, record: logging.LogRecord) -> str:
        line = self.fields(record)
        text = " ".join(line[part] for part in ("at", "level", "message"))
        text += "".join(f" {name}={line[name]}" for name in FAILED_WITH if name in line)
        text += f": {line['error']}" if "error" in line else ""
        text = printable(" ".join(text.split()))
        return text + (f"\n{printable(line['stack'])}" if "stack" in line else "")
