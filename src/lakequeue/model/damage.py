"""The findings of a check, and the results of a repair."""

from __future__ import annotations

from datetime import datetime

import attrs


@attrs.frozen
class Finding:
    """A problem that ``LakeQueue.check`` found (DUR-30).

    Attributes:
        queue: name of the queue. None for the root itself.
        region: region of the queue. None for the root itself.
        table: path of the table or directory.
        file: path of the file below ``table``. None for the table as a whole.
        problem: description of the problem.
        repair: what ``LakeQueue.repair`` does about it, or another remedy.
        damage: True if messages or answers are wrong or will be. False for a warning, such as little free space.
    """

    queue: str | None
    region: str | None
    table: str
    file: str | None
    problem: str
    repair: str
    damage: bool = True


@attrs.frozen
class Repair:
    """A repair of a shard or of the catalog, planned or done by ``LakeQueue.repair`` (DUR-31 to DUR-36).

    Attributes:
        queue: name of the queue. None for the catalog.
        region: region of the queue. None for the catalog.
        shard: number of the shard. None for the catalog, and for a queue that is listed again.
        steps: the steps in order, a sentence each.
        lost: messages that were not deleted and are gone, as ranges of offsets, both ends included.
        lost_ids: the known message ids in ``lost``, by offset.
        lost_sent: for each range of ``lost``, the earliest and the latest instant at which its messages can have
            been sent. None if unknown.
        again: messages that may come again although they were received or deleted, as ranges of offsets.
        again_ids: the known message ids in ``again``, by offset.
        unknown: reasons why lost or repeated messages cannot be determined. Such a repair needs ``force``.
        notes: further remarks, for example about damage that cannot be repaired.
        applied: True if the repair was done.
    """

    queue: str | None
    region: str | None
    shard: int | None
    steps: list[str]
    lost: list[tuple[int, int]] = attrs.field(factory=list)
    lost_ids: dict[int, str] = attrs.field(factory=dict)
    lost_sent: list[tuple[datetime | None, datetime | None]] = attrs.field(factory=list)
    again: list[tuple[int, int]] = attrs.field(factory=list)
    again_ids: dict[int, str] = attrs.field(factory=dict)
    unknown: list[str] = attrs.field(factory=list)
    notes: list[str] = attrs.field(factory=list)
    applied: bool = False
