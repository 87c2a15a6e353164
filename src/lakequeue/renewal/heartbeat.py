"""The scheduler that extends receipts in time: one thread for everything that one holder has (HNS-21)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from enum import Enum
from typing import Generic, TypeVar

import attrs

from lakequeue.model.clock import MICROS, Clock, from_micros, to_micros
from lakequeue.renewal.policies import Hold, Renewal

_NEVER = datetime.max.replace(tzinfo=timezone.utc)

_IN_TURN = 4
"""So many batches are extended one after another."""
_AT_ONCE = 32

_log = logging.getLogger("lakequeue")

Key = TypeVar("Key", bound=Hashable)


class Verdict(Enum):
    """What became of an attempt to extend a receipt."""

    EXTENDED = "extended"
    LOST = "lost"
    """Somebody else may have the message, or have it soon."""
    GONE = "gone"
    """The message was deleted: there is nothing left to extend, and nothing to tell (HBN-20)."""
    FAILED = "failed"
    """Nothing is known to have changed; it may be tried again."""


class HeartbeatScheduler(Generic[Key]):
    """Extends receipts as a policy says, from `start` to `stop`, for as long as each is held.

    Args:
        clock: where its time comes from.
        policy: when and by how much.
        extend: extends receipts to so many microseconds from now; a verdict for each, in order.
        lost: told of each receipt that turns out to be lost; its renewal has stopped then.
        broken: told of an error that ended the scheduler.
        batch: receipts in one call of ``extend``; None for any number (HBN-11).
    """

    def __init__(
        self,
        clock: Clock,
        policy: Renewal,
        extend: Callable[[Sequence[tuple[Key, int]]], Sequence[Verdict]],
        lost: Callable[[Key], None],
        broken: Callable[[BaseException], None],
        batch: int | None = None,
    ) -> None:
        self._clock = clock
        self._policy = policy
        self._extend = extend
        self._lost = lost
        self._broken = broken
        self._batch = batch
        self._lock = threading.Lock()
        self._holds: dict[Key, Hold] = {}
        self._over: set[Key] = set()
        self._since = 0
        self._wake = threading.Event()
        self._begun = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lakequeue heartbeat", daemon=True)

    def keep(self, holds: Mapping[Key, Hold]) -> None:
        """From now on these are extended."""
        with self._lock:
            if not self._holds:
                self._since = self._now()
            self._holds |= holds
        self._wake.set()

    def drop(self, key: Key) -> Hold | None:
        """Ends the renewal of a receipt, which was so; None if it was not kept."""
        with self._lock:
            self._over.discard(key)
            return self._holds.pop(key, None)

    def get(self, key: Key) -> Hold | None:
        """How a receipt stands."""
        with self._lock:
            return self._holds.get(key)

    def start(self) -> None:
        """Starts the thread; returns once it takes part in the clock."""
        self._thread.start()
        self._begun.wait()

    def stop(self) -> None:
        """Ends the thread; when this returns nothing is extended any more."""
        with self._lock:
            self._holds.clear()
        self._stopped.set()
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def beat(self) -> datetime:
        """Extends what is due; answers when to look again."""
        with self._lock:
            now = self._now()
            due = [key for key, at in self._looks() if at <= now]
        size = self._batch or len(due) or 1
        batches = [due[start : start + size] for start in range(0, len(due), size)]
        if len(batches) <= _IN_TURN:
            for batch in batches:
                self._renew(batch)
        else:  # at once: they share commits, and none is late because of the others
            with ThreadPoolExecutor(min(len(batches), _AT_ONCE)) as pool:
                list(pool.map(self._renew, batches))
        with self._lock:
            return min((from_micros(at) for _, at in self._looks()), default=_NEVER)

    def _looks(self) -> Iterator[tuple[Key, int]]:
        for key, hold in self._holds.items():
            at = None if key in self._over else self._policy.next_check(hold, self._since)
            if at is not None:
                yield key, at

    def _renew(self, keys: Iterable[Key]) -> None:
        with self._lock:
            now = self._now()
            held = {key: self._holds[key] for key in keys if key in self._holds}
        wanted = {key: self._policy.extension(hold, now) for key, hold in held.items()}
        verdicts = self._asked({key: timeout for key, timeout in wanted.items() if timeout > 0})
        # the commit comes later than `now`, so the last seconds of the twelve hours may just be over
        tight = {
            key: wanted[key] - MICROS
            for key, verdict in verdicts.items()
            if verdict is Verdict.LOST and held[key].extended(now, wanted[key]).exhausted and wanted[key] > MICROS
        }
        wanted |= tight
        verdicts |= self._asked(tight)
        lost = []
        with self._lock:
            for key, timeout in wanted.items():
                if key not in self._holds:
                    continue  # finished meanwhile, so whatever came out is right (HBN-20)
                verdict = verdicts.get(key)
                if verdict is None:
                    self._holds[key] = attrs.evolve(held[key], exhausted=True)
                elif verdict is Verdict.EXTENDED:
                    self._holds[key] = held[key].extended(now, timeout)
                elif verdict is Verdict.FAILED:
                    self._holds[key] = held[key].refused(now)
                else:
                    self._over.add(key)
                    lost += [key] if verdict is Verdict.LOST else []
        for key in lost:
            self._lost(key)

    def _asked(self, wanted: dict[Key, int]) -> dict[Key, Verdict]:
        return dict(zip(wanted, self._extend(list(wanted.items())), strict=True)) if wanted else {}

    def _run(self) -> None:
        with self._clock.participant(late=True):
            self._begun.set()
            try:
                until = self.beat()
                while not self._stopped.is_set():
                    self._clock.wait(until, self._wake)
                    self._wake.clear()
                    # what ends at this very instant ends first (HBN-10), also if something else woke us
                    self._clock.wait(self._clock.now(), self._stopped)
                    until = self.beat()
            except BaseException as error:
                _log.exception("the heartbeat ended")
                self._broken(error)

    def _now(self) -> int:
        return to_micros(self._clock.now())
