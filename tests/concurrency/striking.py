"""Errors and interrupts at chosen lines."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple


class Place(NamedTuple):
    file: str
    line: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


class Strike:
    """Traces this thread in the target modules: records lines, and raises an error at the first visit of one.

    First visits only: the line of a `with` is visited again when its block ends, before the lock is given back. A
    tracer can raise there, an interrupt cannot.
    """

    def __init__(
        self, place: Place | None = None, error: BaseException | None = None, targets: Collection[str] = ()
    ) -> None:
        self.place, self.error = place, error
        self.targets = targets or {place.file if place else ""}
        self.seen: dict[Place, None] = {}

    def __enter__(self) -> Strike:
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        self.error = None

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._line if frame.f_code.co_filename in self.targets else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        place = Place(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and place not in self.seen:
            self.seen[place] = None
            if place == self.place and self.error is not None:
                raise self.error
        return self._line
