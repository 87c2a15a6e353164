"""Describes the running calls of a consumer's handler: their messages, and where each call is."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from itertools import dropwhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakequeue.model.clock import MICROS, shown_duration, to_micros

if TYPE_CHECKING:
    from types import FrameType

    from lakequeue.consumer.consumer import Consumer

_OURS = (str(Path(__file__).parents[1]), threading.__file__)
"""Prefixes of file names. Stack frames in these files lead to a handler, and are not shown."""
_IDS = 3


def running_calls(consumer: Consumer) -> Iterator[str]:
    """Yields lines about the running calls, oldest call first. Takes no lock, because signal handlers call it."""
    now, frames = to_micros(consumer._clock.now()), sys._current_frames()
    calls = [(loop.queue.name, call) for loop in consumer._loops for call in loop.running.copy()]
    for queue, call in sorted(calls, key=lambda each: each[1].began):
        ids = [context.message.message_id for context in call.contexts]
        more = f" and {len(ids) - _IDS} more" if len(ids) > _IDS else ""
        lasts = shown_duration((now - call.began) / MICROS)
        yield f"handler of {queue}, since {lasts}, message {', '.join(ids[:_IDS])}{more}:"
        found = traceback.StackSummary.extract(_frames(call.coroutine, frames.get(call.thread)))
        for entry in traceback.format_list([*dropwhile(lambda each: each.filename.startswith(_OURS), found)]):
            yield entry.rstrip()


def _frames(coroutine: Any, running: FrameType | None) -> Iterable[tuple[FrameType, int]]:
    """Returns the frames of a suspended coroutine, or else of a thread. The innermost frame comes last."""
    waiting: list[tuple[FrameType, int]] = []
    while (frame := getattr(coroutine, "cr_frame", None)) is not None and not coroutine.cr_running:
        waiting.append((frame, frame.f_lineno))
        coroutine = coroutine.cr_await
    return waiting or reversed([*traceback.walk_stack(running)] if running else [])
