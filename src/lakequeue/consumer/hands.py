"""The hands of a consumer: a fixed number of threads, or of tasks in an event loop, that run handlers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from datetime import datetime
from typing import Any

import attrs

from lakequeue.model.clock import NEVER, Clock, start_thread

_CANCEL_GRACE = 1.0
"""Seconds that cancelled handlers get to end before ``Consumer.run`` returns without them."""


@attrs.define(eq=False)
class _Hands:
    """Base of the threads or tasks that run handlers. Each hand takes a job, runs the job, and takes the next."""

    _number: int
    _clock: Clock
    _take: Callable[[], Any]
    _run: Callable[[Any], Any]
    _due: Callable[[], datetime | None]
    _broken: Callable[[BaseException], None]
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    _count: int = attrs.field(default=0, init=False)

    def _wait(self, wake: threading.Event) -> None:
        self._clock.wait(self._due() or NEVER, wake)


@attrs.define(eq=False)
class Threads(_Hands):
    """Hands that are threads, started when they are first needed."""

    _idle: list[threading.Event] = attrs.field(factory=list, init=False)
    _stopped: bool = attrs.field(default=False, init=False)

    def wake(self, jobs: int) -> None:
        """Wakes or starts at most ``jobs`` hands, so that the hands take jobs."""
        for _ in range(min(jobs, self._number)):
            with self._lock:
                idle = self._idle.pop() if self._idle else None
                if idle is None and self._count >= self._number:
                    return
                self._count += idle is None
            if idle is not None:
                idle.set()
            else:
                start_thread(self._clock, self._work, "lakequeue handler")

    def resize(self, number: int) -> None:
        """Changes the maximum number of hands. Busy hands finish their jobs."""
        self._number = number
        self._wake_all()
        self.wake(number)  # for what was claimed ahead

    def stop(self) -> None:
        """Ends idle hands now, and busy hands when their handler ends."""
        self._stopped = True
        self._wake_all()

    def _wake_all(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for wake in idle:
            wake.set()

    def _is_surplus(self) -> bool:
        with self._lock:
            surplus = self._count > self._number
            self._count -= surplus
        return surplus

    def _work(self) -> None:
        wake = threading.Event()
        while not self._is_surplus():
            job = self._take()
            if job is None:
                wake.clear()
                with self._lock:
                    if self._stopped:
                        return
                    self._idle.append(wake)
                job = self._take()  # what came before it was known to be idle
                if job is None:
                    self._wait(wake)
                with self._lock:
                    if wake in self._idle:
                        self._idle.remove(wake)
            if job is not None:
                self._run(job)


class Tasks(_Hands):
    """Hands that are tasks in an event loop. A thread starts the tasks. A manual clock waits until they start."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._tasks: set[asyncio.Future[None]] = set()
        self._wake = threading.Event()
        self._ended = threading.Event()
        begun = threading.Event()
        self._looping = threading.Thread(
            target=self._loop_until_stopped, args=(begun,), name="lakequeue event loop", daemon=True
        )
        self._looping.start()
        start_thread(self._clock, self._start, "lakequeue tasks")
        begun.wait()

    def wake(self, jobs: int) -> None:
        self._wake.set()

    def resize(self, number: int) -> None:
        self._number = number
        self._wake.set()

    def stop(self) -> None:
        """Ends the hands, and cancels the handlers that still run."""
        self._ended.set()
        self._wake.set()
        with suppress(RuntimeError):  # it has ended by itself
            self._loop.call_soon_threadsafe(self._stopped.set)
        self._looping.join(_CANCEL_GRACE)

    def _start(self) -> None:
        while not self._ended.is_set():
            self._wake.clear()
            jobs: list[Any] = []
            while self._count < self._number and (job := self._take()) is not None:
                with self._lock:
                    self._count += 1
                jobs.append(job)
            if not jobs:
                self._wait(self._wake)
                continue
            with suppress(RuntimeError, CancelledError):  # the loop has ended
                asyncio.run_coroutine_threadsafe(self._begin(jobs), self._loop).result()

    async def _begin(self, jobs: list[Any]) -> None:
        self._tasks |= {asyncio.ensure_future(self._work(job)) for job in jobs}
        await asyncio.sleep(0)  # they take part in the clock now
        self._tasks = {task for task in self._tasks if not task.done()}

    async def _work(self, job: Any) -> None:
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
