"""Finds the consumers of a queue from messages in flight, and from files of the consumers. May miss consumers."""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import attrs

from lakequeue.errors import LakeQueueError
from lakequeue.model.clock import from_micros, shown_duration, to_micros
from lakequeue.model.consumer_processes import ConsumerFile, ConsumerProcess
from lakequeue.model.damage import MET_KEPT
from lakequeue.operations.depth import of_each_shard, or_errors
from lakequeue.runtime.open_queue import OpenQueue
from lakequeue.runtime.root import Root
from lakequeue.shard.peek import Holding
from lakequeue.storage import consumer_files

Running = Mapping[str, Sequence[ConsumerFile]]
"""Last reports of running and killed consumers, by the key of each queue from which they receive."""

_log = logging.getLogger("lakequeue")


@attrs.frozen
class ActiveConsumer:
    """A consumer that runs, has messages in flight, or was killed."""

    consumer: str | None
    """Name of the consumer. None stands for all consumers without a name, such as SQS clients."""
    in_flight: int
    oldest_receive: datetime | None
    """When the first of the messages in flight was received; None without messages in flight."""
    newest_receive: datetime | None
    """When the last of the messages in flight was received; None without messages in flight."""
    processes: Sequence[ConsumerProcess] = ()
    """Processes with a ``Consumer`` of this name that reported in the last three minutes."""
    silent: Sequence[ConsumerProcess] = ()
    """Processes of this consumer that stopped reporting, or are stopped. Most were killed."""
    returns_at: datetime | None = None
    """When the last of the messages in flight becomes visible, unless it is extended; None without messages."""
    spent: int = 0
    """Number of the messages in flight that become dead letters at their next receive."""

    @property
    def is_active(self) -> bool:
        """True if the consumer runs, or has messages in flight and is not known to be gone."""
        return bool(self.in_flight or self.processes) and not self.is_gone

    @property
    def is_gone(self) -> bool:
        """True if the consumer had processes of this machine, and all of them have ended without a last report."""
        return bool(self.silent) and not self.processes and all(process.ended for process in self.silent)


def consumers(queue: OpenQueue, running: Running | None = None) -> list[ActiveConsumer]:
    """Returns a queue's consumers, latest receive first, then idle and killed consumers (JOB-14)."""
    with queue.service("consumers"):
        now = queue.now()
        parts = of_each_shard(queue, lambda shard: shard.ledger.query(lambda machine: machine.holdings(now)))
    total: dict[str | None, Holding] = {}
    for part in parts:
        for name, held in part.items():
            total[name] = held.with_(total.get(name))
    return _merged(total, (running_consumers(queue.root) if running is None else running).get(queue.key, ()))


def idle(queue: OpenQueue, running: Running) -> list[ActiveConsumer]:
    """Returns running and killed consumers from their reports only, as if no messages were in flight."""
    return _merged({}, running.get(queue.key, ()))


def _merged(held: Mapping[str | None, Holding], files: Iterable[ConsumerFile]) -> list[ActiveConsumer]:
    found: dict[str | None, ActiveConsumer] = {}
    for name, each in sorted(held.items(), key=lambda item: (-item[1].last_received_at, item[0] or "")):
        receives = from_micros(each.first_received_at), from_micros(each.last_received_at)
        returns_at = from_micros(each.last_visible_at)
        found[name] = ActiveConsumer(name, each.messages, *receives, returns_at=returns_at, spent=each.spent)
    for file in files:
        known = found.get(file.name, ActiveConsumer(file.name, 0, None, None))
        if not file.silent:
            found[file.name] = attrs.evolve(known, processes=[*known.processes, file.process])
            continue
        silent = sorted([*known.silent, file.process], key=lambda process: process.seen_at, reverse=True)
        found[file.name] = attrs.evolve(known, silent=silent)
    return sorted(found.values(), key=lambda each: not each.is_active)


def all_consumers(
    queues: Sequence[OpenQueue], running: Running
) -> Iterator[list[ActiveConsumer] | LakeQueueError]:
    """Yields the consumers of each queue, or the error of the read. Reads several queues concurrently."""
    yield from or_errors(lambda queue: consumers(queue, running), queues)


def running_consumers(root: Root) -> Running:
    """Returns the last reports of running and killed consumers. Empty if the reports cannot be read."""
    found: dict[str, list[ConsumerFile]] = {}
    try:
        with root.storage_errors():
            files = consumer_files.load(root.engine.store, root.path, root.now())
    except LakeQueueError as error:  # the ledgers say more, and report a storage that fails
        _log.debug("the files of running consumers cannot be read: %s", error)
        files = []
    for file in files:
        if (ended := _has_ended(file)) or _is_stopped(file):
            file = attrs.evolve(
                file, process=attrs.evolve(file.process, ended=ended, stopped=not ended), silent=True
            )
        for key in file.queues:
            found.setdefault(key, []).append(file)
    return found


