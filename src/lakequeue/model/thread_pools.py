"""Pools of threads that can be used until the process ends."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_Result = TypeVar("_Result")


class ThreadPool(ThreadPoolExecutor):
    """A pool of threads. Works in the calling thread once the main thread has ended. After that the interpreter
    starts no threads of pools, but other threads may still run, such as those of a consumer.
    """

    def submit(self, call: Callable[_P, _Result], /, *args: _P.args, **named: _P.kwargs) -> Future[_Result]:
        try:
            return super().submit(call, *args, **named)
        except RuntimeError:
            done = Future[_Result]()
            try:
                done.set_result(call(*args, **named))
            except Exception as error:
                done.set_exception(error)
            return done
