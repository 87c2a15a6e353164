"""The heartbeat scheduler: a thread that extends all receipts of one holder in time (HNS-21)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Generic

from lakequeue.model.clock import NEVER, Clock, Interrupt, from_micros, to_micros
from lakequeue.model.waiting_work import WaitingThreads, Waits
from lakequeue.renewal.holds import Holds, Key, Verdict
from lakequeue.renewal.policies import Hold, Renewal

_IN_TURN = 4
"""Maximum number of batches that are extended in sequence. More batches are extended in parallel."""
_AT_ONCE = 32

_log = logging.getLogger("lakequeue")


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
            deleted. None: only extensions detect that a message was deleted.
        shared: receipts and lock of a holder that also protects other data with the lock. None: the scheduler has
            its own receipts and lock.
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
        shared: tuple[Holds[Key], AbstractContextManager[Any]] | None = None,
    ) -> None:
        self._holds: Holds[Key] = Holds(policy, watch is not None)
        self._lock: AbstractContextManager[Any] = threading.Lock()
        if shared is not None:
            self._holds, self._lock = shared
        self._clock = clock
        self._extend = extend
        self._lost = lost
        self._broken = broken
        self._batch = batch
        self._watch = watch
        self._until: int | None = None
        self._wake = Interrupt()
        self._stopped = threading.Event()
        self._beating = threading.RLock()

    def keep(self, holds: Mapping[Key, Hold]) -> None:
        with self._lock:
            self._holds.keep(holds, self._now())
            at = self._holds.next(holds)
        if at is not None:
            self.look_by(at)

    def look_by(self, at: int) -> None:
        """Makes the scheduler check receipts at this instant or earlier."""
        if self._until is None or at < self._until:  # a consumer keeps hundreds at a time, due after the first one
            self._wake.set()

    def drop(self, key: Key) -> Hold | None:
        """Stops renewing a receipt. Returns its last state, or None if it was not kept."""
        with self._lock:
            return self._holds.drop(key)

    def get(self, key: Key) -> Hold | None:
        """Returns the state of a receipt; None if it is not kept."""
        with self._lock:
            return self._holds.get(key)

    def start(self, threads: WaitingThreads | None = None) -> None:
        """Starts the scheduler, in threads that several schedulers share, or in a thread of its own."""
        threads = threads or WaitingThreads(self._clock, 1, "lakequeue heartbeat", late=True)
        threads.add(self._run(), self._wake)

    def stop(self) -> None:
        """Ends the scheduler. Extends nothing after this method returns."""
        with self._lock:
            self._holds.clear()
        self._stopped.set()
        self._wake.set()
        with self._beating:  # it may be extending
            pass

    def beat(self) -> datetime:
        """Extends the receipts that are due. Returns when to check again."""
        with self._lock:
            due = self._holds.due(self._now())
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
            self._until = self._holds.next()
        return NEVER if self._until is None else from_micros(self._until)

    def _look(self) -> None:
        """Stops renewing messages that other processes deleted. Searches for them at most once a second."""
        with self._lock:
            keys = self._holds.to_watch(self._now())
        if not keys or self._watch is None:
            return
        found = list(self._watch(keys))
        with self._lock:
            lost = self._holds.lose(found)
        for key in lost:
            self._lost(key)

    def _renew(self, keys: Iterable[Key]) -> None:
        with self._lock:
            now = self._now()
            wanted = self._holds.wanted(keys, now)
        verdicts = self._extended(wanted)
        with self._lock:
            tight = self._holds.tight(wanted, verdicts, now)
        verdicts |= self._extended(tight)
        with self._lock:
            lost = self._holds.renewed(wanted | tight, verdicts, now)
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
