"""An event that other threads set to end a wait early."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Interrupt(threading.Event):
    """Ends the wait of a receive, which then polls once more; ends a search by a condition with an error."""

    def __init__(self) -> None:
        super().__init__()
        self._wakes: list[Callable[[], None]] = []

    def set(self) -> None:
        super().set()
        for wake in list(self._wakes):
            wake()

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Calls ``wake`` when the event is set during the block."""
        self._wakes.append(wake)
        try:
            yield
        finally:
            self._wakes.remove(wake)
