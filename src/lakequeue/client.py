"""The entry: a root and its queues."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal

from lakequeue.errors import InvalidParameterValue, QueueClientError
from lakequeue.model.arguments import check_text
from lakequeue.model.clock import Clock, SystemClock
from lakequeue.operations import queues
from lakequeue.queue import Queue
from lakequeue.runtime.root import Root

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from typing_extensions import Unpack

    from lakequeue.model.attribute_types import NewQueueAttributes
    from lakequeue.operations.compact import CompactionSummary, Progress

MAX_LISTED = 1_000


class LakeQueue:
    """Queues under one root directory or URI; thread-safe, and starting it starts no JVM.

    As a context manager it releases at the end what this process holds of the root; a later call opens it again.

    Args:
        root: local path or URI; it must be writable and hold nothing else. ``create_queue`` creates it.
        spark: session for the DataFrame verbs.
        engine: ``auto`` commits through delta-rs and moves DataFrames through Spark; ``spark`` commits
            through Spark too, where the Python process may not touch storage (slow); ``point`` refuses Spark.
        clock: source of time; tests pass ``lakequeue.testing.ManualClock``.
        region: part of every queue's identity (NAM-6, NAM-7).
        root_mode: permission bits that the directory of a new local root gets; ``0o2770`` shares it with a group,
            see docs/operation/permissions.md.
    """

    def __init__(
        self,
        root: str,
        *,
        spark: SparkSession | None = None,
        engine: Literal["auto", "point", "spark"] = "auto",
        clock: Clock | None = None,
        region: str = "local",
        root_mode: int = 0o700,
    ) -> None:
        if not isinstance(root_mode, int) or root_mode not in range(0o7777 + 1) or root_mode & 0o700 != 0o700:
            raise InvalidParameterValue.of(
                root_mode,
                "root_mode",
                "Must be permission bits that give the owner all rights, as 0o700 or 0o2770.",
            )
        if engine not in ("auto", "point", "spark"):
            raise InvalidParameterValue(f'engine must be "auto", "point" or "spark", not {engine!r}')
        if engine == "spark" and spark is None:
            raise QueueClientError('engine="spark" needs a session: LakeQueue(root, spark=…)')
        check_text("region", region)
        used = None if engine == "point" else spark
        self._runtime = Root(root, clock or SystemClock(), region, root_mode, used, engine == "spark")

    def __enter__(self) -> LakeQueue:
        return self

    def __exit__(self, *_: object) -> None:
        """Releases the tables that this process holds open and what it has cached; deletes nothing."""
        self._runtime.release()

    def __repr__(self) -> str:
        return f"LakeQueue({self.root!r}, region={self.region!r}, engine={self._runtime.engine.name!r})"

    @property
    def root(self) -> str:
        """Local path or URI of the root."""
        return self._runtime.path

    @property
    def region(self) -> str:
        return self._runtime.region

    @property
    def clock(self) -> Clock:
        """Source of time."""
        return self._runtime.clock

    @property
    def spark(self) -> SparkSession | None:
        """The session for DataFrame verbs, if there is one."""
        return self._runtime.spark

    @property
    def runtime(self) -> Root:
        """What this process holds of the root: internals, which may change in any release."""
        return self._runtime

    def create_queue(
        self,
        name: str,
        *,
        fifo: bool = False,
        tags: dict[str, str] | None = None,
        **attributes: Unpack[NewQueueAttributes],
    ) -> Queue:
        """Creates a queue, or returns the one that has the name and all the given attributes (QUE-15).

        Args:
            name: 1 to 80 letters, digits, ``-`` and ``_`` (NAM-5); profile ``cmq`` has its own rule (NAM-10).
            fifo: a FIFO queue; its name must end in ``.fifo`` (NAM-1).
            tags: see ``Queue.set_tags``.
            attributes: snake_case or wire names, ``profile`` and ``shards`` among them.

        Raises:
            InvalidParameterValue: the name breaks the rule.
            InvalidAttributeName, InvalidAttributeValue: an attribute is unknown or out of range.
            InvalidParameterValue, QueueDoesNotExist: a redrive policy is refused, see ``Queue.set_attributes``.
            QueueNameExists: the name is taken by a queue that differs (QUE-15), or taken at all (QUE-16).
            QueueDeletedRecently: the profile wants a pause after a deletion (QUE-14).
            QueueClientError: the root holds something else, or cannot be written.
        """
        return Queue(queues.create(self._runtime, name, fifo, tags, attributes))

    def queue(self, name: str) -> Queue:
        """The queue of this name in the region.

        Raises:
            QueueDoesNotExist: there is none (QUE-27).
            QueueClientError: the root does not exist, holds something else, or has a newer layout.
        """
        return Queue(queues.find(self._runtime, name))

    def list_queues(self, prefix: str = "", limit: int | None = None, after: str | None = None) -> list[Queue]:
        """Queues of the region by name (QUE-11, QUE-12).

        Args:
            prefix: only names with this prefix.
            limit: maximum number of queues, 1 to 1,000.
            after: only names after this one, as the last name of the page before.
        """
        whole = isinstance(limit, int) and not isinstance(limit, bool)
        if limit is not None and not (whole and 1 <= limit <= MAX_LISTED):
            raise InvalidParameterValue.of(limit, "MaxResults", f"Must be between 1 and {MAX_LISTED}.")
        return [Queue(queue) for queue in queues.listed(self._runtime, prefix, limit or MAX_LISTED, after)]

    def all_queues(self) -> list[Queue]:
        """Every queue of the region, by name."""
        return [Queue(queue) for queue in queues.living(self._runtime)]

    def delete_queue(self, name: str) -> None:
        """Deletes a queue with everything in it (QUE-13, QUE-14).

        Raises:
            QueueDoesNotExist: there is none.
        """
        queues.delete(self._runtime, name)

    def register_views(
        self, spark: SparkSession, now: datetime | None = None, as_of: datetime | None = None
    ) -> None:
        """Creates the temporary views ``queues``, ``messages``, ``receipts``, ``history`` and ``stats``.

        Args:
            spark: the session.
            now: the instant that states are judged at; None is ``as_of``, or else the time of each query.
            as_of: an aware instant by the machine's clock: show the tables as they were then. Earlier versions are
                kept for ten minutes, those of busy shards for 200 commits; ``stats`` reaches further back.

        Raises:
            QueueClientError: the log of a table no longer reaches back to ``as_of``.
            InvalidParameterValue: ``now`` or ``as_of`` is no aware instant.
        """
        for statement in self.view_statements(now, as_of):
            spark.sql(statement)

    def view_statements(self, now: datetime | None = None, as_of: datetime | None = None) -> list[str]:
        """The SQL that creates these views, for a session outside Python; needs no JVM."""
        from lakequeue.operations import views

        return views.statements(self._runtime, now, as_of)

    def compact(self, progress: Progress | None = None) -> list[CompactionSummary]:
        """Frees the storage that the queues of the root, of all regions, no longer need; changes no answer.

        It expires messages, drops and merges parts of the logs, removes old files and log entries, removes queues
        that were deleted a day ago, and records the depth of each queue in the ``stats`` table, once a minute. It
        may run beside all other calls, twice at once, and be killed at any point.

        Args:
            progress: called with the number of queues done, the number of all, and the name of the next one.

        Returns:
            A summary per queue, and one for the tables of the root, whose ``queue`` is None. Its ``failures`` name
            the steps that failed.

        Raises:
            QueueClientError: the root does not exist, or holds no queues.
        """
        from lakequeue.operations.compact import compact_root

        return compact_root(self._runtime, progress)
