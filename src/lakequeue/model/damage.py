"""What a check found, and what a repair did: values that faces show."""

from __future__ import annotations

import attrs


@attrs.frozen
class Finding:
    """One thing that `LakeQueue.check` found (DUR-30).

    Attributes:
        queue: name of the queue; None for what belongs to the whole root.
        region: region of the queue; None for what belongs to the whole root.
        table: path of the table or directory.
        file: path of the file below it; None if the table as a whole is concerned.
        problem: what is wrong.
        repair: what `LakeQueue.repair` would do about it, or what to do instead.
        damage: whether messages or answers are wrong or will be; False for a warning, such as little free space.
    """

    queue: str | None
    region: str | None
    table: str
    file: str | None
    problem: str
    repair: str
    damage: bool = True
