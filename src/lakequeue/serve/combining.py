"""Combines concurrent requests into one call or one batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from lakequeue.entry_verbs import GroupCommit

_Result = TypeVar("_Result")


class SingleFlight(Generic[_Result]):
    """Runs a blocking call in a thread of its own. Callers that arrive while the call runs share its result."""

    def __init__(self, call: Callable[[], _Result]) -> None:
        self._call = call
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="single-flight")
        self._running: asyncio.Future[_Result] | None = None

    async def result(self) -> _Result:
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().run_in_executor(self._thread, self._call)
            self._running.add_done_callback(lambda done: done.exception())  # asyncio warns of unread errors
        return await asyncio.shield(self._running)


Item = TypeVar("Item")
Reply = TypeVar("Reply")
_Batch = GroupCommit[tuple[Item, "asyncio.Future[Reply]"], Reply]


class Batcher(Generic[Item, Reply]):
    """Runs the items of a queue in batches, each in one thread.

    Args:
        run: returns an answer for each item of a queue, in order. If ``run`` raises, every item gets the error.
        at_once: returns the number of batches of a queue that may run at the same time.
    """

    def __init__(
        self, run: Callable[[str, list[Item]], Sequence[Reply | Exception]], at_once: Callable[[str], int]
    ) -> None:
        self._run = run
        self._at_once = at_once
        self._batches: dict[str, _Batch[Item, Reply]] = {}
        self._running: dict[str, set[asyncio.Task[None]]] = {}

    async def answer(self, queue: str, item: Item) -> Reply:
        answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if (group := self._batches.get(queue)) is None:
            group = self._batches[queue] = GroupCommit(lambda asked: self._run(queue, [item for item, _ in asked]))
        group.offer((item, answered))
        running = self._running.setdefault(queue, set())
        if len(running) < self._at_once(queue):
            running.add(asyncio.create_task(self._lead(queue, group)))
        return await answered

    async def _lead(self, queue: str, group: _Batch[Item, Reply]) -> None:
        while group.waiting:
            for done in await asyncio.to_thread(group.run):
                _, answered = done.request
                if answered.done():  # its request was cancelled
                    continue
                try:
                    answered.set_result(done.result())
                except Exception as error:
                    answered.set_exception(error)
        running = self._running[queue]
        running.discard(asyncio.current_task())
        if not running:
            del self._running[queue], self._batches[queue]
