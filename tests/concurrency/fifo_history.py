"""Reads the log and every ledger version of a FIFO queue from its tables, without lakequeue's code."""

from __future__ import annotations

import json
from copy import copy
from typing import Any, NamedTuple
from urllib.parse import unquote

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from insides import messages_of, receipts_of
from lakequeue import Queue
from lakequeue.storage import layout
from lakequeue.storage.folder import Folder
from lakequeue.storage.stores import Store

FRESH, READY, IN_FLIGHT, GONE = range(4)

Offsets = npt.NDArray[np.int64]


class Row(NamedTuple):
    """A message in the log of a queue with one shard."""

    offset: int
    message_id: str
    body: str
    group: str
    dedup_id: str
    sent_at: int


def fifo_rows(queue: Queue) -> list[Row]:
    """Every row of the log, by offset."""
    table = DeltaTable(messages_of(queue)).to_pyarrow_table()
    table = table.set_column(0, "offset", pc.add(table["base_offset"], table["position"]))
    table = table.set_column(1, "instant", table["sent_at"].cast(pa.int64()))
    columns = ("offset", "message_id", "body", "group_id", "dedup_id", "instant")
    return sorted(Row(*row) for row in zip(*(table[name].to_pylist() for name in columns), strict=True))


class Run(NamedTuple):
    """A row of the ledger; instants in microseconds."""

    first: int
    last: int
    state: str
    lease_id: str | None
    receive_count: int
    visible_at: int | None
    received_at: int | None
    attempt_id: str | None


@attrs.frozen
class Version:
    """What one commit changed in the ledger."""

    now: int
    head_offset: int
    gone: frozenset[Run]
    """Runs of the previous version that the commit removed."""
    come: frozenset[Run]


@attrs.define
class History:
    """All versions of the ledger of a queue with one shard, read commit by commit."""

    folder: Folder
    versions: list[Version] = attrs.field(factory=list)
    _next: int = 0
    _live: dict[str, frozenset[tuple[Any, ...]]] = attrs.field(factory=dict)
    _runs: frozenset[Run] = frozenset()

    @classmethod
    def of(cls, queue: Queue) -> History:
        return cls(Store().folder(receipts_of(queue)))

    def follow(self) -> History:
        """Reads the commits since the last call."""
        while True:
            try:
                entry = self.folder.read(f"_delta_log/{self._next:020}.json")
            except FileNotFoundError:
                return self
            actions = [json.loads(line) for line in entry.splitlines()]
            self._next += 1
            for action in actions:
                if "add" in action:
                    name = unquote(action["add"]["path"])
                    self._live[name] = _ledger_rows(self.folder.read(name))
                elif "remove" in action:
                    self._live.pop(unquote(action["remove"]["path"]), None)
            rows = [row for part in self._live.values() for row in part]
            heads = [row for row in rows if row[0] == layout.HEAD_OFFSET]
            if heads:
                [head] = heads
                runs = frozenset(Run(*row[:8]) for row in rows if row is not head)
                assert len(runs) == len(rows) - 1, "a run is there twice"
                self.versions.append(Version(head[8], head[9], self._runs - runs, runs - self._runs))
                self._runs = runs


