"""Runs work in threads for callers on an event loop. The work of a cancelled caller can be undone."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Protocol, TypeVar

_Result = TypeVar("_Result")

_log = logging.getLogger("lakequeue")


class OffLoop(Protocol):
    """Runs work in a thread, off the event loop. If the caller is cancelled, calls ``undo`` with the result."""

    async def __call__(
        self, work: Callable[[], _Result], undo: Callable[[_Result], object] | None = None
    ) -> _Result: ...


class LoopThreads:
    @property
    def executor(self) -> Executor | None:
        return None

    async def __call__(
        self, work: Callable[[], _Result], undo: Callable[[_Result], object] | None = None
    ) -> _Result:
        import asyncio

        loop = asyncio.get_running_loop()
        executor, context = self.executor, copy_context()
        lock = threading.Lock()
        results: list[_Result] = []
        abandoned = False

        def run() -> _Result:
            result = work()
            with lock:
                results.append(result)
                late = abandoned
            if late:
                _undo(undo, result)
            return result

        try:
            return await loop.run_in_executor(executor, context.run, run)
        except BaseException:  # cancelled, or the loop has ended; or the work failed, which leaves no result
            with lock:
                abandoned = True
                unused = list(results)
            for result in unused:
                try:
                    loop.run_in_executor(executor, _undo, undo, result)
                except RuntimeError:  # the loop or its threads have ended
                    _undo(undo, result)
            raise


class OwnThreads(LoopThreads):
    """Runs work in a pool of at most ``number`` threads. Each thread starts when it is needed."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._lock = threading.Lock()
        self._executor: Executor | None = None

    def __reduce__(self) -> tuple[type[OwnThreads], tuple[int]]:
        return OwnThreads, (self._number,)

    @property
    def executor(self) -> Executor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._number, thread_name_prefix="lakequeue")
            return self._executor

    def close(self) -> None:
        """Waits until all work has ended, and ends the threads. Later work starts new threads."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()


def _undo(undo: Callable[[Any], object] | None, result: Any) -> None:
    try:
        if undo is not None:
            undo(result)
    except Exception as error:
        _log.warning("the result of a cancelled call could not be undone: %s", error)


in_loop_threads: OffLoop = LoopThreads()
