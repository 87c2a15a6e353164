"""`async def` handlers: one event loop, in a thread of its own, runs those of a consumer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import Any

from lakequeue.consumer.handler import Context
from lakequeue.errors import LeaseLost
from lakequeue.model.clock import Clock
from lakequeue.model.messages import Message

_NEVER = datetime.max.replace(tzinfo=timezone.utc)
_LAST_WORDS = 1.0
"""Seconds that cancelled handlers get to end before `run` returns without them."""


class AsyncHandlers:
    """Runs an `async def` handler; to the worker pool it is a plain one, whose threads wait for the tasks.

    Args:
        handler: the `async def` handler.
        clock: the queue's clock.
        broken: called with an error that ended the event loop.
    """

    def __init__(self, handler: Any, clock: Clock, broken: Callable[[BaseException], None]) -> None:
        self._handler = handler
        self._clock = clock
        self._broken = broken
        self._begun = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs the event loop during the block; handlers that are left at its end are cancelled."""
        thread = threading.Thread(target=self._run, name="lakequeue event loop", daemon=True)
        thread.start()
        self._begun.wait()
        try:
            yield
        finally:
            with suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._stopped.set)
            thread.join(_LAST_WORDS)

    def __call__(self, message: Message, context: Context) -> object:
        """Runs the handler as a task; returns what it returns, and raises what it raises."""
        results: list[object] = []
        errors: list[BaseException] = []
        begun, ended = threading.Event(), threading.Event()

        async def handle() -> None:
            with self._clock.participant():
                begun.set()
                try:
                    results.append(await self._handler(message, context))
                except asyncio.CancelledError as error:
                    errors.append(error)
                except BaseException as error:  # SystemExit would end the loop under the other handlers
                    errors.append(error)
                finally:
                    ended.set()  # as a participant: else a manual clock could advance before this thread does

        future = asyncio.run_coroutine_threadsafe(handle(), self._loop)
        for event in (begun, ended):  # also if it is cancelled before it begins
            future.add_done_callback(lambda _, event=event: event.set())  # type: ignore[misc]
        begun.wait()
        self._clock.wait(_NEVER, ended)
        if results:
            return results[0]
        [error] = errors or [asyncio.CancelledError()]
        if isinstance(error, asyncio.CancelledError):
            if context.lost:
                raise LeaseLost(0, 1) from error
            raise RuntimeError("the handler was cancelled") from error
        raise error

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # a task of the handler's own raised SystemExit
            self._broken(error)

    async def _serve(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        self._begun.set()
        await self._stopped.wait()
