"""The window of deduplication ids in memory (DDP-1, JOB-6)."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from lakequeue.storage.messages import dedup_window
from lakequeue.storage.messages.dedup_window import DedupWindow

MICROS = 1_000
Naive = dict[str, tuple[int, int]]
"""Offset and instant of each id."""


@pytest.mark.parametrize("bits", [64, 3], ids=["hashes", "collisions"])
@pytest.mark.parametrize("seed", range(5))
def test_the_window_finds_the_same_ids_as_a_naive_window(
    monkeypatch: pytest.MonkeyPatch, seed: int, bits: int
) -> None:
    monkeypatch.setattr(dedup_window, "hash", lambda key: hash(key) % (1 << bits - 1), raising=False)
    monkeypatch.setattr(dedup_window, "_LEAST", 8)
    chance, window, naive, now, purged = random.Random(seed), DedupWindow(False, MICROS), Naive(), 0, 0
    for _ in range(300):
        now += chance.choice([0, 1, 1, 50])
        window.advance(now)
        if chance.random() < 0.05:
            purged = chance.randint(purged, window.end)
            window.forget_below(purged)
        live = {key for key, (offset, at) in naive.items() if offset >= purged and at > now - MICROS}
        ids = dict.fromkeys(f"{chance.randrange(400)}" for _ in range(chance.randrange(1, 6)))
        keys = [None if id in live or chance.random() < 0.1 else id for id in ids]
        naive |= {key: (offset, now) for offset, key in enumerate(keys, window.end) if key is not None}
        window.add(window.end, keys, now)
        for key in map(str, range(0, 400, 7)):
            offset, at = naive.get(key, (-1, -MICROS))
            found = window.find(key)
            known = offset >= purged and at > now - MICROS
            assert (offset in found) if known else (offset not in found)
            assert bits == 3 or len(found) == known


@pytest.mark.parametrize("batch", [25, 1_000])
def test_an_id_takes_less_than_a_hundred_bytes(batch: int) -> None:
    """1 M ids: less than 100 MiB, also while the table grows."""
    tracemalloc.start()
    window = DedupWindow(False, MICROS)
    for first in range(0, 125_000, batch):
        window.add(first, [f"invoice-{number:012}" for number in range(first, first + batch)], first)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 125_000 * 100


def test_what_no_longer_counts_is_let_go() -> None:
    window = DedupWindow(False, MICROS)
    for now in range(0, 40 * MICROS, 10):
        window.advance(now)
        window.add(window.end, [f"{now}-{number}" for number in range(10)], now)
    assert len(window._offsets._offsets) <= 4_096 and len(window._instants) <= 250
