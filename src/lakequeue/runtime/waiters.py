"""The line of those who wait for messages of one queue in this process.

However many wait, few look. The first of the line is the lookout: it looks now and then for what other processes
did and for what becomes visible with time. A change in this process calls the first who is not called yet, and
who finds something calls two more; so a message costs a look or two, and many messages reach many receivers
within a few commits, which those share.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import attrs


@attrs.define(eq=False)
class Place:
    """One that waits.

    Attributes:
        called: told to look, and has not begun to.
        found: found something, and is about to leave.
    """

    line: Line
    wake: Callable[[], None]
    called: bool = False
    found: bool = False

    @property
    def first(self) -> bool:
        """Whether it is the lookout."""
        return self.line.first is self

    def looks(self) -> None:
        """To be told when it begins to look: changes from now on call it anew."""
        self.called = False

    def heard(self, attributes_version: int) -> None:
        """Calls everybody when the attributes are newer than those known: they may name another wait (QUE-25)."""
        self.line.heard(attributes_version)


class Line:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[Place, None] = {}
        self._attributes_version = 0
        self.first: Place | None = None

    @contextmanager
    def place(self, wake: Callable[[], None]) -> Iterator[Place]:
        """A place at the end of the line; who leaves it passes on what it was called for."""
        place = Place(self, wake)
        with self._lock:
            self._places[place] = None
            self.first = self.first or place
        try:
            yield place
        finally:
            self._leave(place)

    def call(self, number: int = 1) -> None:
        """Has the first look who are not called yet."""
        with self._lock:
            if self._places:
                self._call(number)

    def heard(self, attributes_version: int) -> None:
        with self._lock:
            if attributes_version > self._attributes_version:
                self._attributes_version = attributes_version
                self._call(len(self._places))

    def _leave(self, place: Place) -> None:
        with self._lock:
            del self._places[place]
            if self.first is place:
                self.first = next(iter(self._places), None)
                if self.first is not None:
                    self._wake(self.first)  # it becomes the lookout
            self._call(2 if place.found else int(place.called))

    def _call(self, number: int) -> None:
        for place in self._places:
            if number <= 0:
                return
            if not place.called:
                self._wake(place)
                number -= 1

    def _wake(self, place: Place) -> None:
        place.called = True
        with suppress(RuntimeError):  # its event loop was closed under it
            place.wake()
