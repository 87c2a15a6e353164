"""Group commit. Requests that arrive during a commit share the next commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TypeVar

from lakequeue.errors import SAFE_TO_REPEAT, QueueClientError

Request = TypeVar("Request")
Answer = TypeVar("Answer")

HEAL = 0.5
"""Seconds after which a waiting caller checks for a leader again, because an interrupt may end the leader."""


class Item(Generic[Request, Answer]):
    """A request of a group. The request has an answer or an error once ``done`` is True."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.event = threading.Event()
        """Set when the request is done, or when the request's caller must become the leader."""
        self.done = False
        self.answer: Answer | None = None
        self.error: BaseException | None = None

    def finish(self, answer: Answer | BaseException) -> None:
        if isinstance(answer, BaseException):
            self.error = answer
        else:
            self.answer = answer
        self.done = True
        self.event.set()

    def result(self) -> Answer:
        if self.error is not None:
            raise self.error
        return self.answer  # type: ignore[return-value]


class GroupCommit(Generic[Request, Answer]):
    """Runs the requests of concurrent callers in batches. One of the callers, the leader, runs each batch.

    A caller that finds no batch running becomes the leader. The leader runs one batch, and wakes a waiting caller
    as the next leader. If a leader is interrupted, a waiting caller becomes the leader. Callers on an event loop
    ``offer`` their requests, and let a thread ``run`` the requests.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Request]], Sequence[Answer | BaseException]],
        turn: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Creates a group. The function ``run`` returns an answer for each request, in order. An error of ``run``
        is the answer to each request. ``turn`` returns a context in which a batch runs. Requests that arrive
        before the context has been entered join the batch.
        """
        self._run = run
        self._turn = turn
        self._mutex = threading.Condition(threading.Lock())
        self._leading = threading.Lock()
        self._pending: list[Item[Request, Answer]] = []
        self._last = (1, 0.0)
        """Number of requests in the last batch, and the seconds that the batch took."""

    @property
    def busy(self) -> bool:
        return self._leading.locked()

    @property
    def waiting(self) -> int:
        return len(self._pending)

    def offer(self, request: Request) -> Item[Request, Answer]:
        item: Item[Request, Answer] = Item(request)
        with self._mutex:
            self._pending.append(item)
            self._mutex.notify()
        return item

    def gather(self, share: float) -> None:
        """Waits until as many requests wait as the last batch had, at most for this share of that batch's time."""
        number, took = self._last
        with self._mutex:
            self._mutex.wait_for(lambda: len(self._pending) >= number, took * share)

    def run(self) -> list[Item[Request, Answer]]:
        """Runs the waiting requests as one batch, even while another batch runs. Returns the answered requests."""
        with self._mutex:
            batch, self._pending = self._pending, []
        if batch:
            self._answer(batch)
        return batch

    def submit(self, request: Request) -> Answer:
        """Runs a request in the next batch. Returns its answer or raises its error."""
        item: Item[Request, Answer] = Item(request)
        try:
            with self._mutex:
                self._pending.append(item)
                self._mutex.notify()
            while not item.done:
                item.event.clear()
                if item.done:
                    break
                if self.busy:
                    item.event.wait(HEAL)
                    continue
                with self._leading:
                    if not item.done:
                        self._lead(item)
                self._wake_next()
        except BaseException:  # Ctrl-C, here or in the batch that this caller led
            self._leave(item)
            raise
        return item.result()

    def _lead(self, leader: Item[Request, Answer]) -> None:
        with self._turn():
            with self._mutex:
                if leader not in self._pending:  # another leader took it and was interrupted before it answered
                    raise _interrupted()
                batch, self._pending = self._pending, []
            self._answer(batch)

    def _answer(self, batch: Sequence[Item[Request, Answer]]) -> None:
        # an interrupt is meant for this caller only; for the others the outcome is unknown
        answers: Sequence[Answer | BaseException] = [_interrupted()] * len(batch)
        began = time.monotonic()
        try:
            answers = self._run([item.request for item in batch])
        except Exception as error:
            answers = [error] * len(batch)
        finally:
            self._last = len(batch), time.monotonic() - began
            for item, answer in zip(batch, answers, strict=True):
                item.finish(answer)

    def _wake_next(self) -> None:
        with self._mutex:
            if self._pending:
                self._pending[0].event.set()

    def _leave(self, item: Item[Request, Answer]) -> None:
        with self._mutex:
            if item in self._pending:
                self._pending.remove(item)
        self._wake_next()


def _interrupted() -> QueueClientError:
    return QueueClientError(f"the commit was interrupted; {SAFE_TO_REPEAT}", outcome_unknown=True)
