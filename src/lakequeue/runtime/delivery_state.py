"""What a process knows about the delivery table of a queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs


@attrs.define
class DeliveryState:
    """Not stored, and not part of a pickled queue.

    Attributes:
        options: storage options of the table; None: those of the root if the table is on the same kind of storage.
        tables: the open tables by path or URI.
        failed: when the decision about a slot of a shard failed last, in microseconds.
    """

    options: Mapping[str, str] | None = None
    tables: dict[str, Any] = attrs.field(factory=dict)
    failed: dict[tuple[int, int], int] = attrs.field(factory=dict)
