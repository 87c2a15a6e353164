"""The arguments and results of handlers, and the check that a callable can be a handler."""

from __future__ import annotations

import asyncio
import functools
import inspect
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from lakequeue.errors import LeaseLost
from lakequeue.model.clock import Duration, Interrupt, duration_micros, to_micros
from lakequeue.model.messages import Message
from lakequeue.queue import Queue
from lakequeue.renewal.policies import Hold

if TYPE_CHECKING:
    import pyarrow as pa


class Outcome(Enum):
    """Result of a handler. None counts as SUCCESS, an exception or any other value as FAILED."""

    SUCCESS = "success"
    """Delete the message (HBN-2)."""
    FAILED = "failed"
    """Receive the message again. The consumer's ``retry_`` options say when (HBN-3, HNS-14)."""
    FAILED_RETRY_NOW = "failed, retry now"
    """Receive the message again at once (HBN-15)."""


class Lost(Interrupt):
    """An event that is set when the receipt of a message is lost. Its truth value is True once it is set."""

    def __bool__(self) -> bool:
        return self.is_set()


class Context:
    """Information about a message for its handler.

    Attributes:
        message: the message.
        queue: the queue of the message.
        lost: set once the receipt is lost: the message was deleted, or another consumer may receive the message.
    """

    def __init__(
        self, message: Message, queue: Queue, hold: Callable[[], Hold | None], lost: Lost | None = None
    ) -> None:
        self.message = message
        self.queue = queue
        self.lost = Lost() if lost is None else lost
        self._clock = queue.clock
        self._hold = hold

    @property
    def visibility_exhausted(self) -> bool:
        """True if the receipt reaches twelve hours, after which it cannot be extended (HBN-22)."""
        hold = self._hold()
        return hold is not None and hold.exhausted

    def raise_if_lost(self) -> None:
        """Raises LeaseLost if the receipt is lost, so that a handler whose result no longer counts ends early."""
        if self.lost:
            raise LeaseLost(0, 1)

    def sleep(self, duration: Duration) -> bool:
        """Waits for seconds or a timedelta, by the queue's clock. Returns True after the whole wait, and False
        at once when the receipt is lost. Raises RuntimeError in an event loop: use ``sleep_async`` there.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise RuntimeError("context.sleep holds up the event loop: await context.sleep_async instead")
        until = self._clock.now() + timedelta(microseconds=duration_micros(duration))
        self._clock.wait(until, self.lost)
        return not self.lost

    async def sleep_async(self, duration: Duration) -> bool:
        """Waits like ``sleep``, in ``async def`` handlers. Other handlers can run during the wait."""
        until = self._clock.now() + timedelta(microseconds=duration_micros(duration))
        loop, wake = asyncio.get_running_loop(), asyncio.Event()
        with self.lost.waking(lambda: _stir(loop, wake)):
            if not self.lost:
                await self._clock.wait_async(until, wake)
        return not self.lost


def hold_of(message: Message, now: int) -> Hold:
    """Returns the state of the receipt of a message that was just received."""
    assert message.received_at is not None and message.visible_at is not None
    return Hold.fresh(to_micros(message.received_at), to_micros(message.visible_at), now)


class _Frame(Protocol):
    """An Arrow table, batch or reader, or a frame of polars or pandas."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> object: ...


class _ArrowBatch(Protocol):
    def __arrow_c_array__(self, requested_schema: Any = None) -> object: ...


class _SparkFrame(Protocol):
    def createOrReplaceTempView(self, name: str) -> None: ...


_Outcomes: TypeAlias = "Outcome | None | Sequence[Outcome | None]"
_Rows: TypeAlias = "_Frame | _SparkFrame | Sequence[_ArrowBatch] | Sequence[Mapping[str, object]] | None"
_OfBatch: TypeAlias = "_Outcomes | _Rows | tuple[_Rows, _Outcomes]"
Handler: TypeAlias = (
    Callable[[Message, Context], "Outcome | None | Awaitable[Outcome | None]"]
    | Callable[[list[Message], list[Context]], "_OfBatch | Awaitable[_OfBatch]"]
    | Callable[["pa.Table", list[Context]], "_OfBatch | Awaitable[_OfBatch]"]
)
"""A plain or ``async def`` function of a message and its context. A handler of batches takes two lists, or an
Arrow table and a list of contexts. On a queue with a delivery table, such a handler returns rows, or rows
and outcomes.
"""


def is_async(handler: object) -> bool:
    """True if a handler is an ``async def`` function, method, partial, or object with such a ``__call__``."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def handler_problem(handler: Any, batch: bool) -> str | None:
    """Returns why a value cannot be a handler, or a handler of batches; None if it can."""
    expected = "a handler takes a message and its context: def handle(message, context)"
    if batch:
        expected = "a handler of batches takes two lists: def handle(messages, contexts)"
    if not callable(handler):
        return f"must be callable, not {handler!r}; {expected}"
    name = getattr(handler, "__qualname__", None) or repr(handler)
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        return f"{name} is a generator, which nobody would iterate; {expected} and returns an Outcome or None"
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # written in C, and does not say
        return None
    try:
        signature.bind(None, None)
    except TypeError:
        return f"{name}{_shown(signature)} cannot be called with two arguments; {expected}"
    wrong = None if batch else _wrong_result(handler)
    return wrong and f"{name} returns {wrong}; a handler returns an Outcome or None"


def checked_outcome(result: object) -> Outcome:
    """Returns the outcome that a handler returned; SUCCESS for None. Raises TypeError for any other result."""
    if result is None:
        return Outcome.SUCCESS
    if isinstance(result, Outcome):
        return result
    if inspect.iscoroutine(result):
        result.close()  # else Python warns that it was never awaited
    hint = "; make the handler itself `async def`" if inspect.isawaitable(result) else ""
    if isinstance(result, list | tuple | dict) or hasattr(result, "__arrow_c_stream__"):
        hint = "; rows are for a consumer with batch= of a queue with a delivery table"
    raise TypeError(f"a handler returns an Outcome or None, not {result!r}{hint}")


def results_of(result: object, count: int) -> Sequence[object]:
    """Returns a result for each message. A single result counts for all. Raises TypeError for a wrong number."""
    if not isinstance(result, list | tuple):
        return [result] * count
    if len(result) == count:
        return result
    wanted = f"a handler of {count} messages returns an Outcome for all or a list of {count}"
    raise TypeError(f"{wanted}, not a list of {len(result)}")


def _shown(signature: inspect.Signature) -> str:
    names = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=names, return_annotation=inspect.Signature.empty))


def _wrong_result(handler: Any) -> str | None:
    """Returns the annotated type of a handler's result if it is no ``Outcome``; None otherwise."""
    try:
        annotated = typing.get_type_hints(handler).get("return", Outcome)
    except Exception:  # a name that only a type checker imports, an object that carries no annotations
        return None
    # refuses plain classes that are neither None nor an Outcome; other annotations are not judged
    plain = isinstance(annotated, type) and typing.get_origin(annotated) is None
    fits = not plain or annotated in (Any, object, type(None)) or issubclass(annotated, Outcome)
    return None if fits else str(annotated.__name__)


def _stir(loop: asyncio.AbstractEventLoop, wake: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop has ended, and its waiting tasks with it
        loop.call_soon_threadsafe(wake.set)
