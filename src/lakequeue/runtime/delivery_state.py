"""State of a queue's delivery table in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs


@attrs.define
class DeliveryState:
    """State of a queue's delivery table in this process. The state is neither stored nor pickled.

    Attributes:
        options: storage options of the table. None uses the root's options if root and table are on the same kind
            of object store.
        tables: the tables that this process has opened, by path or URI.
        failed: when this process last failed to decide a delivery, in microseconds, by shard and slot.
    """

    options: Mapping[str, str] | None = None
    tables: dict[str, Any] = attrs.field(factory=dict)
    failed: dict[tuple[int, int], int] = attrs.field(factory=dict)
