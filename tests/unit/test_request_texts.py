"""Commands and results survive as text, and nothing else does."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from lakequeue.errors import InvalidParameterValue, OverLimit
from lakequeue.model.deliveries import DeliveryTarget, Mark, Undecided
from lakequeue.model.failures import DeadLetterReason
from lakequeue.shard import commands as c
from lakequeue.shard.decide import _RULES
from lakequeue.shard.runs import Destination
from lakequeue.shard.texts import from_text, has_text, result_of, to_text

REASON = DeadLetterReason("ValueError", "no\nway ü", datetime(2026, 1, 1, tzinfo=timezone.utc), "c")
COMMANDS = (
    c.Claim(3, None, "l", "attempt", {"arn": Destination("k", 2, True), "gone": None}, "c", 2, 1, 5, 2**60, True),
    c.Charge(-3),
    c.Delete(1, "l", "handle"),
    c.ChangeVisibility(1, "l", 5),
    c.RecordFailure(1, "l", REASON),
    c.LeaseDelete("l", ((0, 4), (6, 2**53 + 1)), (1, 2), REASON, {1: REASON}, True),
    c.LeaseExtend("l", ((0, 4),), 5),
    c.LeaseRelease("l", ((0, 4),), REASON, 3, True, True, True, 5),
    c.Moved(3),
    c.Decide(1, 2, True, REASON, True),
    c.Remark("l", 1, 2, (((0, 1),), ((2, 3), (5, 6))), 7, REASON),
    c.RecordTable(1, 2, "id"),
)
VALUES = (
    *(None, True, 7, "text", (3, True)),
    c.LeaseCounts(1, 2, 3),
    (Mark(1, 2), Mark(3, 4)),
    c.ClaimResult(
        (c.ClaimedSpan(0, 4, 2, 1, True),),
        *(1, 2, "l", ((1, 2),), True, "arn", 1, 2, True, 3, Mark(1, 2)),
        (Undecided(Mark(1, 2), "l", 3, 4),),
        DeliveryTarget("t", "d", None, True, "o"),
    ),
)


def test_commands_and_results_survive_as_text() -> None:
    assert from_text(to_text(COMMANDS)) == COMMANDS
    assert from_text(to_text([c.Result(value) for value in VALUES])) == VALUES
    assert {type(each) for each in COMMANDS} == {rule for rule in _RULES if has_text(object.__new__(rule))}


@pytest.mark.parametrize(
    "error",
    [
        OverLimit("full"),
        InvalidParameterValue.of("x", "handle", "No {}.", "receipt", cmq_code=4000),
        InvalidParameterValue.of(3, "timeout", "Too {}.", 12, hint="0 to 3"),
    ],
)
def test_errors_survive_as_text(error: InvalidParameterValue | OverLimit) -> None:
    told = result_of(from_text(to_text(c.Result(error=error)))).error
    assert type(told) is type(error)
    for name in ("message", "template", "names", "hint", "cmq_code", "http_status"):
        assert getattr(told, name) == getattr(error, name), name


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", '{"!":"Popen","of":[]}', '{"!":"Charge"}', '{"!":"Charge","of":[1,2]}', '{"of":[1]}'),
        *('{"!":"map","of":[[[{"!":"map","of":[]}],1]]}', '{"!":"at","of":"x"}', '{"!":"error","of":["Exit",1]}'),
        pytest.param("[" * 100_000, id="deep"),
        *('{"!":["Charge"],"of":[1]}', '{"!":"Charge","of":1}'),
    ],
)
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        from_text(text)
