"""Ways to commit the messages of a group of sends: directly, or as a staged file."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from lakequeue.errors import QueueServiceError, RequestThrottled
from lakequeue.model.attributes import QueueAttributes
from lakequeue.runtime.send_places import Places, Sent, ShardSend
from lakequeue.storage.engines.commit_failures import StaleAttributes
from lakequeue.storage.engines.data_files import DataFile
from lakequeue.storage.engines.transaction import Change, Ids
from lakequeue.storage.messages.append import Appended, Appender, NewMessage
from lakequeue.storage.messages.staged_sends import StagedSend, unknown
from lakequeue.storage.store_failures import failure_left_to_others

LOOKS = 3
"""After this many commits of other processes without the sender's messages, the sender waits for its turn."""


class PlainCommit:
    """A commit that writes messages directly, without a staged file."""

    def lost(self, appender: Appender) -> None:
        if appender.table.folder.local is None:  # on a disk other senders show in the wait for a turn
            appender.stage_next()

    def find(self, appender: Appender) -> Appended | None:
        """Returns where another process has put the messages, or None if the snapshot lacks the messages."""
        return None

    def stage(self, appender: Appender, messages: Sequence[NewMessage], version: int, *, alone: bool) -> OwnFile:
        """Stages the messages, and returns the object that commits the file. See ``staged_sends.stage``."""
        staged = appender.stage(messages, version, alone=alone)
        return OwnFile(staged) if alone else SharedFile(staged)

    def change(
        self, appender: Appender, messages: Sequence[NewMessage], now: int, version: int, ids: Ids
    ) -> Change[Callable[[], Appended]]:
        return appender.append(messages, now, version, ids)

    def answers(self, batch: SendBatch, first: int) -> list[Sent | BaseException]:
        """Returns the answers to the sends of a committed batch, which begins at offset ``first``."""
        return batch.answers

    def failure(self, error: Exception) -> Exception:
        return error


@attrs.define
class OwnFile(PlainCommit):
    """Messages in a staged file that only this process may commit."""

    staged: StagedSend
    others: Sequence[DataFile] | None = attrs.field(default=None, init=False)
    """Staged files of other processes that go into the same commit. None if the files were not listed yet."""

    def lost(self, appender: Appender) -> None:
        appender.stage_next()

    def stage(self, appender: Appender, messages: Sequence[NewMessage], version: int, *, alone: bool) -> OwnFile:
        ids = [message.message_id for message in messages]
        if appender.can_commit(self.staged) and self.staged.rows["message_id"].to_pylist() == ids:
            return self
        self.give_up(version)
        return super().stage(appender, messages, version, alone=alone)

    def change(
        self, appender: Appender, messages: Sequence[NewMessage], now: int, version: int, ids: Ids
    ) -> Change[Callable[[], Appended]]:
        return appender.append_staged(self.staged, now, ids, self.is_patient(), self.others)

    def is_patient(self) -> bool:
        """True if the next commit waits for its turn, even if another process commits meanwhile."""
        return True

    def give_up(self, version: int) -> None:
        """Called before another file replaces this file. Raises an error if this file may still be committed."""


@attrs.define
class SharedFile(OwnFile):
    """Messages in a staged file that any process may commit."""

    looks: int = 0
    """Number of other processes' commits in which this process has already searched for this file."""

    def find(self, appender: Appender) -> Appended | None:
        if appender.table.folder.local is not None:
            return appender.find(self.staged)
        turn = appender.await_turn(self.staged)
        if isinstance(turn, Appended):
            return turn
        self.others = turn
        return None

    def give_up(self, version: int) -> None:
        if self.staged.attributes_version == version:
            raise unknown("it is too old")

    def is_patient(self) -> bool:
        self.looks += 1
        return self.looks > LOOKS

    def answers(self, batch: SendBatch, first: int) -> list[Sent | BaseException]:
        return batch.answers_of(self.staged.attributes_version, Places(first, None))

    def failure(self, error: Exception) -> Exception:
        """Returns an error with ``outcome_unknown``, because other processes may still commit the file. Returns
        ``error`` itself if the log is closed or has newer attributes, because no process will commit the file.
        """
        if isinstance(error, (QueueServiceError, StaleAttributes)) and not isinstance(error, RequestThrottled):
            return error
        return failure_left_to_others(error, unknown)


@attrs.define
class SendBatch:
    """The sends of one group commit, their answers, and the way to commit the messages."""

    sends: Sequence[ShardSend]
    answers: list[Sent | BaseException] = attrs.field(factory=list)
    way: PlainCommit = attrs.field(factory=PlainCommit)

    def attributes(self, version: int) -> QueueAttributes:
        """Returns this version of the attributes, if a send used it; otherwise the first send's attributes."""
        return next((send for send in self.sends if send.attributes_version == version), self.sends[0]).attributes

    def answers_of(self, version: int, places: Places) -> list[Sent | BaseException]:
        """Returns the places of messages by send, or StaleAttributes for a send that used another version."""
        return [
            [places.put(message) for message in send.messages]
            if send.attributes_version == version
            else StaleAttributes()
            for send in self.sends
        ]