@attrs.frozen
class DamageReport:
    """Damaged messages of a queue that a consumer met, and reported within ``MET_KEPT``."""

    consumer: str
    process: ConsumerProcess
    at: datetime

    def __str__(self) -> str:
        return f"{self.consumer}, {self.process}, at {self.at:%F %T}Z"


def damage_reports(running: Running, now: int) -> dict[str, DamageReport]:
    """Returns the newest report of each damaged queue, by the queue's key. ``now`` is in microseconds."""
    found: dict[str, DamageReport] = {}
    for key, files in running.items():
        met = [(file.damaged[key], file) for file in files if key in file.damaged]
        at, file = max(met, key=lambda each: each[0], default=(None, None))
        if at is not None and file is not None and now - to_micros(at) <= MET_KEPT:
            found[key] = DamageReport(file.name, file.process, at)
    return found


def _has_ended(file: ConsumerFile) -> bool:
    """True if the process has ended. False if it runs, or if this process cannot see it."""
    if not _is_here(file):
        return False
    try:
        os.kill(file.process.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # it belongs to another user, or the file is not ours
        pass
    return False


def _is_stopped(file: ConsumerFile) -> bool:
    try:  # the state follows the command's name, which may have parentheses
        return _is_here(file) and b") T " in Path(f"/proc/{file.process.pid}/stat").read_bytes()
    except OSError:
        return False


def _is_here(file: ConsumerFile) -> bool:
    here, process = file.pid_space == (_pid_space() or "unknown"), file.process
    return here and process.pid > 0 and process.host == socket.gethostname()


def _pid_space() -> str | None:
    """Identifies the boot of the machine and the process namespace. Returns None except on Linux."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def report_consumer(queue: OpenQueue, number: str, content: ConsumerFile) -> None:
    """Writes the file of a running consumer. The file also gets the number of messages that this process has
    received, and the number of its requests to the object store.
    """
    root = queue.root
    received = sum(amounts["received"] for amounts in root.tallies.all().values())
    requests = root.engine.store.requests.counts()
    content = attrs.evolve(content, requests=requests, received=received, pid_space=_pid_space())
    with root.storage_errors():
        consumer_files.write(root.engine.store, root.path, number, content)


@attrs.frozen
class StoreUse:
    """Numbers of object store requests by kind, and of received messages, for all running consumers."""

    requests: Mapping[str, int]
    received: int

    @classmethod
    def of(cls, running: Running) -> StoreUse | None:
        """Adds up the requests of all consumer processes. Returns None on a local disk, or if no consumer runs."""
        newest: dict[tuple[str, int], ConsumerFile] = {}  # consumers of one process count the same requests
        living = (file for files in running.values() for file in files if not file.silent)
        for file in sorted(living, key=lambda file: file.received):
            newest[file.process.host, file.process.pid] = file
        requests = sum((Counter(file.requests) for file in newest.values()), Counter[str]())
        return cls(requests, sum(file.received for file in newest.values())) if requests else None

    def __str__(self) -> str:
        each = ", ".join(
            f"{number / max(1, self.received):.2f} {kind}"
            for kind, number in sorted(self.requests.items(), key=lambda item: -item[1])
            if kind != "delete"  # which costs nothing
        )
        return f"{each} a message ({self.received:,} received)"


@attrs.frozen
class LongestHandler:
    """The oldest handler call of all running consumers, according to the last report of its process."""

    process: ConsumerProcess
    seconds: float
    queues: Sequence[str]
    """Names of the consumer's queues. The report does not say for which of these queues the handler runs."""

    @classmethod
    def of(cls, running: Running, names: Mapping[str, str]) -> LongestHandler | None:
        """Returns the oldest running handler, or None if no handler runs. ``names`` maps queue keys to names."""
        found = dict[ConsumerProcess, list[str]]()
        for key, name in names.items():
            for file in running.get(key, ()):
                if not file.silent and file.process.oldest_handler is not None:
                    found.setdefault(file.process, []).append(name)
        calls = [cls(process, _age(process), queues) for process, queues in found.items()]
        return max(calls, key=lambda call: call.seconds, default=None)

    def __str__(self) -> str:
        return f"{shown_duration(self.seconds)} when last seen, {' or '.join(self.queues)}, {self.process}"


def _age(process: ConsumerProcess) -> float:
    return 0.0 if process.oldest_handler is None else (process.seen_at - process.oldest_handler).total_seconds()


def forget_consumer(queue: OpenQueue, number: str) -> None:
    with queue.root.storage_errors():
        consumer_files.remove(queue.root.engine.store, queue.root.path, number)
