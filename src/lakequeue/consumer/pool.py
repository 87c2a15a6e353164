"""The messages of one queue that a consumer holds, as a state machine that takes events and returns actions.

A message is *active* from its receive until it is deleted, handed back, left to its timeout, or lost. Messages of
one group are handled one after another, all others as soon as a hand is free (HBN-19). The next round settles the
messages that handlers have finished, and claims messages in the same commit. Times are whole microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lakequeue.consumer import events
from lakequeue.consumer.ahead import MOST, Ahead
from lakequeue.consumer.jobs import Done, Job, Rules, State, Turn, lingers_until, rests_until
from lakequeue.consumer.letters import Letters
from lakequeue.consumer.line import Line
from lakequeue.consumer.totals import Totals
from lakequeue.renewal import holds

if TYPE_CHECKING:
    from lakequeue.entry_verbs import FreeHands
    from lakequeue.model.failures import DeadLetterReason
    from lakequeue.renewal.policies import Hold

# Eight processes on a shard of an object store reached 0.74 of their speed with 0.25 s, 0.92 with 1 s.
_LONGEST_GATHER = 1_000_000
"""Maximum microseconds that handled messages wait for the next commit. Recent rounds may limit the wait more."""
_ROUNDS = 4
"""Maximum rounds for which messages wait to become dead letters together. ``Rules.linger`` may allow more."""


class Pool:
    """The active messages of one queue of a consumer. Not thread-safe.

    Attributes:
        active: the messages by receipt handle.
        holds: the receipts of the active messages, and when to extend each receipt.
        busy: number of messages that hands handle.
        handled, failed: number of messages whose handlers succeeded, and failed.
        claim: the ``FreeHands`` of the last claim; None if it needs none, or if the pool claims nothing.
        hungry: True after a hand asked for work and no message of this queue could begin.
        full: True if the pool had no capacity for more messages when a round was last due.
        taken: number of messages that have begun, divided by the weight. The queue with the lowest value is next.
        unended: messages whose handlers did not end in time.
        released: the ``unended`` messages that the next round makes visible.
    """

    def __init__(self, rules: Rules, totals: Totals) -> None:
        self.unended: list[Job] = []
        self.released: list[Done] = []
        self.rules = rules
        self.holds = holds.Holds(rules.renewal, watches=True, batch=rules.largest)
        self.busy = self.handled = self.failed = 0
        self.hungry, self.full, self.taken = True, False, 0.0
        self._totals = totals
        self.ahead = Ahead(self.concurrency, rules.prefetch, rules.longest // 3, rules.fifo)
        totals.pools.append(self)
        self.active: dict[str, Job] = {}
        self.line = Line(self._is_again)
        self._done: list[Done] = []  # finished; the next round settles it
        self._letters = Letters()
        self._behind: list[Job] = []  # returning: what waited behind messages that failed, or too long
        self._failures: dict[str, DeadLetterReason] = {}
        self.claim: FreeHands | None = None
        self._claims_again = 0  # when the next claim is due, unless messages must be settled earlier
        self._kept = self._asked = 0  # hands that stay free for last receives; of them, until the next begins
        self._busy_hands = 0
        self._now = 0
        self._actions: list[events.Action] = []
        self._handlers: dict[type, Callable[[Any], None]] = {
            events.Tick: self._tick,
            events.RoundDue: self._round,
            events.MessagesReceived: self._received,
            events.Settled: self._settled,
            events.RoundFailed: self._round_failed,
            events.HandFree: self._hand_free,
            events.HandlerEnded: self._ended,
            **dict.fromkeys((holds.Due, holds.Extended, holds.Gone), self._renewal),
            events.RunEnds: self._stopping,
            events.GraceOver: self._grace_over,
            events.RunOver: self._run_over,
        }

    def on(self, event: events.Event, now: int) -> list[events.Action]:
        """Handles an event. Returns the actions to perform, in order."""
        self._now, self._actions = now, []
        self._handlers[type(event)](event)
        return self._actions

    def __len__(self) -> int:
        return len(self.active)

    @property
    def concurrency(self) -> int:
        """Maximum number of messages that are handled at a time."""
        return self._totals.hands * self.rules.batch

    def is_over(self, job: Job, now: int) -> bool:
        """Returns True if the receipt of a message has ended, by the queue's clock."""
        hold = self.holds.get(job.handle)
        return hold is not None and hold.is_over(now)

    # --- received

    def _received(self, event: events.MessagesReceived) -> None:
        """Adds received messages. Messages of a group wait for earlier messages of the group."""
        self._letters.claimed(bool(event.turns), self.claim)
        at = event.took_all_at
        self._claims_again = 0 if at is None else min(at, self._now) + self.rules.claim_interval
        self.ahead.lacking -= sum(len(turn.jobs) for turn in event.turns)
        if not event.turns:
            self._release_hands()
            return self._wake() if self._letters and not self._letters.more else None
        self._actions += self.holds.keep(event.holds, self._now)
        refused = self._refused(event.turns)
        added = [turn for turn in event.turns if turn not in refused]
        jobs = [job for turn in added for job in turn.jobs]
        if jobs:
            self.ahead.received([job.context.message for job in jobs])
            self.active |= {job.handle: job for job in jobs}
            self._totals.empty = set()
            self.hungry = False
        for turn in added:
            self.line.add(turn)
        self._do(events.WakeHands(len(event.turns)))
        self._return([job for turn in refused for job in turn.jobs])

    def _refused(self, turns: Sequence[Turn]) -> list[Turn]:
        """Returns the turns to give back, because they are on their last receive and no free hand is left."""
        if not self._totals.several or self.rules.prefetch:
            return []
        last = [turn for turn in turns if turn.is_last]
        refused = last[max(0, self._totals.hands - self._begun()) :] if last else []
        if self.claim is not None:
            self.claim.passed += len(refused)
        return refused

    # --- taken by hands

    def _hand_free(self, event: events.HandFree) -> None:
        """Begins the handler's next call, if any. A message that was received before is alone in its call."""
        due = self.begins(self._now)
        while self.wants_hand and not (due and self.next_is_last):
            self._kept += 1
            self._totals.kept += 1
            self._claims_again = 0  # the last claim left a message for this hand
            self._wake()
        if not due:
            self.hungry = True
            return
        jobs: list[Job] = []
        while len(jobs) < self.rules.batch and (job := self._next(first=not jobs)) is not None:
            jobs.append(job)
            if job.context.message.receive_count > 1:  # if its earlier batch failed, it fails alone
                break
        if jobs:
            self._count_busy(len(jobs), 1)
            self._do(events.Start(jobs))
            # what was behind a batch may begin alone, and what was behind may begin in a hand that is kept
            if (self.rules.batch > 1 or self._totals.kept) and self.begins(self._now):
                self._do(events.WakeHands(1))

    def _next(self, first: bool) -> Job | None:
        """Takes the next message of a batch from the line, and marks it as running. ``first`` is True for the
        batch's first message. Returns None if no message may begin.
        """
        while self.line.ready and not self._keeps_back(self.line.ready[0]):
            if not first and self._is_again(self.line.ready[0]):
                return None
            turn = self.line.ready.popleft()
            while turn.jobs:
                job = turn.jobs.popleft()
                if job.state is State.WAITING:  # else it was handed back
                    job.state = State.RUNNING
                    return job
            self.line.leave(turn)
        self.hungry = True
        return None

    def _count_busy(self, messages: int, hands: int) -> None:
        self.busy += messages
        self._busy_hands += hands
        self._totals.busy += hands

    def begins(self, now: int) -> bool:
        """True if a free hand can begin a batch now."""
        if len(self.line.ready) >= self.rules.batch:
            return not self._keeps_back(self.line.ready[0])
        due = self.due()
        return due is not None and now >= due

    def due(self) -> int | None:
        """Returns the instant at which a hand may begin a batch that is not full; None if no message may begin."""
        if not self.line.ready or self._keeps_back(self.line.ready[0]):
            return None
        if self._is_again(self.line.ready[0]):
            return 0
        return min((job.since for turn in self.line.ready for job in turn.jobs), default=0) + self.rules.batch_wait

    def _keeps_back(self, turn: Turn) -> bool:
        """True if a turn must wait: all hands are busy (HBN-18), or the free hands are kept for last receives and
        this turn is not on its last receive.
        """
        free = self._totals.hands - self._totals.busy
        return free <= self._totals.kept and (free <= 0 or not turn.is_last)

    def _is_again(self, turn: Turn) -> bool:
        """True if the turn's next message must not share a batch with others, because it was received before."""
        return self.rules.batch > 1 and bool(turn.jobs) and turn.jobs[0].context.message.receive_count > 1

    def _go_on(self, turn: Turn) -> None:
        if turn.group is not None:
            self.line.go_on(turn)
            self.hungry = False
            self._do(events.WakeHands(1))

    # --- ended by handlers

    def _ended(self, event: events.HandlerEnded) -> None:
        self._failures |= event.failures
        for job, (fate, again_in) in zip(event.jobs, event.fates, strict=True):
            self._end(job, fate, again_in, event.took)
        self._count_busy(-len(event.jobs), -1)

    def _end(self, job: Job, fate: events.Fate, again_in: int | None, took: int) -> None:
        """Decides how to settle a message after a call of the handler."""
        if job.state is not State.RUNNING:
            return  # a stop took it back
        hold = self.holds.drop(job.handle)
        if called := fate not in (events.Fate.LATE, events.Fate.BROKEN):
            self.ahead.took(took)
            self.handled += fate is events.Fate.SUCCESS
            self.failed += fate is not events.Fate.SUCCESS
        if fate is events.Fate.BROKEN:
            return self._forget([job, *self._end_rest(job)])
        if job.context.lost:
            if called:
                self._do(events.Warn("%s: the receipt was lost while the handler ran", job))
            return self._finish([job, *self._end_rest(job)])
        if fate is events.Fate.LATE:
            self._do(events.Warn("%s: its receipt ended before a handler began, so it is given back", job))
            self._return_later([job, *self._end_rest(job)])
            self._go_on(job.turn)
            return self._wake()
        if fate is events.Fate.SUCCESS:
            return self._settle_later(self._deletion(job, hold))
        self._return_later(self._end_rest(job))
        # if its renewal failed, another consumer may have it by now (HNS-14)
        in_doubt = hold is not None and hold.failed and fate is not events.Fate.FAILED_RETRY_NOW
        if again_in is None or in_doubt:
            return self._finish([job])
        longest = max(self.rules.linger, _ROUNDS * self.ahead.longest_round)
        done, until = Done(job, again_in), self._until(hold, self._now, longest)
        if not (self.rules.gathers and self._letters.may_wait(done, until)):
            return self._settle_later(done)
        self._letters.add(done, until, self._failures.pop(job.handle, None))
        self._wake()

    def _deletion(self, job: Job, hold: Hold | None) -> Done:
        """Returns the deletion of a handled message. If the receipt has ended, and the pool has received the
        message again, the deletion uses the later receipt.
        """
        if hold is None or not hold.is_over(self._now):
            return Done(job, hold=hold, until=self._until(hold, self._now, self.rules.linger))
        message_id = job.context.message.message_id
        again = [other for other in self._waiting() if other.context.message.message_id == message_id]
        self._forget(again)
        return Done(job, handle=again[-1].handle) if again else Done(job, hold=hold)

    def _until(self, hold: Hold | None, now: int, longest: int) -> int:
        """Returns the instant until which a handled message may wait for other messages; 0 if it may not wait."""
        if not self.rules.linger or hold is None or hold.failed or hold.timeout <= 0:
            return 0
        longest = min(longest, (hold.visible_at - now) // 3)
        return now + longest if longest > 0 else 0

    def _end_rest(self, job: Job) -> list[Job]:
        rest = [other for other in job.turn.jobs if other.state is State.WAITING]
        job.turn.jobs.clear()
        return rest

    def _settle_later(self, done: Done) -> None:
        """Adds a message to settle in the next round. Wakes the loop, unless it wakes early enough anyway."""
        done.job.state = State.FINISHED
        if all(each.due is not None or each.until > done.until for each in self._done):
            self._wake()
        self._done.append(done)

    def _finish(self, jobs: Sequence[Job]) -> None:
        self._forget(jobs)
        for turn in dict.fromkeys(job.turn for job in jobs):
            self._go_on(turn)

    def _forget(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self.holds.drop(job.handle)
            job.state = State.ENDED
            self.active.pop(job.handle, None)
        self._wake()

    def _return_later(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            job.state = State.RETURNING
        self._behind += jobs

    def _return(self, jobs: Sequence[Job]) -> None:
        if jobs:
            self._do(events.GiveBack([job.handle for job in jobs if not job.context.lost]))
            self._forget(jobs)

    def _waiting(self) -> list[Job]:
        return [job for job in self.active.values() if job.state is State.WAITING]

    def _wake(self) -> None:
        if not any(isinstance(action, events.Wake) for action in self._actions):
            self._do(events.Wake())

    def _do(self, action: events.Action) -> None:
        self._actions.append(action)

    # --- passes of the loop

    def _tick(self, event: events.Tick) -> None:
        """Called at the beginning of each iteration of the loop. Adopts a new number of hands, and gives back
        messages that waited too long. If more handlers may end before the next commit, makes the commit wait for
        them.
        """
        self._release_hands()
        if event.hands != self._totals.hands:
            self._totals.hands = event.hands
            for pool in self._totals.pools:
                pool.ahead.resize(pool.concurrency)
            self._do(events.Resize(event.hands))
        back = self._given_back_at()
        if event.paused or (back is not None and self._now >= back):
            ahead = self._held_ahead()
            self.ahead.fell_behind()
            self._end_claims()
            self._return(ahead)  # also if hands did not come to it in time
            self.line.drop_returned()
            self._do(events.WakeHands(len(self.line.ready)))  # for what waited behind them
        if self._failures or self._letters or any(done.due is None for done in self._done):
            # while all hands are busy, what they finish meanwhile goes into the same commit
            self._do(events.Gather(min(self.ahead.gather(len(self.line.ready)), _LONGEST_GATHER)))

    def _round(self, event: events.RoundDue) -> None:
        """Asks for a round if messages must be settled or may be claimed. Otherwise asks for a wait."""
        claims = not event.paused and self._now >= event.not_before
        if event.paused or self._letters.asked:  # the last round brought no message
            self._letters.claimed(messages=False, claim=None if event.paused else self.claim)
        moves = self._hand_in()
        if claims and event.may_linger and not (self._letters or self._failures or self._behind):
            if (until := rests_until(self._done, self._claims_again, self.next_event())) > self._now:
                return self._do(holds.WaitUntil(until))
            if (until := lingers_until(self._done)) > self._now:
                return self._do(events.Linger(until))
        behind, self._behind = self._behind, []
        self._return(behind)  # before the one that failed: the group stays blocked, which keeps its order
        due, failures = self._due()
        at = None if due or failures else self.next_event()
        # what failed is tried alone: the claim may be what fails
        room = 0 if event.paused or any(done.failures for done in due) else max(moves, self._room(len(due)))
        if due or failures or (room and claims):
            asked = room if claims else 0
            self._letters.asked, self.ahead.lacking = asked > 0, asked
            self.claim = self._free_hands(len(due))
            return self._do(events.Round(due, failures, asked, at))
        instants = [instant for instant in (at, event.not_before if room else None) if instant is not None]
        self._do(holds.WaitUntil(min(instants, default=None)))

    def _hand_in(self) -> bool:
        due = self._letters.due(self._now)
        self._done += [done for done, _ in due]
        self._failures |= {done.handle: reason for done, reason in due if reason is not None}
        return bool(due)

    def _due(self) -> tuple[list[Done], dict[str, DeadLetterReason]]:
        """Returns the messages that the next round settles, and the failures that the round records."""
        due = list[Done]()
        known, self._done = self._done, []
        failures, self._failures = self._failures, {}
        for done in known:
            if done.job.context.lost:
                self._warn_lost(done)
                self._finish([done.job, *self._end_rest(done.job)])
            elif (done.due is None or done.due <= self._now) and not self._would_be_hidden(done):
                done.job.state = State.SETTLING
                due.append(done)
            else:
                self._done.append(done)
        return due, failures

    def _would_be_hidden(self, done: Done) -> bool:
        """True if the message is to be made visible, but an extension in progress could hide it again."""
        return done.again_in is not None and self.holds.is_extending(done.handle)

    def next_event(self) -> int | None:
        """Returns when to settle again or to give messages back; None if there is nothing to do."""
        instants = [done.due for done in self._done if done.due is not None]
        instants += [at for at in (self._given_back_at(), self._letters.until) if at is not None]
        return min(instants, default=None)

    def _settled(self, event: events.Settled) -> None:
        self.ahead.round(event.took)
        ended = list[Job]()
        for done, result in zip(event.done, event.results, strict=True):
            done.settled = result is events.Settlement.SETTLED
            if result is not events.Settlement.AGAIN:
                ended += [done.job] if done.settled else [done.job, *self._end_rest(done.job)]
                continue
            done.failures += 1
            if done.hold is not None and done.failures == 1:  # keeps the receipt
                self._actions += self.holds.keep({done.handle: done.hold}, self._now)
            done.due = self._now + self.rules.pause(done.failures)
            self._settle_later(done)
        if ended:
            self._finish(ended)

    def _round_failed(self, event: events.RoundFailed) -> None:
        for done in event.round.done:
            done.job.state = State.FINISHED
        self._done = [*event.round.done, *self._done]
        self._failures = {**event.round.failures, **self._failures}

    # --- renewal

    def _renewal(self, event: holds.Event) -> None:
        """Passes an event to the renewal of receipts. Informs handlers whose messages have lost their receipts."""
        releases = [done for done in self._done if self._would_be_hidden(done)]
        for action in self.holds.on(event, self._now):
            if isinstance(action, holds.ReceiptsLost):
                self._do(events.Lose([self.active[key] for key in action.keys if key in self.active], found=True))
                self._wake()
            else:
                self._do(action)
        if any(not self._would_be_hidden(done) for done in releases):
            self._wake()

    # --- the end

    def _stopping(self, event: events.RunEnds) -> None:
        self._end_claims()
        self._return(self._waiting())

    def _grace_over(self, event: events.GraceOver) -> None:
        """Makes the next round release messages whose handlers still run. Ends the extension of their receipts."""
        self.holds.stop()
        self.unended = [job for job in self.active.values() if job.state is State.RUNNING]
        self._forget([job for job in self.unended if job.context.lost])
        self.released = [Done(job, again_in=0) for job in self.unended if job.state is State.RUNNING]
        for done in self.released:
            self.holds.drop(done.job.handle)
            self._settle_later(done)

    def _run_over(self, event: events.RunOver) -> None:
        """Stops settling. Marks the receipts of all unsettled messages as lost, and forgets these messages."""
        self._do(events.Lose([*self.unended, *self.active.values()], found=False))
        self._letters.claimed(messages=False, claim=None)
        self._hand_in()
        for done in self._done:
            self._warn_lost(done)
        self._forget(list(self.active.values()))

    def _warn_lost(self, done: Done) -> None:
        self._do(events.Warn("%s: handled, but its receipt was lost before that was settled", done.job))

    # --- how many to claim

    def _room(self, done: int) -> int:
        """Returns how many messages to claim in a round that settles ``done`` messages."""
        usable, held = self._usable(), self._need_hands()
        room = max(0, self.ahead.capacity(usable) - held + done, self._kept)
        if self.rules.fifo:  # what waits behind others of its group needs no hand: for further groups
            room = max(room, min(usable - len(self.line.groups), MOST - held))
        self.full = not room
        return min(room, self.rules.largest or room)

    def _usable(self) -> int:
        """Returns how many messages can be handled at a time. Subtracts hands that are busy for other queues."""
        if not self._totals.several or self._totals.held == len(self.active):
            return self.concurrency
        # at least one hand counts as idle, so that it finds a waiting message
        return (self._busy_hands + max(1, self._totals.hands - self._totals.busy)) * self.rules.batch

    def _given_back_at(self) -> int | None:
        """Returns the instant to give back messages claimed ahead. None if there are none or with ``prefetch``."""
        if self.rules.prefetch is not None or not (ahead := self._held_ahead()):
            return None
        return ahead[0].since + self.ahead.behind

    def _held_ahead(self) -> Sequence[Job]:
        """Returns the newest waiting messages, which have no usable hand, in the order of their receives."""
        number = self._need_hands() - self._usable()
        return self._waiting()[-number:] if number > 0 else ()

    def _need_hands(self) -> int:
        """Returns the number of active messages, without failed messages that wait to become dead letters."""
        return len(self.active) - len(self._letters)

    # --- hands for last receives

    def _free_hands(self, done: int) -> FreeHands | None:
        """Returns the ``FreeHands`` of a claim; None with ``prefetch``, which needs no free hands to claim."""
        return None if self.rules.prefetch else self.rules.claims(partial(self._free, done))

    def _free(self, done: int) -> int:
        others, self._asked = self._totals.kept - self._kept, self._kept
        waiting: int = sum(pool._need_hands() for pool in self._totals.pools if pool.active)
        free = max(0, self._totals.hands - waiting + done - others)
        if self._kept:  # for last receives; those that are claimed, but not begun yet, have a hand each
            free = max(free, min(self._kept, self._totals.hands - self._begun() - others))
        return free

    def _begun(self) -> int:
        """Returns the number of hands that are busy, plus the number of waiting messages on their last receive."""
        waiting: Iterable[Job] = (job for pool in self._totals.pools if pool.active for job in pool._waiting())
        return self._totals.busy + sum(job.context.message.last_receive for job in waiting)

    @property
    def is_idle(self) -> bool:
        """True if hands need not ask this pool for work: no message is active, and no last receive was put off."""
        return self.hungry and not (self.active or self.full or (self.claim and self.claim.passed))

    @property
    def next_is_last(self) -> bool:
        """True if the message to handle next becomes a dead letter unless this receive deletes it (HBN-23)."""
        return bool(self.line.ready) and self.line.ready[0].is_last

    @property
    def wants_hand(self) -> bool:
        """True if a claim skipped a message on its last receive because no hand was free for it, and a hand can be
        kept free for this message now.
        """
        waits = self.claim is not None and self.claim.passed > self._kept
        return waits and self._totals.busy + self._totals.kept < self._totals.hands

    def _release_hands(self) -> None:
        """Ends the reservation of ``_asked`` hands for a claim that has ended. Wakes up to ``_asked`` hands."""
        released, self._asked = self._asked, 0
        self._kept -= released
        self._totals.kept -= released
        if released:
            self._do(events.WakeHands(released))

    def _end_claims(self) -> None:
        self.claim, self._asked = None, self._kept
        self._release_hands()
