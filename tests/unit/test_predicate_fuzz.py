"""Conditions of every kind, asked of hostile messages: each is judged or refused in a line, and harms no other."""

from __future__ import annotations

import os
import re
import time
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from hostile import BODIES, conditions
from lakequeue.conditions import sandbox
from lakequeue.conditions.predicate import Predicate
from lakequeue.errors import InvalidParameterValue
from lakequeue.operations.browse import SCHEMA

LONG_SECONDS = float(os.environ.get("LAKEQUEUE_SOAK_SECONDS", "600"))
ROWS = pa.Table.from_pylist(
    [{"message_id": str(n), "body": body, "state": "visible", "age": 1.5} for n, body in enumerate(BODIES)], SCHEMA
)


def judged(text: str) -> str:
    """What becomes of a condition."""
    try:
        rows = Predicate(text, SCHEMA).select(ROWS)
    except InvalidParameterValue as refusal:
        assert "\n" not in refusal.message and len(refusal.message) < 700
        reason = refusal.message.partition("Reason: ")[2]
        return re.match("[A-Za-z ]*", reason)[0].strip()[:30]  # type: ignore[index]
    assert all(0 <= row < len(ROWS) for row in rows)
    return "judged"


def fuzz(examples: int, start: int, found: Counter[str]) -> None:
    @seed(start)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(conditions)
    def ask(text: str) -> None:
        found[judged(text)] += 1

    ask()
    assert judged("body = ''") == "judged"


def test_any_condition_is_judged_or_refused(monkeypatch):
    monkeypatch.setattr(sandbox, "SECONDS", 2.0)
    found: Counter[str] = Counter()
    fuzz(150, 0, found)
    assert found["judged"] > 20 and len(found) > 5, found


@pytest.mark.long
@pytest.mark.timeout(LONG_SECONDS * 2)
def test_any_condition_is_judged_or_refused_for_ten_minutes(monkeypatch):
    monkeypatch.setattr(sandbox, "SECONDS", 2.0)
    found: Counter[str] = Counter()
    end, start = time.monotonic() + LONG_SECONDS, 1
    while time.monotonic() < end:
        fuzz(200, start, found)
        start += 1
    print(f"{found.total():,} conditions", found.most_common())