def _ledger_rows(file: bytes) -> frozenset[tuple[Any, ...]]:
    table = pq.ParquetFile(pa.BufferReader(file)).read(use_threads=False)

    def values(part: str, name: str) -> list[Any]:
        column = pc.struct_field(table[part], name)
        return (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()

    return frozenset(
        zip(
            *(table[name].to_pylist() for name in ("first_offset", "last_offset", "state")),
            *(
                values("run", name)
                for name in ("lease_id", "receive_count", "visible_at", "received_at", "attempt_id")
            ),
            *(values("head", name) for name in ("committed_at", "head_offset")),
            strict=True,
        )
    )


@attrs.frozen
class Claimed:
    """A claim in the ledger."""

    offsets: frozenset[int]
    visible_at: int


@attrs.frozen
class Gone:
    """How a message left the ledger, and its last receipt."""

    at: int
    lease_id: str
    visible_at: int


@attrs.define
class Claims:
    """The outcome of every claim, by lease id and instant, as a retry keeps the lease."""

    by_answer: dict[tuple[str, int], Claimed] = attrs.field(factory=dict)
    gone: dict[int, Gone] = attrs.field(factory=dict)
    """By offset."""
    retries: int = 0
    overtaken: int = 0
    """How often part of a group was delivered while younger messages of the group were in flight (FIF-9)."""


def judge_claims(history: History, rows: list[Row]) -> Claims:
    """Asserts the guarantees of FIFO queues for every claim, including those of killed processes.

    By the shard's clock: no message is claimed while another receipt of it lives (a retry of an attempt is the
    same receipt, with the same set); none that was gone comes back; and each older message of its group is gone
    or part of the same claim (FIF-3, FIF-9). A commit may hold one claim at most.
    """
    messages, claims, latest = _Messages(rows), Claims(), 0
    for version in history.versions:
        assert version.now >= latest, "the shard's clock runs backwards"
        latest = version.now
        before, there = messages.copy(), messages.take_over(version)
        assert not (before.state[there] == GONE).any(), f"{there} came back"
        for offset in map(int, np.flatnonzero((messages.state == GONE) & (before.state != GONE))):
            claims.gone[offset] = Gone(version.now, before.lease[offset], int(before.until[offset]))
        new = messages.lease[there] != before.lease[there]
        claimed = np.sort(there[new | (messages.received[there] != before.received[there])])
        if len(claimed):
            _judge_claim(before, messages, claimed, version.now, claims)
    return claims


class _Messages:
    """The ledger's state of each message, in arrays by offset."""

    def __init__(self, rows: list[Row]) -> None:
        self.groups = list(dict.fromkeys(row.group for row in rows))
        codes = {group: code for code, group in enumerate(self.groups)}
        self.group = np.array([codes[row.group] for row in rows])
        self.members = [np.flatnonzero(self.group == code) for code in range(len(codes))]
        self.state = np.full(len(rows), FRESH, np.int8)
        self.lease = np.full(len(rows), "", object)
        self.until, self.received, self.count = (np.zeros(len(rows), np.int64) for _ in range(3))

    def copy(self) -> _Messages:
        other = copy(self)
        for name in ("state", "lease", "until", "received", "count"):
            setattr(other, name, getattr(self, name).copy())
        return other

    def take_over(self, version: Version) -> Offsets:
        """Applies one commit; returns the offsets of its new runs."""
        for run in version.gone:
            self.state[run.first : run.last + 1] = GONE
        there = [np.array([], np.int64)]
        for run in version.come:
            part = slice(run.first, run.last + 1)
            self.state[part] = IN_FLIGHT if run.state == "in_flight" else READY
            self.lease[part], self.count[part] = run.lease_id or "", run.receive_count
            self.until[part], self.received[part] = run.visible_at or 0, run.received_at or 0
            there.append(np.arange(run.first, run.last + 1))
        passed = self.state[: version.head_offset]
        passed[passed == FRESH] = GONE
        return np.concatenate(there)

    def live(self, offsets: Offsets, now: int) -> Any:
        """Whether a receipt hides each offset."""
        return (self.state[offsets] == IN_FLIGHT) & (self.until[offsets] > now)


def _judge_claim(before: _Messages, after: _Messages, claimed: Offsets, now: int, claims: Claims) -> None:
    [lease_id], [visible_at], [received_at] = (
        set(column[claimed]) for column in (after.lease, after.until, after.received)
    )
    assert received_at == now
    claims.by_answer[lease_id, now] = Claimed(frozenset(claimed.tolist()), visible_at)
    live = before.live(claimed, now)
    if (before.lease[claimed] == lease_id).any():
        claims.retries += 1
        assert list(np.flatnonzero(before.lease == lease_id)) == list(claimed), "a retry gave another set"
        assert live.all(), "a retry after the time of its receipts"
        assert (after.count[claimed] == before.count[claimed]).all()
    else:
        assert not live.any(), f"held twice at a time: {claimed[live]}"
        assert (after.count[claimed] == before.count[claimed] + 1).all()
    for code in np.unique(after.group[claimed]):
        members = after.members[code]
        split = np.searchsorted(members, claimed[after.group[claimed] == code].max())
        older, younger = members[:split], members[split + 1 :]
        passed = np.setdiff1d(older[after.state[older] != GONE], claimed)
        assert not len(passed), f"{claimed} went past {passed} of group {after.groups[code]}"
        claims.overtaken += int(after.live(younger, now).any())
