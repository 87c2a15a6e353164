"""Space on a local disk for what frees space: purges and compactions go on when the disk is full."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from lakequeue.storage import layout
from lakequeue.storage.roots import local_path

RESERVED = 2 << 20
"""Bytes of the file: some hundred small commits."""
PLENTY = 8 * RESERVED
"""Free bytes of a disk from which they are taken."""


@contextmanager
def reserve(root: str) -> Iterator[None]:
    """Gives the reserved space of a root up if the disk has no more; takes it, again, when there is plenty."""
    local = local_path(root)
    if local is None or not os.path.isdir(local):
        yield
        return
    path = os.path.join(local, layout.RESERVE)
    if shutil.disk_usage(local).free < RESERVED:
        with suppress(OSError):
            os.unlink(path)
    yield
    if shutil.disk_usage(local).free > PLENTY:
        with suppress(OSError), open(path, "xb") as file:  # it is there, or the root is not ours
            file.write(bytes(RESERVED))
