"""What is different on standard queues with groups: whose turn it is, and how many may be in flight."""

from __future__ import annotations

from lakequeue.shard.runs import Destination

from .model import SECOND, Claimed, Model

FAIR = 1_000  # messages of a claim that are picked one by one
PATIENCE = 60 * SECOND


class FairModel(Model):
    """A shard of a standard queue with message groups as a list of messages."""

    def waiting(self) -> dict[str, list[int]]:
        """Offsets of the visible messages of each group."""
        found: dict[str, list[int]] = {}
        for offset, message in enumerate(self.messages):
            if message.state(self.now) == "visible" and message.group not in self.settings.paused_groups:
                found.setdefault(message.group, []).append(offset)
        return found

    def any_group(self) -> bool:
        """Whether no group has to be left out."""
        return self.settings.group_limit is None and not self.settings.paused_groups

    def since(self, offset: int) -> int:
        """Instant from which a group has waited whose first visible message this is."""
        message = self.messages[offset]
        return message.sent_at + message.delay if message.hidden_until is None else message.hidden_until

    def deliverable(self) -> list[int]:
        """What a claim without limits would deliver, in this order (FAI-2, FAI-4)."""
        limit, fair = self.settings.group_limit, self.settings.fair
        waiting = self.waiting()
        load = {group: self.load(group) for group in waiting}
        found: list[int] = []
        while True:
            if self.any_group() and (not fair or len(found) >= FAIR):
                return found + sorted(offset for offsets in waiting.values() for offset in offsets)
            allowed = [group for group in waiting if waiting[group] and (limit is None or load[group] < limit)]
            if not allowed:
                return found
            lowest = {group: waiting[group][0] for group in allowed}
            if fair:
                turns = [(load[each], self.since(lowest[each]), lowest[each], each) for each in allowed]
                group = min(turns)[3]
                oldest = min(turn[1:] for turn in turns)
                if not found and self.now - oldest[0] >= PATIENCE:
                    group = oldest[2]
            else:
                group = min((lowest[each], each) for each in allowed)[1]
            size = 1 if len(found) < FAIR else len(self.messages) if limit is None else limit - load[group]
            taken, waiting[group] = waiting[group][:size], waiting[group][size:]
            load[group] += len(taken)
            found += taken

    def dead(self, offsets: list[int]) -> list[int]:
        return sorted(super().dead(offsets))

    def claim(
        self,
        count: int,
        timeout: int | None,
        lease: str,
        attempt: str | None = None,
        keys: dict[str, Destination | None] | None = None,
        hands: int | None = None,
        one_each: bool = False,
    ) -> Claimed:
        count = self.allowed(count)
        offsets = self.next(count, hands, one_each)
        dead = self.meet_dead(offsets, count, lease, keys or {})
        if dead is not None:
            return dead
        kept, last, passed = self.begun(sorted(offsets), hands)
        claimed = self.receive(sorted(kept), last, passed, timeout, lease)
        if self.settings.fair and kept:
            in_turn = offsets[:FAIR] if self.any_group() else offsets
            self.stamp({self.messages[offset].group for offset in in_turn})
        return claimed

    def stamp(self, served: set[str]) -> None:
        """A group that was served while another one waits has waited since now."""
        waiting = self.waiting()
        may_go = {group for group in waiting if not self.group_full(group)}
        for group in served & waiting.keys():
            if may_go - {group}:
                self.messages[waiting[group][0]].hidden_until = self.now
                self.pass_head(waiting[group][0] + 1)
