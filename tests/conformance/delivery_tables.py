"""A delivery table in a directory, for tests of what is appended to it."""

from __future__ import annotations

import pyarrow as pa

from lakequeue.storage.delivery.identity import DeliveryIdentity
from lakequeue.storage.delivery.table import DeltaDeliverySnapshot, DeltaDeliveryTable

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("text", pa.string()), ("day", pa.date32())])
FIRST = DeliveryIdentity("lakequeue-d-0-0", 7, "lease", 1_000_000)


def snapshot(target: DeltaDeliveryTable) -> DeltaDeliverySnapshot:
    found = target.read()
    assert found is not None
    return found
