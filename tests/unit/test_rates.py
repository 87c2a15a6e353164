"""Rate limits as texts, and their bucket (JOB-11)."""

from __future__ import annotations

import pytest

from lakequeue import InvalidAttributeValue
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.rates import Pace


@pytest.mark.spec("JOB-11")
@pytest.mark.parametrize(
    "value", ["100", "0/s", "-1/s", "1.5/s", "1/w", "1 / s", "1000001/s", "١/s", 100, 0.5, True]
)
def test_what_is_no_limit_is_refused(value: object) -> None:
    with pytest.raises(InvalidAttributeValue, match="rate_limit") as refused:
        QueueAttributes.create(rate_limit=value)
    assert "1 to 1,000,000 messages per s, m, h or d" in str(refused.value.hint)


@pytest.mark.spec("JOB-11")
@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"rate_burst": 5}, "needs rate_limit"),
        ({"rate_limit": "2/d", "rate_burst": 3}, "must be at most the messages of a day at 2/d, 2"),
        ({"rate_limit": "9/s", "rate_burst": 0}, "must be 1 to 1,000,000 in profile lake, not 0"),
        ({"rate_limit": "9/s", "rate_burst": "many"}, "must be a number, not the text 'many'"),
    ],
)
def test_what_a_bucket_cannot_hold_is_refused(given: dict[str, object], hint: str) -> None:
    with pytest.raises(InvalidAttributeValue, match="rate_burst") as refused:
        QueueAttributes.create(**given)
    assert hint in str(refused.value.hint)


@pytest.mark.spec("JOB-11")
@pytest.mark.parametrize(
    ("rate", "burst", "pace"),
    [
        ("50/s", None, Pace(20_000_000, 50)),
        ("3/s", None, Pace(333_333_334, 3)),  # rounded so that it is never faster
        ("1000/s", None, Pace(1_000_000, 1_000)),
        ("1/d", 1, Pace(86_400_000_000_000, 1)),
        ("600/m", None, Pace(100_000_000, 10)),
        ("59/m", None, Pace(1_016_949_153, 1)),
    ],
)
def test_the_bucket_of_a_limit(rate: str, burst: int | None, pace: Pace) -> None:
    assert Pace.of(rate, burst) == pace


@pytest.mark.spec("JOB-11")
def test_a_limit_that_is_lifted_takes_its_burst_along() -> None:
    limited = QueueAttributes.create(rate_limit="100/s", rate_burst=4)
    lifted = limited.with_changes(rate_limit=None)
    assert (lifted.rate_limit, lifted.rate_burst, lifted.pace) == (None, None, None)
