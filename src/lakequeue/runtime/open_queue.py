"""A queue in this process: its catalog row, attributes and shards, kept current."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import attrs

from lakequeue.errors import DamagedTable, QueueClientError, QueueDoesNotExist, QueueServiceError, coded_for
from lakequeue.model import redrive_policies
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import SystemClock
from lakequeue.model.damage import DamagedReads
from lakequeue.runtime.calls import CallCounters, Steps, logged
from lakequeue.runtime.delivery_state import DeliveryState
from lakequeue.runtime.open_shard import OpenShard
from lakequeue.runtime.root import Root
from lakequeue.shard.commands import Close, Command, SetAttributes
from lakequeue.shard.runs import Destination
from lakequeue.storage.catalog import QueueRow, lost_row
from lakequeue.storage.delta_log import LOG
from lakequeue.storage.layout import messages_path, receipts_path
from lakequeue.storage.roots import local_path
from lakequeue.storage.store_failures import first_line

_Checked = TypeVar("_Checked")
_log = logging.getLogger("lakequeue")


class OpenQueue:
    """One incarnation of a queue. A queue that is created again is another incarnation. Thread-safe.

    Attributes:
        row: the queue's row in the catalog, as last read.
        attributes: the attributes in ``row``.
        dead_letter_queues: known destinations of dead letters, by the ARN of the dead-letter queue.
        finishing_moves: lock that is held while a move is completed.
        damage: damaged messages that receives met.
    """

    def __init__(self, root: Root, row: QueueRow) -> None:
        self.root = root
        self.row = row
        self.attributes = QueueAttributes.from_wire(row.attributes)
        self.shards: list[OpenShard] = root.shards(row)
        self.dead_letter_queues: dict[str, Destination] = {}
        self.finishing_moves = threading.Lock()
        self.delivery = DeliveryState()
        self.damage = DamagedReads()
        self._row_checked_at = root.now()

    def log_folders(self) -> list[str]:
        """Returns the shards' log directories. Empty on object stores, or if the clock is not the system's."""
        root = local_path(self.root.path)
        if root is None or not isinstance(self.root.clock, SystemClock):
            return []
        return [
            os.path.join(path(root, self.key, shard.number), LOG)
            for shard in self.shards
            for path in (messages_path, receipts_path)
        ]

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def region(self) -> str:
        return self.row.region

    @property
    def key(self) -> str:
        """Name of the queue's directory: a hash of region and queue name, and the incarnation."""
        return self.row.key

    @property
    def fifo(self) -> bool:
        return self.attributes.fifo

    @property
    def arn(self) -> str:
        return redrive_policies.arn(self.region, self.name)

    def now(self) -> int:
        """Returns the clock's time in microseconds."""
        return self.root.now()

    # --- calls

    @contextmanager
    def service(self, verb: str) -> Iterator[CallCounters]:
        """Context of a call. Logs the call, converts its errors, and completes an interrupted deletion."""
        with coded_for(self.attributes.profile), logged(verb, self.name) as call:
            with self.root.storage_errors():
                self._check_row()
            try:
                with self.root.storage_errors():
                    yield call
            except QueueDoesNotExist:
                # a deletion begins at the first shard; if that is open, the error is about another queue
                with self.root.storage_errors():
                    if not self._deleted() and self.shards[0].sender.closed():
                        self.delete()
                raise
            except QueueClientError as error:
                if error.outcome_unknown or not self._deleted():
                    raise
                raise QueueDoesNotExist() from error  # its tables are gone

    def _check_row(self) -> None:
        """At intervals, checks if the catalog has the queue. Raises DamagedTable if a restore lost it (DUR-7)."""
        now = self.now()
        if 0 <= now - self._row_checked_at < self.root.row_interval or not self.root.lock.acquire(blocking=False):
            return  # without waiting: the lock's holder may be making tables
        try:
            row = self.root.newest_row(self.key, self.row)
        finally:
            self.root.lock.release()
        if row is None:
            with suppress(FileNotFoundError):  # it was deleted a day ago
                if not self.shards[0].sender.closed():
                    raise lost_row(self.root.path, self.key, self.name)
        if row is not None and row.handle_key != self.row.handle_key:
            self.adopt(row)  # a repair has listed the queue again
        self._row_checked_at = now

    def tally(self, **amounts: int) -> None:
        """Adds ``amounts`` to the queue's totals. For the names, see ``Tallies.add``."""
        self.root.tallies.add(self.name, **amounts)

    def _deleted(self) -> bool:
        try:
            row = self.root.living(self.key)
        except Exception:
            return False
        if row is not None:
            return False
        self.root.forget_shards(self.key)
        return True

    # --- attributes

    def validated(self, check: Callable[[], _Checked]) -> tuple[int, _Checked]:
        """Calls the function ``check``. If ``check`` fails, and there are newer attributes, calls it again.
        Returns the version of the attributes, and the result of ``check``.
        """
        # the version first: another thread may adopt newer attributes during the check
        version = self.row.attributes_version
        try:
            return version, check()
        except QueueServiceError:
            if not self.reload():
                raise
            version = self.row.attributes_version
            return version, check()

    def reload(self) -> bool:
        """Reads the queue's row again. Returns True if attributes changed. Raises QueueDoesNotExist."""
        row = self.root.living(self.key)
        if row is None:
            raise QueueDoesNotExist()
        changed = row.attributes_version != self.row.attributes_version
        self.adopt(row)
        return changed

    def follow(self) -> None:
        if any(shard.ledger.attributes_version > self.row.attributes_version for shard in self.shards):
            self.reload()

    def renew(self) -> None:
        """Called after the log refused a send for the version of its attributes. Reads newer attributes from the
        catalog and the shards. If neither has newer attributes, a change of attributes was interrupted. Then
        announces this process's attributes to the log.
        """
        if not self.reload() and not self.catch_up():
            self.announce_attributes()  # the last change was interrupted before it reached the log

    def catch_up(self) -> bool:
        """Adopts the shards' attributes, and returns True, if these are newer than the catalog's (DUR-7)."""
        heads = [shard.ledger.query(lambda machine: machine.head) for shard in self.shards]
        head, known = max(heads, key=lambda each: each.attributes_version), self.row
        version = max(head.attributes_version, *(shard.sender.attributes_version() for shard in self.shards))
        if version <= known.attributes_version:
            return False
        newer = dict(head.attributes) if head.attributes_version > known.attributes_version else known.attributes

        def caught_up(row: QueueRow) -> QueueRow:
            if row.attributes_version >= version:
                return row
            shards = max(row.shards, int(newer.get("Shards", 1)))
            return attrs.evolve(row, attributes=newer, attributes_version=version, shards=shards)

        self.update(caught_up)
        return True

    def adopt(self, row: QueueRow) -> None:
        # in this order: a thread that reads the version, then the attributes, never gets older attributes
        self.attributes = QueueAttributes.from_wire(row.attributes)
        self.row = row
        self.root.shards(row)  # adds those that are new

    def update(self, change: Callable[[QueueRow], QueueRow]) -> None:
        self.adopt(self.root.update(self.row, change))

    def announce_attributes(self) -> None:
        """Writes the catalog's attributes to every shard, which completes an interrupted change (QUE-25)."""
        row = self.row
        version = row.attributes_version
        if version == 0:
            return
        command = SetAttributes(dict(row.attributes), version)
        for shard in self.shards:
            self.command(shard, command)
            shard.sender.announce_attributes(version)

    def release(self) -> None:
        """Closes this process's handles on the queue's tables. The next call opens them again."""
        for shard in self.shards:
            shard.release()

    # --- shards

    def learn_of_shards(self) -> None:
        """Opens shards that were added to the queue. Raises QueueDoesNotExist if the queue was deleted."""
        self.shards[0].ledger.query(lambda _: None)

    def command(self, shard: OpenShard, command: Command) -> Any:
        """Applies one command to a shard. Returns the command's value, or raises its error."""
        [result] = shard.ledger.command([command], self.now)
        if result.error is not None:
            raise result.error
        return result.value

    def delete(self) -> None:
        """Deletes the queue, or completes a deletion. Finally marks the catalog's row as deleted (QUE-13)."""
        row = self.root.living(self.key)
        if row is None:
            self.root.forget_shards(self.key)
            return
        self.root.check_clock(self.name)
        self.adopt(row)
        steps = Steps("the deletion")
        with steps.step():
            self.close_shards()
        now = self.now()
        with steps.step(), suppress(QueueDoesNotExist):  # another process deleted it
            self.root.update(self.row, lambda newest: attrs.evolve(newest, deleted_at=now))
        self.root.forget_shards(self.key)

    def close_shards(self) -> None:
        """Makes the shards refuse all later sends and commands, permanently."""
        steps = Steps("the deletion")
        for shard in self.shards:
            with steps.step(), _unless_broken(shard):
                shard.sender.close()
        for shard in self.shards:
            with steps.step(), suppress(QueueDoesNotExist), _unless_broken(shard):
                self.command(shard, Close())


@contextmanager
def _unless_broken(shard: OpenShard) -> Iterator[None]:
    """Suppresses errors of a missing or damaged table, because no process can use the table."""
    try:
        yield
    except (DamagedTable, FileNotFoundError) as error:
        _log.warning("shard %s of a queue is deleted as it is: %s", shard.number, first_line(error))
