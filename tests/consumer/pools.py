"""Pools of messages under random events, beside a naive model of the states of their messages."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace

import attrs

from lakequeue import ComputedRenewal, HeartbeatRenewal, NoRenewal
from lakequeue.consumer import events
from lakequeue.consumer.events import Fate, Settlement
from lakequeue.consumer.jobs import Job, Rules, State, Turn
from lakequeue.consumer.pool import Pool
from lakequeue.consumer.shared_hands import Controls, SharedHands
from lakequeue.entry_verbs import FreeHands
from lakequeue.model.clock import Interrupt
from lakequeue.model.receipt_handles import LONGEST_RECEIPT
from lakequeue.renewal import holds
from lakequeue.renewal.holds import Verdict
from lakequeue.renewal.policies import Hold
from lakequeue.testing import ManualClock

SECOND = 1_000_000
TIMEOUT = 30 * SECOND
CLOCK = ManualClock()
Moves = Counter[tuple[State, State]]


@attrs.define(eq=False)
class Call:
    """Messages that a hand handles."""

    queue: Queue
    jobs: Sequence[Job]


class Queue:
    """A queue of a consumer: performs the actions of its pool at random, and checks each."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.chance = chance = world.chance
        fifo = chance.random() < 0.4
        batch = chance.choice([1, 1, 1, 3])
        self.pool = Pool(
            Rules(
                renewal=chance.choice([HeartbeatRenewal(), HeartbeatRenewal(), NoRenewal(), ComputedRenewal()]),
                longest=TIMEOUT,
                prefetch=chance.choice([None, None, None, 0, 3]),
                batch=batch,
                batch_wait=chance.choice([0, SECOND]),
                fifo=fifo,
                largest=chance.choice([None, 10]),
                weight=chance.choice([1, 3]),
                linger=chance.choice([0, SECOND // 10]),
                claim_interval=chance.choice([0, SECOND]),
                gathers=not fifo,
                pause=lambda failures: failures * SECOND // 2,
                claims=FreeHands,
            ),
            world.hands_of.totals,
        )
        self.name = number
        self.model: dict[Job, State] = {}
        """What the naive model says of each message."""
        self.jobs: dict[str, Job] = {}
        self.ends: Counter[Job] = Counter()
        self.groups: dict[str, list[Job]] = {}
        """The messages of each group that have not ended, in their order."""
        self.until: dict[Job, int] = {}
        """The end of each receipt."""
        self.limit: dict[Job, int] = {}
        """Twelve hours after the begin of each receipt."""
        self.doubt = set[Job]()
        """Messages whose last extension failed."""
        self.attempts: list[holds.Extend] = []
        self.due: int | None = None
        """When the renewal has something to do."""
        self.pending: events.Round | None = None
        self.free: int | None = None
        self.stopped = self.woken = self.resized = False
        self.received = 0
        self.work = self.__class__.__name__
        self.interrupt = Interrupt()
        world.hands_of.receiving[self.pool] = self  # type: ignore[assignment]

    # --- as `Served`

    def take(self) -> Sequence[Job] | None:
        for action in self.on(events.HandFree()):
            if isinstance(action, events.Start):
                return action.jobs
        return None

    def show_hunger(self) -> None: ...

    # --- events

    def on(self, event: events.Event) -> list[events.Action]:
        """Tells the pool of an event; checks what it asks for against the model."""
        actions = self.pool.on(event, self.world.now)
        self._foresee(event)
        if isinstance(event, events.RoundDue) and not any(isinstance(each, events.Linger) for each in actions):
            self._lost_before_settled()
        left = []
        for action in actions:
            if isinstance(action, events.WakeHands):
                self.world.wake(action.number)
            elif isinstance(action, events.Resize):
                self.world.resize(action.number)
            elif isinstance(action, events.GiveBack):
                for job in map(self.jobs.__getitem__, action.handles):
                    assert self.model[job] in (State.WAITING, State.RETURNING)
                    self._end(job, State.RETURNING)
            elif isinstance(action, events.Start):
                self._started(action.jobs)
                left.append(action)
            elif isinstance(action, events.Round):
                extending = {key for attempt in self.attempts for key in attempt.wanted}
                for done in action.done:
                    assert done.again_in is None or done.handle not in extending, "HNS-14: an extension follows"
                    self._move(done.job, State.SETTLING)
                left.append(action)
            elif isinstance(action, holds.WakeRenewal):
                self.due = self.world.now
            elif isinstance(action, events.Lose):
                for job in action.jobs:
                    assert not (action.found and (job.context.lost or self.model[job] is State.ENDED))
                    job.context.lost = True  # type: ignore[assignment]
            elif isinstance(action, events.Wake):
                self.woken = True
            elif not isinstance(action, events.Warn):
                left.append(action)
        self._drop_unseen()
        self.check()
        return left

    def _started(self, jobs: Sequence[Job]) -> None:
        assert self.world.running < self.world.hands, "HBN-18: more handlers than hands"
        assert len(jobs) <= self.pool.rules.batch
        for job in jobs:
            assert self.model[job] is State.WAITING
            if (group := job.turn.group) is not None:
                assert self.groups[group][0] is job, "HBN-19: not the first of its group"
            self._move(job, State.RUNNING)
        assert len({job.turn for job in jobs}) == len(jobs)

    def _foresee(self, event: events.Event) -> None:
        """Moves the messages of the model by the rules of ``State``."""
        if isinstance(event, events.MessagesReceived):
            for turn in event.turns:
                for job in turn.jobs:
                    self.model[job], self.jobs[job.handle] = State.WAITING, job
                    if turn.group is not None:
                        self.groups.setdefault(turn.group, []).append(job)
        elif isinstance(event, events.HandlerEnded):
            for job, (fate, again_in) in zip(event.jobs, event.fates, strict=True):
                if self.model[job] is State.RUNNING:
                    self._handled(job, fate, again_in)
        elif isinstance(event, events.Settled):
            for done, result in zip(event.done, event.results, strict=True):
                if result is Settlement.AGAIN:
                    self._move(done.job, State.FINISHED)
                else:
                    rest = [] if result is Settlement.SETTLED else self._behind(done.job)
                    for job in (done.job, *rest):
                        self._end(job)
        elif isinstance(event, events.RoundFailed):
            for done in event.round.done:
                self._move(done.job, State.FINISHED)
        elif isinstance(event, events.GraceOver):
            for job in self._in(State.RUNNING):
                if job.context.lost:
                    self._end(job)
                else:
                    self._move(job, State.FINISHED)

    def _handled(self, job: Job, fate: Fate, again_in: int | None) -> None:
        rest = self._behind(job)
        if fate is Fate.BROKEN or job.context.lost:
            for each in (job, *rest):
                self._end(each)
        elif fate is Fate.LATE:
            for each in (job, *rest):
                self._move(each, State.RETURNING)
        elif fate is Fate.SUCCESS:
            if job.context.over:  # deleted by the handle of a later receive
                for each in self._in(State.WAITING):
                    if each.context.message.message_id == job.context.message.message_id:
                        self._end(each)
            self._move(job, State.FINISHED)
        else:
            for each in rest:
                self._move(each, State.RETURNING)
            if again_in is None or (job.context.in_doubt and fate is not Fate.FAILED_RETRY_NOW):
                self._end(job)
            else:
                self._move(job, State.FINISHED)

    def _lost_before_settled(self) -> None:
        for job in self._in(State.FINISHED):
            if job.context.lost:
                for each in (job, *self._behind(job)):
                    self._end(each)

    def _drop_unseen(self) -> None:
        """Ends what the pool has ended because it is lost: nothing is asked of anybody for such a message."""
        active = set(self.pool.active.values())
        for job in [job for job, state in self.model.items() if state is not State.ENDED and job not in active]:
            assert job.context.lost, f"forgotten: {job} {self.model[job]}"
            self._end(job)

    # --- the model

    def _in(self, state: State) -> list[Job]:
        return [job for job, at in self.model.items() if at is state]

    def _behind(self, job: Job) -> list[Job]:
        """What waits behind a message of the same receive and group."""
        if job.turn.group is None:
            return []
        received = job.context.received
        return [
            other
            for other in self.groups[job.turn.group]
            if other is not job and other.context.received == received and self.model[other] is State.WAITING
        ]

    def _move(self, job: Job, state: State) -> None:
        self.world.moves[self.model[job], state] += 1
        self.model[job] = state

    def _end(self, job: Job, via: State | None = None) -> None:
        if via is not None and self.model[job] is not via:
            self._move(job, via)
        self._move(job, State.ENDED)
        self.ends[job] += 1
        assert self.ends[job] == 1, "ended twice"
        if job.turn.group is not None:
            self.groups[job.turn.group].remove(job)

    def check(self) -> None:
        """Compares the pool with the model, and checks what holds at any time."""
        pool = self.pool
        active = {job: state for job, state in self.model.items() if state is not State.ENDED}
        assert {job: job.state for job in pool.active.values()} == active
        world, kept = self.world, pool.holds._held.keys()
        assert kept <= {job.handle for job in active}
        for job, state in active.items():
            if state in (State.WAITING, State.RUNNING):
                assert job.handle in kept
                if world.punctual and isinstance(pool.rules.renewal, HeartbeatRenewal) and job not in self.doubt:
                    ends = self.until[job]
                    assert job.context.lost or ends > world.now or ends > self.limit[job] - SECOND, "HBN-1: ended"

    # --- actions

    def step(self) -> None:
        """Performs something that a loop would."""
        if self.pending is not None:
            self.finish()
        elif not self.stopped:
            self.begin()

    def begin(self) -> None:
        """A pass until the round or receive begins."""
        world, paused = self.world, self.world.paused
        self.on(events.Tick(world.controls.concurrency, paused))
        self._check_nothing_is_held_too_long()
        due = events.RoundDue(paused, world.now if self.chance.random() < 0.9 else world.now + SECOND, True)
        [action] = self.on(due)
        if isinstance(action, events.Linger):
            [action] = self.on(attrs.evolve(due, may_linger=False))
        if isinstance(action, events.Round):
            self.pending = action
            claim = self.pool.claim
            self.resized = False
            self.free = None if claim is None or not action.room else claim.free()
            assert self.free is None or self.free <= max(0, world.hands - world.running), "HBN-23: no hand"

    def _check_nothing_is_held_too_long(self) -> None:
        """HBN-23: without groups, batches and other queues, all hands are busy where something waits."""
        rules = self.pool.rules
        if rules.prefetch is None and not rules.fifo and rules.batch == 1 and len(self.world.queues) == 1:
            busy = self.world.running >= self.world.hands
            late = [job for job in self._in(State.WAITING) if self.world.now - job.since >= TIMEOUT // 3]
            assert not (late and busy), "HBN-23: held for more than a third of its receipt"

    def finish(self) -> None:
        """Ends a round or a receive."""
        chance, pending = self.chance, self.pending
        assert pending is not None
        self.pending = None
        if pending.settles and chance.random() < 0.05:
            self.on(events.RoundFailed(pending))
            return
        turns = self._claim(pending.room) if pending.room and chance.random() < 0.8 else []
        if not pending.settles and not turns:
            self.on(events.MessagesReceived([], {}))
        if pending.settles:
            weights = [20, 2, 1] if not self.stopped else [20, 0, 1]
            results = chance.choices(list(Settlement), weights, k=len(pending.done))
            for done, result in zip(pending.done, results, strict=True):
                if result is Settlement.AGAIN and done.again_in is not None:
                    results[pending.done.index(done)] = Settlement.NEVER
            self.on(events.Settled(pending.done, results, chance.choice([1_000, SECOND // 2])))
        if turns and not self.stopped and not self.world.paused:
            self._receive(turns)

    def _claim(self, room: int) -> list[Turn]:
        """Claims messages: last receives for free hands only, and none behind others of its group."""
        world, turns, left = self.world, dict[str, Turn](), self.free
        for _ in range(self.chance.randint(1, room)):
            self.received += 1
            handle = f"{self.name}-{self.received}"
            group = f"group {self.chance.randrange(4)}" if self.pool.rules.fifo else None
            turn = Turn(group)
            if group is not None:
                if group not in turns and self.groups.get(group):
                    continue  # the queue gives none of a group that has messages in flight
                turn = turns.get(group, turn)
            last = self.chance.random() < 0.3 and not turn.jobs
            if last and left is not None:
                if left <= 0:
                    assert self.pool.claim is not None
                    self.pool.claim.passed += 1
                    continue
                left -= 1
            again = [job for job in self._in(State.RUNNING) if job.context.over and group is None]
            message = SimpleNamespace(
                message_id=self.chance.choice(again).context.message.message_id if again else handle,
                receipt_handle=handle,
                receive_count=self.chance.choice([1, 1, 2]),
                last_receive=last,
                body="x",
            )
            context = SimpleNamespace(
                message=message, lost=False, over=False, in_doubt=False, received=self.received
            )
            turn.jobs.append(Job(context, turn, world.now))  # type: ignore[arg-type]
            turns.setdefault(group or handle, turn)
        for turn in turns.values():
            for job in turn.jobs:
                job.context.received = self.received  # type: ignore[attr-defined]
        return list(turns.values())

    def _receive(self, turns: list[Turn]) -> None:
        now, jobs = self.world.now, [job for turn in turns for job in turn.jobs]
        begun = now if self.chance.random() < 0.9 else now + 2 * TIMEOUT - LONGEST_RECEIPT
        self.until |= dict.fromkeys(jobs, now + TIMEOUT)
        self.limit |= dict.fromkeys(jobs, begun + LONGEST_RECEIPT)
        held = {job.handle: Hold(begun, now + TIMEOUT, TIMEOUT) for job in jobs}
        self.on(events.MessagesReceived(turns, held, self.chance.choice([None, now])))
        kept = [job for job in jobs if job.context.message.last_receive and self.model[job] is State.WAITING]
        if kept and not self.pool.rules.prefetch and not self.resized:
            waiting = sum(
                job.context.message.last_receive
                for queue in self.world.queues
                if not queue.pool.rules.prefetch
                for job in queue._in(State.WAITING)
            )
            assert waiting + self.world.running <= self.world.hands, "HBN-23: a last receive without a hand"

    def end(self, call: Call) -> None:
        """Ends a call of the handler."""
        fates = []
        for job in call.jobs:
            job.context.over = self.until[job] <= self.world.now  # type: ignore[attr-defined]
            job.context.in_doubt = job in self.doubt  # type: ignore[attr-defined]
            fate = self.chance.choices(list(Fate), [48, 16, 8, 8, 1])[0]
            if fate is Fate.LATE and not (job.context.lost or job.context.over):  # type: ignore[attr-defined]
                fate = Fate.SUCCESS
            again_in = self.chance.choice([None, 0, SECOND]) if fate is Fate.FAILED else 0
            fates.append((fate, again_in))
            self.world.broken |= fate is Fate.BROKEN
        took = self.chance.choice([0, 1_000, SECOND])
        self.on(events.HandlerEnded(call.jobs, fates, took, {}))

    def renew(self) -> None:
        """Performs what the timer of the pool asks for. Attempts may end later, unless renewals are punctual."""
        while not self.attempts or self.extended():
            [*actions] = self.on(holds.Due())
            for action in actions:
                if isinstance(action, holds.Extend):
                    assert all(self._is_held(self.jobs[key]) for key in action.wanted), "HBN-20: not held any more"
                    assert len(action.wanted) <= (self.pool.rules.largest or len(action.wanted))
                    self.attempts.append(action)
                elif isinstance(action, holds.FindGone):
                    assert all(self._is_held(self.jobs[key]) for key in action.keys)
                    self.on(holds.Gone(action.keys[:1] if self.chance.random() < 0.05 else []))
                else:
                    assert isinstance(action, holds.WaitUntil) and len(actions) == 1
                    assert action.until is None or action.until > self.world.now
                    self.due = action.until
                    return
            if not self.world.punctual:
                return

    def _is_held(self, job: Job) -> bool:
        return not job.context.lost and self.model[job] is not State.ENDED

    def extended(self) -> bool:
        """Ends the attempts to extend receipts."""
        while self.attempts:
            attempt = self.attempts.pop()
            verdicts = self.chance.choices(list(Verdict), [10, 1, 1], k=len(attempt.wanted))
            again = dict[str, int]()
            waited = [done for done in self.pool._done if self.pool._would_be_hidden(done)]
            self.woken = False
            for action in self.on(holds.Extended(attempt, verdicts)):
                assert isinstance(action, holds.Extend) and not attempt.tight
                self.attempts.append(action)
                again |= action.wanted
            assert self.woken or all(self.pool._would_be_hidden(done) for done in waited), "nobody is woken"
            for (key, timeout), verdict in zip(attempt.wanted.items(), verdicts, strict=True):
                job, until = self.jobs[key], attempt.at + timeout
                assert until <= self.limit[job], "HBN-22: longer than twelve hours"
                (self.doubt.add if verdict is Verdict.FAILED else self.doubt.discard)(job)
                if verdict is Verdict.EXTENDED:
                    self.until[job] = until
                elif verdict is Verdict.LOST and key not in again:
                    assert job.context.lost or self.model[job] not in (State.WAITING, State.RUNNING)
        return True

    # --- the end

    def stop(self) -> None:
        self.stopped = True
        if self.pending is not None:
            self.finish()
        self.on(events.RunEnds())
        assert not self._in(State.WAITING)
        self.settle()

    def settle(self) -> None:
        """Settles what is due."""
        for action in self.on(events.RoundDue(True, 0, False)):
            if isinstance(action, events.Round):
                self.pending = action
                self.finish()

    def wind_up(self) -> None:
        self.on(events.GraceOver())
        self.settle()
        self.on(events.RunOver())
        assert not len(self.pool) and self.pool.busy == 0
        assert all(self.ends[job] == 1 for job in self.model), "never ended"


class World:
    """A consumer of one or more queues, under random events."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.now = 1_000 * SECOND
        self.hands = chance.choice([1, 2, 3, 6])
        self.paused = False
        self.punctual = chance.random() < 0.25
        """True if receipts are extended as soon as the pools ask for it."""
        self.moves: Moves = Counter()
        self.calls: list[Call] = []
        self.polling, self.broken = 0, False
        """Whether an error ends the consumer."""
        self.awake = 0
        """Hands that ask for work now; the others sleep."""
        self.controls = Controls(self.hands)
        self.hands_of = SharedHands(CLOCK, self.controls)
        self.queues = list[Queue]()
        for number in range(chance.choice([1, 1, 1, 2, 3])):
            self.queues.append(Queue(self, number))

    @property
    def running(self) -> int:
        return len(self.calls)

    def resize(self, number: int) -> None:
        self.hands = number
        self.awake = 0
        self.wake(number)
        for queue in self.queues:
            queue.resized = True

    def wake(self, number: int) -> None:
        self.awake = min(self.awake + number, max(0, self.hands - self.running - self.polling))

    def run(self, steps: int) -> Moves:
        for _ in range(steps):
            if not self.broken:
                self.step()
        for queue in self.queues:
            queue.stop()
        while self.calls and self.chance.random() < 0.8:
            self.end()
        for queue in self.queues:
            queue.settle()
        left, self.calls = self.calls, []
        for queue in self.queues:
            assert queue.pool.busy == sum(len(call.jobs) for call in left if call.queue is queue)
            if self.chance.random() < 0.5:
                queue.extended()
            queue.attempts.clear()  # the renewal has stopped
            queue.on(events.GraceOver())
        for call in left:
            call.queue.end(call)
        for queue in self.queues:
            queue.wind_up()
        assert self.hands_of.totals.busy == self.hands_of.totals.kept == 0
        return self.moves

    def step(self) -> None:
        chance = self.chance.random()
        if chance < 0.35:
            self.chance.choice(self.queues).step()
        elif chance < 0.6:
            self.poll()
        elif chance < 0.8:
            self.end()
        elif chance < 0.95:
            self.pass_time()
        elif chance < 0.97:
            queue = self.chance.choice(self.queues)
            queue.on(holds.Gone([job.handle for job in list(queue.pool.active.values())[:1]]))
        elif chance < 0.985:
            self.controls.concurrency = self.chance.choice([1, 2, 3, 6])
        else:
            self.paused = not self.paused
        if not self.awake and self.running < self.hands:
            ready = [queue.name for queue in self.queues if queue.pool.begins(self.now)]
            assert not ready, f"a hand sleeps though there is something to begin: {ready}"

    def poll(self) -> None:
        """Has a hand ask for work, sometimes one too many."""
        if not self.awake:
            assert self.running < self.hands or self._taken() is None, "HBN-18: more handlers than hands"
            return
        self.awake -= 1
        self.polling = 1
        if taken := self._taken():
            self.calls.append(taken)
        self.polling = 0

    def _taken(self) -> Call | None:
        several = len(self.queues) > 1
        found = (self.hands_of._next(self.now) or (None, None))[1] if several else self.queues[0].take()
        return Call(next(queue for queue in self.queues if found[0] in queue.model), found) if found else None

    def end(self) -> None:
        if self.calls:
            call = self.calls.pop(self.chance.randrange(len(self.calls)))
            call.queue.end(call)
            self.wake(1)

    def pass_time(self) -> None:
        """Lets time pass until a loop has something to do at most, which then does it."""
        until = self.now + self.chance.choice([1_000, SECOND // 10, SECOND, 5 * SECOND, 40 * SECOND])
        events_at = [at for queue in self.queues if (at := queue.pool.next_event()) is not None]
        until = max(self.now, min([until, *events_at]))
        while self.punctual:
            due = [queue for queue in self.queues if queue.due is not None and queue.due <= until]
            if not due:
                break
            first = min(due, key=lambda queue: queue.due or 0)
            self.now = max(self.now, first.due or 0)
            first.renew()
        self.now = until
        self.wake(self.hands)  # for batches that are due
        for queue in self.queues:
            if not self.punctual:
                queue.renew()
            if (at := queue.pool.next_event()) is not None and at <= self.now and not queue.stopped:
                if queue.pending is not None:
                    queue.finish()
                queue.begin()
