"""Fair receives of standard queues: which message group comes next, and which groups are noisy (FAI-2 to FAI-4).

A message group names a tenant; messages without a group are one more, with the name "". No order is promised and
no rate is limited. Each message of a claim goes to

1. no group that has as many messages in flight as ``GroupInFlightLimit`` allows, those that this claim
   picked included;
2. if it is the first, the group that has waited longest, if that is overdue: it waited for ``PATIENCE`` or
   longer. So no group starves whose messages in flight nobody works on any more;
3. otherwise the group with the fewest messages in flight, those that this claim picked included; of several
   the one that has waited longest; of several the one whose message has the lowest offset.

Within a group the available message with the lowest offset comes first. A group has waited since that message
became available or, if that is later, since the group last had a turn while another one waited. So groups whose
messages are deleted as fast as they come take turns, and a group with slow messages has as many hands as any
other; the noisy one has what nobody else needs.

Only the first ``FAIR`` messages of a claim are picked so: a lease of a million then takes the oldest ones, or with
a limit what each group still may have, group after group in the order above. What it took counts as in flight
in the claims after it, so that they begin with the other groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lakequeue.model.clock import MICROS

FAIR = 1_000
"""Messages of a claim that are picked one by one; more would cut the shard into as many runs."""
PATIENCE = 60 * MICROS
"""Microseconds after which a group that waits is served whatever it has in flight."""
NOISE = 4
"""A noisy group has more than this many times what the median of all groups has …"""
NOISE_FROM = 10
"""… and at least this many messages."""


class Turn(NamedTuple):
    """Where a waiting group is among others; the lowest comes next."""

    in_flight: int
    since: int
    offset: int
    group: str


def is_overdue(since: int, now: int) -> bool:
    """Whether a group that has waited since an instant is served whatever it has in flight."""
    return now - since >= PATIENCE


class GroupLoad(NamedTuple):
    """What one message group has in a shard, or in a queue."""

    group: str
    """"" for messages without a group."""
    visible: int
    in_flight: int
    oldest_sent_at: int | None = None
    """When its oldest visible message was sent, in microseconds; None if none is visible."""


def noisy(loads: Sequence[GroupLoad]) -> set[str]:
    """The names of the noisy groups among all that have messages visible or in flight (FAI-3).

    A group is noisy by its share of what is in flight, or by what waits, which is what dwell times are made of: it
    has ``NOISE_FROM`` messages or more of one, and over ``NOISE`` times the median of all groups. So where most
    are alike none is, and one group alone is not.
    """
    found: set[str] = set()
    for shares in ([load.in_flight for load in loads], [load.visible for load in loads]):
        usual = sorted(shares)[(len(shares) - 1) // 2] if shares else 0
        for load, share in zip(loads, shares, strict=True):
            if share >= NOISE_FROM and share > NOISE * usual:
                found.add(load.group)
    return found if len(loads) > 1 else set()
