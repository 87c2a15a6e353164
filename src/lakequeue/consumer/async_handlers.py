"""Hands for ``async def`` handlers: tasks in one event loop, which has a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from typing import Generic

from lakequeue.consumer.hands import Job
from lakequeue.model.clock import NEVER, Clock

_CANCEL_GRACE = 1.0
"""Seconds that cancelled handlers get to end before ``run`` returns without them."""


class Tasks(Generic[Job]):
    """Hands that are tasks. One more thread starts them, which the clock waits for until they have begun.

    Args:
        number: maximum number of tasks.
        clock: the queue's clock.
        take: returns the next job; None if there is none.
        run: runs a job.
        broken: called with an error that ended the event loop.
        due: as for ``Threads``.
    """

    def __init__(
        self,
        number: int,
        clock: Clock,
        take: Callable[[], Job | None],
        run: Callable[[Job], Awaitable[None]],
        broken: Callable[[BaseException], None],
        due: Callable[[], datetime | None] = lambda: None,
    ) -> None:
        self._number = number
        self._clock = clock
        self._take = take
        self._run = run
        self._broken = broken
        self._due = due
        self._count = 0
        self._tasks: set[asyncio.Future[None]] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._ended = threading.Event()
        begun, starting = threading.Event(), threading.Event()
        self._looping = threading.Thread(
            target=self._loop_until_stopped, args=(begun,), name="lakequeue event loop", daemon=True
        )
        self._looping.start()
        threading.Thread(target=self._start, args=(starting,), name="lakequeue tasks", daemon=True).start()
        begun.wait()
        starting.wait()

    def wake(self, jobs: int) -> None:
        self._wake.set()

    def resize(self, number: int) -> None:
        self._number = number
        self._wake.set()

    def stop(self) -> None:
        """Also cancels the handlers that are left."""
        self._ended.set()
        self._wake.set()
        with suppress(RuntimeError):  # it has ended by itself
            self._loop.call_soon_threadsafe(self._stopped.set)
        self._looping.join(_CANCEL_GRACE)

    def _start(self, starting: threading.Event) -> None:
        with self._clock.participant():
            starting.set()
            while not self._ended.is_set():
                self._wake.clear()
                jobs: list[Job] = []
                while self._count < self._number and (job := self._take()) is not None:
                    with self._lock:
                        self._count += 1
                    jobs.append(job)
                if not jobs:
                    self._clock.wait(self._due() or NEVER, self._wake)
                    continue
                begun = threading.Event()
                with suppress(RuntimeError):  # the loop has ended
                    asyncio.run_coroutine_threadsafe(self._begin(jobs), self._loop).add_done_callback(
                        lambda _, begun=begun: begun.set()  # type: ignore[misc]
                    )
                    begun.wait()

    async def _begin(self, jobs: list[Job]) -> None:
        self._tasks |= {asyncio.ensure_future(self._work(job)) for job in jobs}
        await asyncio.sleep(0)  # they take part in the clock now
        self._tasks = {task for task in self._tasks if not task.done()}

    async def _work(self, job: Job | None) -> None:
        with self._clock.participant():
            while job is not None:
                await self._run(job)
                job = self._take() if self._count <= self._number else None
            with self._lock:
                self._count -= 1
            self._wake.set()  # for what came before that

    def _loop_until_stopped(self, begun: threading.Event) -> None:
        try:
            asyncio.run(self._serve(begun))
        except BaseException as error:  # a task of the handler's own raised SystemExit
            self._broken(error)

    async def _serve(self, begun: threading.Event) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        begun.set()
        await self._stopped.wait()
