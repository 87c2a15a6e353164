"""Deals files out to the tasks of Spark that read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

TASK_BYTES = 64 << 20
"""Size of the files that one task reads, or of its part of one."""
OPENING = 4 << 20
"""What opening a file costs, as bytes; Spark counts it the same."""

_T = TypeVar("_T")


def packed(items: Iterable[tuple[_T, int]]) -> list[list[_T]]:
    """Items with their bytes as groups of about ``TASK_BYTES``, in order."""
    groups: list[list[_T]] = []
    left = 0
    for item, size in items:
        if size > left or not groups:
            groups.append([])
            left = TASK_BYTES
        groups[-1].append(item)
        left -= size + OPENING
    return groups


def cut(first: int, last: int, size: int) -> Iterator[tuple[int, int]]:
    """The range of rows or offsets of one file as ranges of about ``TASK_BYTES``."""
    step = -(-(last - first + 1) // max(1, -(-size // TASK_BYTES)))
    for start in range(first, last + 1, step):
        yield start, min(start + step - 1, last)
