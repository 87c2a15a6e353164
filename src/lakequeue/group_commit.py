"""Group commit: whatever waits when a commit ends goes into the next one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from lakequeue.errors import QueueClientError

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class _Item(Generic[Request, Answer]):
    def __init__(self, request: Request) -> None:
        self.request = request
        self.event = threading.Event()
        self.done = False
        self.leads = False
        self.answer: Answer | None = None
        self.error: BaseException | None = None


class GroupCommit(Generic[Request, Answer]):
    """Hands the requests of concurrent callers to one of them, a batch at a time.

    The caller that finds nobody at work leads: it runs the batch, then passes the lead to one that
    arrived meanwhile. No thread of its own, and at most one batch runs at a time.
    """

    def __init__(self, run: Callable[[Sequence[Request]], Sequence[Answer | BaseException]]) -> None:
        """``run`` answers each request in order; an exception that it raises is the answer to all."""
        self._run = run
        self._mutex = threading.Lock()
        self._pending: list[_Item[Request, Answer]] = []
        self._busy = False

    def submit(self, request: Request) -> Answer:
        """Runs a request in the next batch; returns its answer or raises its error."""
        item: _Item[Request, Answer] = _Item(request)
        with self._mutex:
            self._pending.append(item)
            item.leads = not self._busy
            self._busy = True
        if not item.leads:
            self._await(item)
        if not item.done:
            self._lead()
        if item.error is not None:
            raise item.error
        return item.answer  # type: ignore[return-value]

    def _await(self, item: _Item[Request, Answer]) -> None:
        try:
            item.event.wait()
        except BaseException:  # Ctrl-C: leave the line, and do not keep the lead
            with self._mutex:
                if item in self._pending:
                    self._pending.remove(item)
                if item.leads:
                    self._pass_on()
            raise

    def _lead(self) -> None:
        with self._mutex:
            batch, self._pending = self._pending, []
        try:
            answers = self._run([item.request for item in batch])
            for item, answer in zip(batch, answers, strict=True):
                if isinstance(answer, BaseException):
                    item.error = answer
                else:
                    item.answer = answer
        except Exception as error:
            for item in batch:
                item.error = error
        except BaseException:  # Ctrl-C is meant for this caller only
            for item in batch:
                item.error = QueueClientError(
                    "the commit was interrupted; repeating it is safe", outcome_unknown=True
                )
            raise
        finally:
            with self._mutex:
                self._pass_on()
            for item in batch:
                item.done = True
                item.event.set()

    def _pass_on(self) -> None:
        if self._pending:
            self._pending[0].leads = True
            self._pending[0].event.set()
        else:
            self._busy = False
