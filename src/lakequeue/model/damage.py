"""What a check found, and what a repair did: values that faces show."""

from __future__ import annotations

from datetime import datetime

import attrs


@attrs.frozen
class Finding:
    """One thing that ``LakeQueue.check`` found (DUR-30).

    Attributes:
        queue: name of the queue; None for what belongs to the whole root.
        region: region of the queue; None for what belongs to the whole root.
        table: path of the table or directory.
        file: path of the file below it; None if the table as a whole is concerned.
        problem: what is wrong.
        repair: what ``LakeQueue.repair`` would do about it, or what to do instead.
        damage: whether messages or answers are wrong or will be; False for a warning, such as little free space.
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
    """What ``LakeQueue.repair`` does, or did, to a shard, or to the catalog (DUR-31 to DUR-36).

    Attributes:
        queue: name of the queue; None for the catalog.
        region: region of the queue; None for the catalog.
        shard: number of the shard; None for the catalog and for a queue that is listed again.
        steps: what is done, a sentence each, in order.
        lost: messages that were not deleted and are gone, as ranges of offsets, both ends included.
        lost_ids: ids of those of them that are known, by offset.
        lost_sent: for each range of ``lost`` when its messages were sent: the earliest and the latest possible
            instant, each None if the log does not say.
        again: messages that may come again although they were received or deleted, as such ranges.
        again_ids: ids of those of them that are known, by offset.
        unknown: why it is not certain which messages are lost or come again; then it is done with ``force`` only.
        notes: what else to know, such as damage that cannot be mended.
        applied: whether it was done.
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
