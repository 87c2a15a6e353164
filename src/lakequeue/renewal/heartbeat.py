"""The heartbeat scheduler: one thread that extends all receipts of one holder in time (HNS-21)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from enum import Enum
from typing import Generic, TypeVar

import attrs

from lakequeue.model.clock import MICROS, NEVER, Clock, Interrupt, from_micros, to_micros
from lakequeue.model.waiting_work import WaitingThreads, Waits
from lakequeue.renewal.policies import Hold, Renewal

_IN_TURN = 4
"""Maximum number of batches that are extended one after another. More batches are extended in parallel."""
_AT_ONCE = 32
_WATCH = MICROS
"""Time between two searches for messages that other processes deleted, for example by a cancellation (HBN-26)."""

_log = logging.getLogger("lakequeue")

Key = TypeVar("Key", bound=Hashable)


class Verdict(Enum):
    """The outcome of an attempt to extend a receipt."""

    EXTENDED = "extended"
    LOST = "lost"
    """The message was deleted, or another consumer has it or may soon receive it."""
    FAILED = "failed"
    """The extension may not have taken effect. The scheduler may try again."""


class HeartbeatScheduler(Generic[Key]):
    """Extends receipts by a policy. A receipt is extended from `keep` until `drop`.

    Args:
        clock: the queue's clock.
        policy: decides when to extend a receipt, and by how much.
        extend: extends receipts. Gets pairs (key, microseconds from now), and returns a verdict for each, in
            order.
        lost: called with the key of each lost receipt, after its renewal has stopped.
        broken: called with the error that ended the scheduler.
        batch: maximum number of receipts in one call of ``extend``. None: any number (HBN-11).
        watch: called every second with the keys of all held receipts. Returns the keys whose messages were
            deleted. None: only an extension finds that a message was deleted.
    """

    def __init__(
        self,
        clock: Clock,
        policy: Renewal,
        extend: Callable[[Sequence[tuple[Key, int]]], Sequence[Verdict]],
        lost: Callable[[Key], None],
        broken: Callable[[BaseException], None],
        batch: int | None = None,
        watch: Callable[[Sequence[Key]], Iterable[Key]] | None = None,
    ) -> None:
        self._clock = clock
        self._policy = policy
        self._extend = extend
        self._lost = lost
        self._broken = broken
        self._batch = batch
        self._watch = watch
        self._watched = 0
        self._lock = threading.Lock()
        self._holds: dict[Key, Hold] = {}
        self._over: set[Key] = set()
        self._since = 0
        self._until = to_micros(NEVER)
        self._wake = Interrupt()
        self._stopped = threading.Event()
        self._beating = threading.RLock()

    def keep(self, holds: Mapping[Key, Hold]) -> None:
        with self._lock:
            if not self._holds:
                self._since = self._watched = self._now()
            self._holds |= holds
            early = self._next(holds) < self._until
        if early:  # a consumer keeps hundreds at a time, each due long after the first one
            self._wake.set()

    def drop(self, key: Key) -> Hold | None:
        """Stops renewing a receipt. Returns its last state, or None if it was not kept."""
        with self._lock:
            self._over.discard(key)
            return self._holds.pop(key, None)

    def get(self, key: Key) -> Hold | None:
        """Returns the state of a receipt. None if it is not kept."""
        with self._lock:
            return self._holds.get(key)

    def start(self, threads: WaitingThreads | None = None) -> None:
        """Starts to extend, in threads that several schedulers share, or in a thread of its own."""
        threads = threads or WaitingThreads(self._clock, 1, "lakequeue heartbeat", late=True)
        threads.add(self._run(), self._wake)

    def stop(self) -> None:
        """Ends the scheduler; nothing is extended after this returns."""
        with self._lock:
            self._holds.clear()
        self._stopped.set()
        self._wake.set()
        with self._beating:  # it may be extending
            pass

    def beat(self) -> datetime:
        """Extends the receipts that are due. Returns when to check again."""
        with self._lock:
            now = self._now()
            due = [key for key, at in self._checks(self._holds) if at <= now]
        size = self._batch or len(due) or 1
        batches = [due[start : start + size] for start in range(0, len(due), size)]
        if len(batches) <= _IN_TURN:
            for batch in batches:
                self._renew(batch)
        else:  # in parallel: the batches share commits, and none delays another
            with ThreadPoolExecutor(min(len(batches), _AT_ONCE)) as pool:
                list(pool.map(self._renew, batches))
        self._look()
        with self._lock:
            self._until = self._next(self._holds)
        return from_micros(self._until)

    def _next(self, holds: Mapping[Key, Hold]) -> int:
        instants = [at for _, at in self._checks(holds)]
        if self._watch is not None and not holds.keys() <= self._over:
            instants.append(self._watched + _WATCH)
        return min(instants, default=to_micros(NEVER))

    def _look(self) -> None:
        """Stops renewing messages that other processes deleted. Searches for them at most once a second."""
        with self._lock:
            now, keys = self._now(), [key for key in self._holds if key not in self._over]
            if self._watch is None or not keys or now < self._watched + _WATCH:
                return
            self._watched = now
        found = self._watch(keys)
        with self._lock:
            lost = [key for key in found if key in self._holds]  # without receipts finished meanwhile (HBN-20)
            self._over.update(lost)
        for key in lost:
            self._lost(key)

    def _checks(self, holds: Mapping[Key, Hold]) -> Iterator[tuple[Key, int]]:
        for key, hold in holds.items():
            at = None if key in self._over else self._policy.next_check(hold, self._since)
            if at is not None:
                yield key, at

    def _renew(self, keys: Iterable[Key]) -> None:
        with self._lock:
            now = self._now()
            held = {key: self._holds[key] for key in keys if key in self._holds}
        wanted = {key: self._policy.extension(hold, now) for key, hold in held.items()}
        verdicts = self._extended({key: timeout for key, timeout in wanted.items() if timeout > 0})
        # the commit is later than `now`, so the last seconds of the twelve hours may just have passed
        tight = {
            key: wanted[key] - MICROS
            for key, verdict in verdicts.items()
            if verdict is Verdict.LOST and held[key].extended(now, wanted[key]).exhausted and wanted[key] > MICROS
        }
        wanted |= tight
        verdicts |= self._extended(tight)
        lost: list[Key] = []
        with self._lock:
            for key, timeout in wanted.items():
                if key not in self._holds:
                    continue  # finished meanwhile, so the verdict does not matter (HBN-20)
                verdict = verdicts.get(key)
                if verdict is None:
                    self._holds[key] = attrs.evolve(held[key], exhausted=True)
                elif verdict is Verdict.EXTENDED:
                    self._holds[key] = held[key].extended(now, timeout)
                elif verdict is Verdict.FAILED:
                    self._holds[key] = held[key].refused(now)
                else:
                    self._over.add(key)
                    lost.append(key)
        for key in lost:
            self._lost(key)

    def _extended(self, wanted: dict[Key, int]) -> dict[Key, Verdict]:
        return dict(zip(wanted, self._extend(list(wanted.items())), strict=True)) if wanted else {}

    def _run(self) -> Waits[None]:
        try:
            while not self._stopped.is_set():
                with self._beating:
                    until = self.beat()
                yield until
                self._wake.clear()
                # waits that end at this very instant end first (HBN-10), no matter what woke this thread
                self._clock.wait(self._clock.now(), self._stopped)
        except GeneratorExit:
            raise
        except BaseException as error:
            _log.exception("the heartbeat ended")
            self._broken(error)

    def _now(self) -> int:
        return to_micros(self._clock.now())
