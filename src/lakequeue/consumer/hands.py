"""The hands of a consumer: a fixed number of threads that run handlers, started when they are first needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Generic, Protocol, TypeVar

from lakequeue.model.clock import NEVER, Clock

Job = TypeVar("Job")


class Hands(Protocol):
    """What runs handlers."""

    def wake(self, jobs: int) -> None:
        """Wakes idle hands for jobs, at most this many."""
        ...

    def resize(self, number: int) -> None:
        """Changes the maximum number of hands; those that are busy go on."""
        ...

    def stop(self) -> None:
        """Ends idle hands, and busy ones when their handler ends."""
        ...


class Threads(Generic[Job]):
    """Hands that are threads.

    Args:
        number: maximum number of threads.
        clock: the queue's clock.
        take: returns the next job; None if there is none.
        run: runs a job.
        due: returns when to ask for a job again, if nothing comes before; None: never.
    """

    def __init__(
        self,
        number: int,
        clock: Clock,
        take: Callable[[], Job | None],
        run: Callable[[Job], None],
        due: Callable[[], datetime | None] = lambda: None,
    ) -> None:
        self._number = number
        self._clock = clock
        self._take = take
        self._run = run
        self._due = due
        self._lock = threading.Lock()
        self._count = 0
        self._idle: list[threading.Event] = []
        self._stopped = False

    def wake(self, jobs: int) -> None:
        for _ in range(min(jobs, self._number)):
            with self._lock:
                idle = self._idle.pop() if self._idle else None
                if idle is None and self._count >= self._number:
                    return
                self._count += idle is None
            if idle is not None:
                idle.set()
                continue
            begun = threading.Event()
            threading.Thread(target=self._work, args=(begun,), name="lakequeue handler", daemon=True).start()
            begun.wait()  # else a manual clock could advance before the thread takes part in it

    def resize(self, number: int) -> None:
        with self._lock:
            self._number = number
            idle = [self._idle.pop() for _ in range(min(len(self._idle), max(0, self._count - number)))]
        for wake in idle:
            wake.set()
        self.wake(number)  # for what was claimed ahead

    def stop(self) -> None:
        self._stopped = True
        with self._lock:
            idle, self._idle = self._idle, []
        for wake in idle:
            wake.set()

    def _is_surplus(self) -> bool:
        """Whether a thread ends because the number was lowered."""
        with self._lock:
            surplus = self._count > self._number
            self._count -= surplus
        return surplus

    def _work(self, begun: threading.Event) -> None:
        wake = threading.Event()
        with self._clock.participant():
            begun.set()
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
                        self._clock.wait(self._due() or NEVER, wake)
                    with self._lock:
                        if wake in self._idle:
                            self._idle.remove(wake)
                if job is not None:
                    self._run(job)
