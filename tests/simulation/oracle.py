"""What a history may be: each answer against a naive model of messages, and the guarantees of the design.

A call that was acknowledged took place between its beginning and its end; one that was refused never did; of one
whose outcome is unknown, or whose process died, both are possible. A message must be there, may be there or must
be gone, as the calls say.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import attrs

from lakequeue import Message
from lakequeue.model.receipt_handles import BETWEEN
from simulation.workloads import BURST, LIMIT, RATE, Call, History, instant

CLAIMS = ("receive", "exchange", "attempt", "again", "lease")
"""Verbs that claim messages."""

BACK = 60.0
"""Seconds that clocks may have gone back within one call, if they went back at all."""


class Broken(AssertionError):
    """A guarantee is broken."""


def judge(
    history: History,
    drained: dict[str, list[Message]],
    *,
    went_back: bool,
    lost: int | None = None,
    torn: bool = False,
) -> None:
    """Raises `Broken` for the first guarantee that a history breaks.

    Args:
        history: all calls.
        drained: what was left at the end, by queue.
        went_back: whether clocks differed, or were set back.
        lost: how many messages a repair told as lost at most; None: nothing was damaged.
        torn: whether a restore left tables that did not fit each other, and a repair mended them.
    """
    _bodies(history, drained)
    if lost is not None:
        _lost(history, drained, lost)
    elif torn:
        history = _of_what_is_there(history)
        _lost(history, drained, history.lost)
        _Judge(history, drained, went_back).judge_what_was_mended()
    else:
        _Judge(_of_what_is_there(history), drained, went_back).judge()


def judge_deliveries(history: History, drained: dict[str, list[Message]], rows: Counter[str]) -> None:
    """Raises `Broken` unless each message is in the table once or was left in the queue, and in one of the two.

    Messages that an operator may have decided are judged by nothing: the table was not asked.
    """
    _bodies(history, drained)
    calls = history.calls
    delivers = [call for call in calls if call.verb[0] == "deliver"]
    decisions = [call for call in calls if call.verb[0] == "operator" and (call.value or call.outcome != "done")]
    by_hand = [
        call
        for call in delivers
        for each in decisions
        if call.began < each.ended and not (call.outcome == "done" and call.ended < each.began)
    ]
    decided = {message.body for call in by_hand for message in call.target}
    every = any(call.outcome != "done" and not call.target for call in by_hand)  # nobody knows what it claimed
    there = Counter(message.body for messages in drained.values() for message in messages)
    outcomes = {f"p.{number}": "done" for number in range(history.setting.prefilled)}
    outcomes |= {body: call.outcome for call in _sends(history) for body in call.bodies}
    for body, outcome in outcomes.items():
        places = f"{body} is in the table {rows[body]} times, and in the queue {there[body]} times"
        if every or body in decided:
            continue
        if rows[body] + there[body] > 1:
            raise Broken(f"5: {places}")
        if outcome == "done" and not rows[body] + there[body]:
            raise Broken(f"1: {places}")
        if outcome == "refused" and rows[body] + there[body]:
            raise Broken(f"7: {places}, and was refused")
    for call in delivers:
        if call.outcome == "done" and (missing := [body for body in call.value or () if not rows[body]]):
            raise Broken(f"1: {missing} were delivered, and are not in the table")


def _bodies(history: History, drained: dict[str, list[Message]]) -> None:
    """Nobody was given another message than was sent."""
    ids: dict[str, str] = {}
    received = [each for call in history.calls for each in call.got]
    for message in [*received, *(each for messages in drained.values() for each in messages)]:
        if ids.setdefault(message.message_id, message.body) != message.body:
            raise Broken(f"5: {message.body} was given for {ids[message.message_id]}")
    sent = {body for call in history.calls for body in call.bodies}
    if unknown := [body for body in ids.values() if body not in sent and not body.startswith("p.")]:
        raise Broken(f"5: {unknown[0]} was never sent")
    if history.unexpected:
        raise Broken(f"7: {history.unexpected[0]}")


def _lost(history: History, drained: dict[str, list[Message]], lost: int) -> None:
    """Of what was acknowledged and never settled no more is missing than was told."""
    there = {message.body for messages in drained.values() for message in messages}
    touched = {message.body for call in history.calls for message in call.target}
    if any(call.verb[0] in ("purge", "drop", "rewind", "again") for call in history.calls):
        return
    sure = [
        call for call in history.calls if call.outcome == "done" and not (call.verb[0] == "send" and call.verb[3])
    ]
    missing = {body for call in sure for body in call.bodies} - there - touched
    if len(missing) > lost:
        raise Broken(f"1: {sorted(missing)} were acknowledged, and {lost} messages told as lost")


def _of_what_is_there(history: History) -> History:
    """A history in which what a restore may have undone has an unknown outcome."""
    saved, restored = history.saved, history.restored
    if saved is None or restored is None:
        return history
    old = {each.receipt_handle for call in history.calls if call.began < restored for each in call.got}

    def elsewhere(call: Call) -> Any:
        """Whether it changed other tables than the one that went back."""
        table = history.table.rpartition("/")[2]
        return table == "queues" or table and (table == "receipts") == bool(call.bodies)

    def below_head(call: Call) -> Any:
        """Whether a sender may overlook that only the log went back: on a store a copy has the same mark."""
        alone = history.setting.place == "store" and history.table.endswith("messages")
        return alone and call.process == 0 and call.bodies

    def seen(call: Call) -> Call:
        commits = [step for step in history.linked if call.began <= step < call.ended]
        since = call.outcome == "done" and commits and commits[0] >= restored
        undone = call.began < restored and call.ended > saved and not since and not elsewhere(call)
        undone = undone or call.began >= restored and (call.began_at < history.noticed or below_head(call))
        by_old = (
            not elsewhere(call)
            and call.began >= restored
            and any(each.receipt_handle in old for each in call.target)
        )
        if not undone and not by_old:
            return call
        outcome = "refused" if call.outcome == "refused" else "unknown"
        return attrs.evolve(call, outcome=outcome, got=[] if undone else call.got)

    return attrs.evolve(history, calls=[seen(call) for call in history.calls])


def _sends(history: History) -> list[Call]:
    """All sends; those of one bulk send are one, which took place once or not at all."""
    sends = [call for call in history.calls if call.bodies]
    for name in {call.verb[1] for call in sends if call.verb[0] == "bulk"}:
        same = [call for call in sends if call.verb[0] == "bulk" and call.verb[1] == name]
        first = min((call for call in same if call.outcome == "done"), default=None, key=lambda call: call.ended)
        sends = [call for call in sends if call not in same]
        outcome = "refused" if all(call.outcome == "refused" for call in same) else "unknown"
        began = min(call.began for call in same)
        one = attrs.evolve(first or same[0], outcome="done" if first else outcome, began=began)
        one.ended = first.ended if first else float("inf")
        sends.append(one)
    return sends


class _Judge:
    def __init__(self, history: History, drained: dict[str, list[Message]], went_back: bool) -> None:
        self.history, self.drained, self.went_back = history, drained, went_back
        self.fifo = history.setting.kind == "fifo"
        self.jobs = history.setting.kind == "jobs"
        self.letters = history.setting.kind == "letters"
        self.sends = _sends(history)
        self.sent = {body: call for call in self.sends for body in call.bodies}
        self.rewinds = [call for call in history.calls if call.verb[0] == "rewind" and call.outcome != "refused"]
        self.purges = [call for call in history.calls if call.verb[0] == "purge" and call.outcome != "refused"]
        self.leases = [call for call in history.calls if call.verb[0] == "lease" and call.outcome == "unknown"]
        self.blind = [
            call
            for call in history.calls
            if call.verb[0] in CLAIMS and (call.outcome == "unknown" or call.outcome == "done" and call.failed)
        ]
        """Claims of which nobody knows all messages."""
        self.receipts: dict[str, list[tuple[Call, Message]]] = defaultdict(list)
        for call in history.calls:
            for message in call.got:
                self.receipts[message.body].append((call, message))
        self.settled: dict[str, list[tuple[Call, Message]]] = defaultdict(list)
        for call in history.calls:
            for message in call.target:
                self.settled[message.body].append((call, message))
        self.final = [message.body for messages in drained.values() for message in messages]

    def judge(self) -> None:
        self._answers()
        if self.history.setting.kind == "dropped" and self._dropped():
            return
        self._once()
        self._nothing_lost()
        for body in self.receipts:
            self._receipts(body)
            self._counted(body)
        if self.history.setting.kind in ("groups", "full"):
            self._limits()
        if self.fifo or self.jobs:
            self._duplicates()
        if self.fifo:
            self._order()
        elif self.jobs:
            self._paced()
            self._halted()
        else:
            self._fresh()

    def judge_what_was_mended(self) -> None:
        self._once()
        if self.history.table.endswith("messages"):  # the ledger is whole
            for body in self.receipts:
                self._receipts(body)

    def _answers(self) -> None:
        if self.history.unexpected:
            raise Broken(f"7: {self.history.unexpected[0]}")
        for call in self.history.calls:
            if call.verb[0] == "forge" and call.outcome == "done":
                raise Broken("3: a forged receipt was accepted")
            if call.verb[0] == "again" and call.outcome == "done":
                self._again(call)

    def _again(self, call: Call) -> None:
        """Judges a receive that repeats an attempt."""
        first = call.value
        bodies = [message.body for message in first]
        others = [
            other
            for body in bodies
            for other, _ in self.settled[body]
            if other.verb[0] != "again" and other.began < call.ended and other.outcome != "refused"
        ]
        lives = call.latest < instant(first[0].received_at) + 290
        if self.purges or self.leases or self.went_back or not lives:
            return
        again = [message.body for message in call.target]
        if call.verb[3]:
            if again and len(others) == 1:
                raise Broken(f"4: an attempt goes on after a delete: {again}")
        elif not others and (again != bodies or call.got):
            raise Broken(f"4: an attempt was answered by {bodies}, then by {again}")

    def _dropped(self) -> bool:
        """Judges a queue that was deleted; returns whether it may be gone."""
        drops = [call for call in self.history.calls if call.verb[0] == "drop" and call.outcome != "refused"]
        for drop in drops:
            late = [call for call in self.sends if call.outcome == "done" and call.began > drop.ended]
            if drop.outcome == "done" and late:
                raise Broken(f"7: {late[0].bodies} was accepted by a queue that was deleted")
            found = [call for call in self.history.calls if call.got and call.began > drop.ended]
            if drop.outcome == "done" and found:
                raise Broken(f"7: {found[0].verb} found messages of a queue that was deleted")
        seen = any(drop.outcome == "done" for drop in drops) or any(
            call.error == "QueueDoesNotExist" for call in self.history.calls
        )
        if seen and self.drained:
            raise Broken("6: a deletion that others saw is not finished")
        if not self.drained and not drops:
            raise Broken("1: the queue is gone, and nobody deleted it")
        return bool(drops)

    def _once(self) -> None:
        twice = {body for body in self.final if self.final.count(body) > 1}
        if twice:
            raise Broken(f"5: stored twice: {sorted(twice)}")
        for body in {*self.final, *self.receipts}:
            call = self.sent.get(body)
            if call is None and not body.startswith("p."):
                raise Broken(f"5: {body} was never sent")
            if call is not None and call.outcome == "refused":
                raise Broken(f"7: {body} was refused ({call.error}), and is stored")
        ids: dict[str, set[str]] = defaultdict(set)
        for messages in ([message for _, message in each] for each in self.receipts.values()):
            for message in messages:
                ids[message.body].add(message.message_id)
        for message in (each for messages in self.drained.values() for each in messages):
            ids[message.body].add(message.message_id)
        for body, found in ids.items():
            if len(found) > 1:
                raise Broken(f"5: {body} has two ids")

    def _purged(self, body: str, *, surely: bool) -> bool:
        """Whether a purge took a message, certainly or perhaps."""
        call = self.sent.get(body)
        if call is not None and call.verb[0] == "create":  # to another queue
            return False
        if surely:
            if self.letters:
                return False
            return any(
                purge.outcome == "done" and (call is None or call.outcome == "done" and call.ended < purge.began)
                for purge in self.purges
            )
        return any(call is None or call.began <= purge.ended for purge in self.purges)

    def _gone(self, body: str) -> tuple[bool, bool]:
        """Whether a message must be gone, and whether it may be."""
        must = self._purged(body, surely=True)
        may = must or self._purged(body, surely=False)
        for call, receipt in self.settled[body]:
            if call.verb[0] == "erase" and call.outcome != "refused":
                may, must = True, must or call.outcome == "done"
            if call.verb[0] not in ("delete", "exchange") or call.outcome == "refused":
                continue
            if call.outcome == "done" and any(
                rewind.outcome == "done" and rewind.began > call.ended for rewind in self.rewinds
            ):
                continue  # it came back
            newer = [
                other
                for earlier, other in self.receipts[body]
                if earlier.ended < call.began and other.receive_count > receipt.receive_count
            ]
            if newer and not self.letters and not self.rewinds:
                continue  # an old receipt deletes nothing
            may = True
            if call.outcome == "done" and call.latest <= self._least(body, receipt, call):
                must = must or not self.letters and not self._rewound_since(body, receipt)
        return must, may

    def _rewound_since(self, body: str, receipt: Message) -> bool:
        """Whether a rewind may have come after a receipt began."""
        began = min((call.began for call, other in self.receipts[body] if other == receipt), default=0)
        return any(rewind.ended >= began for rewind in self.rewinds)

    def _least(self, body: str, receipt: Message, before: Call | None = None) -> float:
        """The earliest possible end of a receipt, as far as calls before another one go."""
        until = instant(receipt.visible_at)
        calls = [
            call
            for call, settled in self.settled[body]
            if (settled.receipt_handle == receipt.receipt_handle or call.verb[0] == "erase")
            and call is not before
            and call.outcome != "refused"
            and (before is None or call.began <= before.ended)
        ]
        for call in calls:
            # others may commit what a process with a wrong clock has asked for
            ahead = max(0.0, self.history.wrong.get(call.process, 0.0))
            began = call.began_at - ahead - (BACK if self.went_back else 0.0)
            end = began + (call.verb[2] if call.verb[0] == "change" else 0.0)
            meanwhile = any(
                other.verb[0] != "change" and other.began < call.ended and other.ended > call.began
                for other in calls
            )
            changed = call.outcome == "done" and call.verb[0] == "change" and not meanwhile
            until = end if changed else min(until, end)
            if self.went_back or call.ended == float("inf"):
                until = min(until, end)
        changes = [call for call, settled in self.settled[body] if call.verb[0] == "change"]
        if len(changes) > 1:  # in an order that nobody knows
            until = min([until, *(call.began_at - BACK for call in changes)])
        return until

    def _nothing_lost(self) -> None:
        there = set(self.final)
        bodies = {f"p.{number}" for number in range(self.history.setting.prefilled)}
        for call in self.sends:
            if call.outcome == "done" and not self._repeats(call):
                bodies |= set(call.bodies)
        for body in sorted(bodies | set(self.sent) | there):
            must, may = self._gone(body)
            if body in bodies and body not in there and not may:
                raise Broken(f"1: {body} was acknowledged, and is lost")
            if body in there and must:
                raise Broken(f"3: {body} was deleted or purged, and is there")

    def _repeats(self, call: Call) -> bool:
        return (self.fifo or self.jobs) and call.verb[0] == "send" and call.verb[3]

    def _receipts(self, body: str) -> None:
        def by_claim(each: tuple[Call, Message]) -> tuple[float, int, float]:
            call, message = each  # one instant for several claims while a clock that went back catches up
            return instant(message.received_at), 0 if self.rewinds else message.receive_count, call.ended

        known = sorted(self.receipts[body], key=by_claim)
        for (call, earlier), (other, later) in zip(known, known[1:], strict=False):
            until = self._least(body, earlier)
            if self.letters or (other.verb[0] == "again" and later.receipt_handle == earlier.receipt_handle):
                continue  # an attempt that found its first answer gone was repeated twice: one receipt
            if instant(later.received_at) < until and not self._purged(body, surely=False):
                raise Broken(f"2: {body} was held twice at a time, by {call.verb} and {other.verb}")
            if later.receive_count <= earlier.receive_count and not any(
                rewind.ended > call.began and rewind.began < other.ended for rewind in self.rewinds
            ):
                raise Broken(f"2: the count of {body} does not rise")
        for call, receipt in self.settled[body]:
            if call.verb[0] not in ("delete", "exchange") or call.outcome != "done":
                continue
            if call.latest <= self._least(body, receipt, call) and not self.letters:
                again = [
                    other
                    for other, _ in self.receipts[body]
                    if other.began > call.ended
                    and not any(
                        rewind.ended > call.began and rewind.began < other.ended for rewind in self.rewinds
                    )
                ]
                if again:
                    raise Broken(f"3: {body} was deleted, and received again by {again[0].verb}")
        erased = [
            call.ended for call, _ in self.settled[body] if call.verb[0] == "erase" and call.outcome == "done"
        ]
        if erased and any(other.began > min(erased) for other, _ in self.receipts[body]):
            raise Broken(f"9: {body} was erased, and received again")
        if self._purged(body, surely=True):
            for purge in self.purges:
                after = [other for other, _ in self.receipts[body] if other.began > purge.ended]
                sent = self.sent.get(body)
                if after and purge.outcome == "done" and (sent is None or sent.ended < purge.began):
                    raise Broken(f"3: {body} was purged, and received again")

    def _counted(self, body: str) -> None:
        """A message says that it was received no more often than calls may have received it."""
        if self.letters:
            return
        claims = [other for other, _ in self.receipts[body]] + self.blind + self._without(body)
        for call, message in self.receipts[body]:
            possible = sum(other.began < call.ended for other in claims)
            if message.receive_count > possible:
                raise Broken(f"2: {body} was received {message.receive_count} times, by {possible} calls")

    def _without(self, body: str) -> list[Call]:
        """Claims that were in progress while its body was removed, and answered without it.

        A process that is stopped for hours between its claim and its answer may find the body of a message empty,
        because another process has received and deleted the message meanwhile.
        """
        empties = self.history.setting.empties
        erasures = [call for call, _ in self.settled[body] if empties or call.verb[0] == "erase"]
        return [
            call
            for call in self.history.calls
            if call.verb[0] in CLAIMS
            and call not in self.blind
            and body not in [message.body for message in call.got]
            and any(each.began < call.ended and call.began < each.ended for each in erasures)
        ]

    def _limits(self) -> None:
        """A group, or a shard, has no more messages in flight than its limit, as far as receipts surely live."""
        of_groups = self.history.setting.kind == "groups"
        everyone = [(call, each) for found in self.receipts.values() for call, each in found]

        def lives(message: Message, claim: Call, call: Call) -> bool:
            if claim is call or message in call.target:  # an exchange deletes before it claims
                return claim is call
            return claim.ended < call.began and self._least(message.body, message, call) > call.latest

        def part(message: Message) -> Any:
            return message.group_id if of_groups else message.receipt_handle.split(BETWEEN)[1]

        for call in self.history.calls:
            limit = LIMIT if of_groups else self._cap_at(call)
            for limited in {part(message) for message in call.got}:
                held = {
                    message.body
                    for claim, message in everyone
                    if part(message) == limited and lives(message, claim, call)
                }
                held -= {body for body in held if self._purged(body, surely=False)}
                if len(held) > limit:
                    raise Broken(f"6: {sorted(held)} of {limited} are in flight, more than {limit}")

    def _cap_at(self, call: Call) -> int:
        """The highest cap on messages in flight of a shard that may hold during a call.

        A shard that had more when its cap became lower takes no room from other shards.
        """
        changes = [each for each in self.history.calls if each.verb[0] == "cap" and each.outcome != "refused"]
        before = max(
            (each.began for each in changes if each.outcome == "done" and each.ended < call.began), default=0
        )
        # a change that ended before the last certain one began holds no more
        known = [each.verb[1] for each in changes if each.began < call.ended and each.ended >= before]
        return max(known if before else [*known, LIMIT])

    def _paced(self) -> None:
        """In no time more messages were received than the limit lets through (JOB-11)."""
        if self.history.setting.shards > 1:
            return self._paced_by_calls()
        found = sorted(instant(message.received_at) for each in self.receipts.values() for _, message in each)
        for first, began in enumerate(found):
            for last, ended in enumerate(found[first:], first):
                if last - first + 1 > BURST + (ended - began) * RATE + 1e-6:
                    raise Broken(f"6: {last - first + 1} messages were received in {ended - began} s")

    def _paced_by_calls(self) -> None:
        """The same of calls that lie between two others: shard 0 lets a message through within its call."""
        calls = [call for call in self.history.calls if call.got and call.ended < float("inf")]
        for first in calls:
            for last in calls:
                between = [call for call in calls if call.began >= first.began and call.ended <= last.ended]
                count = len({message.receipt_handle for call in between for message in call.got})
                # the shard's clock had not met that of a process whose clock is ahead
                began = first.began_at - max(0.0, self.history.wrong.get(first.process, 0.0))
                time = max((call.latest for call in between), default=0) - began
                if between and count > BURST + max(0, time) * RATE + 1e-6:
                    raise Broken(f"6: {count} messages were received in {time} s")

    def _halted(self) -> None:
        """Whoever receives after a pause, and before anybody may have ended it, gets nothing (JOB-1)."""
        halts = [call for call in self.history.calls if call.verb[0] == "halt"]
        ends = [call for call in halts if not call.verb[1] and call.outcome != "refused"]
        for halt in (call for call in halts if call.verb[1] and call.outcome == "done"):
            for call in (each for each in self.history.calls if each.got and each.began > halt.ended):
                if not any(end.ended > halt.began and end.began < call.ended for end in ends):
                    raise Broken(f"6: {call.verb} found {[each.body for each in call.got]} in a paused queue")

    def _order(self) -> None:
        everyone: dict[str, tuple[str, int]] = {}
        for message in (
            *(message for each in self.receipts.values() for _, message in each),
            *(message for messages in self.drained.values() for message in messages),
        ):
            everyone[message.body] = str(message.group_id), int(message.sequence_number or 0)
        for call in self.sends:
            for body, number in zip(call.bodies, call.places, strict=False):
                if call.outcome == "done" and body in everyone and everyone[body][1] != int(number):
                    raise Broken(f"4: {body} has another sequence number than its sender was told")
        answers: list[tuple[Any, list[Message]]] = [(call, call.got) for call in self.history.calls if call.got]
        answers.append((None, [message for messages in self.drained.values() for message in messages]))
        for call, got in answers:
            seen: set[str] = set()
            for message in got:
                group, number = everyone[message.body]
                for body, (its_group, its_number) in everyone.items():
                    if its_group != group or its_number >= number or body in seen:
                        continue
                    if self._purged(body, surely=False) or self._surely_later(body, call):
                        continue
                    if not self._may_be_deleted(body, call):
                        raise Broken(f"4: {message.body} was delivered past {body}")
                seen.add(message.body)

    def _surely_later(self, body: str, call: Call | None) -> bool:
        sent = self.sent.get(body)
        return call is not None and sent is not None and sent.began > call.ended

    def _may_be_deleted(self, body: str, call: Call | None) -> bool:
        return any(
            other.verb[0] in ("delete", "exchange", "erase") and (call is None or other.began <= call.ended)
            for other, _ in self.settled[body]
            if other.outcome != "refused"
        )

    def _duplicates(self) -> None:
        again: dict[str, list[Call]] = defaultdict(list)
        for call in self.sends:
            if self._repeats(call):
                again[call.verb[2]].append(call)
        for calls in again.values():
            self._fresh_ids(calls)
            first, last = min(call.began_at for call in calls), max(call.latest for call in calls)
            self._free_after_a_purge(calls)
            if (
                last - first > 290
                or any(self._purged(call.bodies[0], surely=False) for call in calls)
                or self.went_back
            ):
                continue
            stored = {call.bodies[0] for call in calls} & {*self.final, *self.receipts}
            if len(stored) > 1:
                raise Broken(f"5: of equal deduplication ids {sorted(stored)} were stored")
            acknowledged = [call for call in calls if call.outcome == "done"]
            if acknowledged and not stored and not any(self._gone(call.bodies[0])[1] for call in calls):
                raise Broken(f"1: {acknowledged[0].bodies} was acknowledged, and is lost")

    def _fresh_ids(self, calls: list[Call]) -> None:
        """An id counts for five minutes from the send that was stored (DDP-9)."""
        stored = {*self.final, *self.receipts}
        for call in calls:
            if call.outcome != "done" or call.bodies[0] in stored or self.purges or self.went_back:
                continue
            if not any(
                other.bodies[0] in stored and other.began < call.ended and other.latest > call.began_at - 301
                for other in calls
            ):
                raise Broken(f"5: {call.bodies} is no duplicate of anything, and is not stored")

    def _free_after_a_purge(self, calls: list[Call]) -> None:
        """A purge frees deduplication ids (DDP-13)."""
        for purge in self.purges:
            before = [call for call in calls if call.began < purge.ended]
            after = [call for call in calls if call.began >= purge.ended]
            if (
                purge.outcome != "done"
                or len(self.purges) > 1
                or any(call.ended >= purge.began for call in before)
            ):
                continue
            bodies = {call.bodies[0] for call in after}
            acknowledged = [call.bodies for call in after if call.outcome == "done"]
            gone = any(self.settled[body] for body in bodies) or self.leases
            if acknowledged and not gone and not bodies & {*self.final, *self.receipts}:
                raise Broken(f"5: {acknowledged[0]} is no duplicate after a purge, and is not stored")

    def _fresh(self) -> None:
        if self.letters:
            return
        for call in self.history.calls:
            if call.verb[0] != "receive" or call.outcome != "done" or call.got:
                continue
            if self.history.wrong.get(call.process, 0) > 0:  # to its clock all may have expired
                continue
            for body in [*self.sent, *(f"p.{number}" for number in range(self.history.setting.prefilled))]:
                sent = self.sent.get(body)
                if sent is not None and not (sent.outcome == "done" and sent.ended < call.began):
                    continue
                if sent is not None and sent.verb[0] == "create":  # in another queue
                    continue
                delayed = sent is not None and sent.verb[0] == "send" and sent.verb[3]
                if self.history.setting.kind in ("groups", "full") or self.history.erased:
                    continue
                unknown = any(other.began < call.ended for other in self.blind)
                if delayed or unknown or self._purged(body, surely=False):
                    continue
                if not any(other.began < call.ended for other, _ in self.receipts[body]):
                    raise Broken(f"8: {call.verb} found nothing, and {body} was there")
