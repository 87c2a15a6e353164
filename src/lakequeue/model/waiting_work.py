"""Runs work that waits, in a few threads. The work is a generator, which yields the end of each wait."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import ExitStack
from contextvars import Context, copy_context
from datetime import datetime
from functools import partial
from typing import TypeAlias, TypeVar

import attrs

from lakequeue.model.clock import NEVER, Clock, Interrupt, start_thread

_MANY = 64
"""Number of ended waits up to which the heap is never rebuilt."""
_T = TypeVar("_T")
Waits: TypeAlias = Generator[datetime, None, _T]
"""Work as a generator, which yields the instant until which it waits. ``wake`` ends the wait early."""


def run(work: Waits[_T], clock: Clock, wake: threading.Event) -> _T:
    """Runs work with its waits in this thread. Returns the result. An error of a wait is raised in the work."""
    resume: Callable[[], datetime] = partial(next, work)
    while True:
        try:
            until = resume()
        except StopIteration as ended:
            result: _T = ended.value
            return result
        resume = partial(next, work)
        try:
            clock.wait(until, wake)
        except BaseException as error:
            resume = partial(work.throw, error)


@attrs.define(eq=False)
class _Piece:
    work: Waits[None]
    wake: Interrupt
    end: ExitStack = attrs.field(factory=ExitStack)
    context: Context = attrs.field(factory=copy_context)


class WaitingThreads:
    """Runs any number of generators in at most ``number`` threads. A waiting generator needs no thread. Threads
    end when no work is left. For ``late``, see ``Clock.participant``. Thread-safe.
    """

    def __init__(self, clock: Clock, number: int, name: str, *, late: bool = False) -> None:
        self._clock = clock
        self._number = number
        self._name = name
        self._late = late
        self._lock = threading.Lock()
        self._pieces = self._threads = 0
        self._ready: deque[_Piece] = deque()
        self._waiting: dict[_Piece, datetime] = {}
        self._queue: list[tuple[datetime, int, _Piece]] = []
        """Heap of the waits. Ended waits stay: to find them among thousands of waits would take half a core."""
        self._waits = itertools.count()
        self._idle: list[threading.Event] = []
        self._timer: threading.Event | None = None
        """Wakes the only idle thread that waits with a deadline. Other idle threads wait for work, without one."""
        self._timer_until = NEVER

    def add(self, work: Waits[None], wake: Interrupt) -> None:
        """Runs work until it ends. ``wake`` ends the waits of the work. The work must not raise errors."""
        piece = _Piece(work, wake)
        piece.end.enter_context(wake.waking(partial(self._woken, piece)))
        with self._lock:
            self._pieces += 1
            self._ready.append(piece)
            start = self._threads < self._number and not self._idle
            self._threads += start
            if not start:
                self._stir()
        if start:
            start_thread(self._clock, self._run, self._name, late=self._late)

    def _woken(self, piece: _Piece) -> None:
        with self._lock:
            if self._waiting.pop(piece, None) is not None:
                self._ready.append(piece)
                self._stir()

    def _stir(self) -> None:
        if self._idle:
            self._idle.pop().set()
        elif self._timer is not None:
            self._timer.set()

    def _run(self) -> None:
        wake = threading.Event()
        while True:
            with self._lock:
                piece = self._next()
                if piece is None and not self._pieces:
                    self._threads -= 1
                    self._stir()  # each thread that ends wakes the next one
                    return
                until = NEVER if piece is not None else self._rest(wake)
            if piece is not None:
                self._step(piece)
                continue
            self._clock.wait(until, wake)
            with self._lock:
                wake.clear()
                if wake in self._idle:
                    self._idle.remove(wake)
                if self._timer is wake:
                    self._timer = None

    def _next(self) -> _Piece | None:
        piece = self._ready.popleft() if self._ready else None
        if piece is None and self._first() <= self._clock.now():
            piece = self._queue[0][2]
            del self._waiting[piece]
        if piece is not None and self._timer is None and self._idle:
            self._idle.pop().set()
        return piece

    def _first(self) -> datetime:
        """Removes ended waits from the heap. Returns the earliest end of a wait; ``NEVER`` if nothing waits."""
        while self._queue and self._waiting.get(self._queue[0][2]) is not self._queue[0][0]:
            heapq.heappop(self._queue)
        return self._queue[0][0] if self._queue else NEVER

    def _wait(self, piece: _Piece, until: datetime) -> None:
        self._waiting[piece] = until
        heapq.heappush(self._queue, (until, next(self._waits), piece))
        if len(self._queue) > 2 * len(self._waiting) + _MANY:  # most are waits that were ended early
            self._queue = [(each, next(self._waits), waiting) for waiting, each in self._waiting.items()]
            heapq.heapify(self._queue)

    def _rest(self, wake: threading.Event) -> datetime:
        """Makes a thread idle. Returns the instant until which it must wait."""
        if self._timer is not None:
            self._idle.append(wake)
            return NEVER
        self._timer, self._timer_until = wake, self._first()
        return self._timer_until

    def _step(self, piece: _Piece) -> None:
        try:
            until = piece.context.run(next, piece.work)
        except StopIteration:
            piece.end.close()
            with self._lock:
                self._pieces -= 1
                if not self._pieces:
                    self._stir()
            return
        with self._lock:
            if piece.wake.is_set():
                self._ready.append(piece)
                return
            self._wait(piece, until)
            if self._timer is not None and until < self._timer_until:
                self._timer.set()
