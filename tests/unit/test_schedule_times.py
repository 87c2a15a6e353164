"""When schedules are due: time zones, hours that clocks skip or repeat, and times that were missed."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakequeue.errors import InvalidParameterValue
from lakequeue.model.schedules import MOST_AT_ONCE, Schedule

START = datetime(2026, 3, 27, 12, tzinfo=timezone.utc)
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo"]
CRONS = ["30 2 * * *", "0,30 2 * * *", "*/7 * * * *", "0 */2 * * *", "15 1-3 * * *", "0 0 1 * *", "0 2 * * SUN"]


def schedule(cron: str | None = "0 2 * * *", tz: str = "UTC", missed: str = "last", **more: object) -> Schedule:
    made = Schedule("nightly", "local", "q", "x", cron, tz, missed, None, 0, START, START, "0" * 32)
    return attrs.evolve(made, **{"next_due": made.first_after(START) or START} | more)  # type: ignore[arg-type]


def times(of: Schedule, start: datetime, count: int) -> list[str]:
    """The next times in the zone."""
    found = []
    for _ in range(count):
        following = of.first_after(start)
        assert following is not None and following > start and following.tzinfo is timezone.utc
        found.append(f"{following:%d %H:%M}")
        start = following
    return found


@pytest.mark.spec("JOB-7")
def test_a_time_that_clocks_skip_is_due_as_they_are_set_and_a_repeated_time_is_due_once() -> None:
    spring, autumn = START, datetime(2026, 10, 24, 12, tzinfo=timezone.utc)
    assert times(schedule("30 2 * * *", "Europe/Berlin"), spring, 3) == ["28 01:30", "29 01:00", "30 00:30"]
    assert times(schedule("0,30 2 * * *", "Europe/Berlin"), spring + timedelta(days=1), 2) == [
        "29 01:00",
        "30 00:00",
    ]
    assert times(schedule("30 2 * * *", "Europe/Berlin"), autumn, 2) == ["25 00:30", "26 01:30"]
    # while the hour comes again, the time in it is over
    assert times(schedule("45 2 * * *", "Europe/Berlin"), autumn + timedelta(hours=13.5), 1) == ["26 01:45"]
    # what runs in every hour runs in both
    assert times(schedule("0 * * * *", "Europe/Berlin"), autumn + timedelta(hours=11.5), 4) == [
        *("25 00:00", "25 01:00", "25 02:00", "25 03:00")
    ]


@pytest.mark.spec("JOB-7")
@given(st.sampled_from(ZONES), st.sampled_from(CRONS), st.integers(0, 400 * 1440), st.integers(0, 3 * 1440))
def test_the_last_of_missed_times_is_the_last_of_all_times(zone: str, cron: str, start: int, minutes: int) -> None:
    made = schedule(cron, zone)
    first = made.first_after(START + timedelta(minutes=start))
    assert first is not None
    made, now = attrs.evolve(made, next_due=first), first + timedelta(minutes=minutes)
    found = [first]
    while (following := made.first_after(found[-1])) is not None and following <= now:
        found.append(following)
    assert made.due(now) == found[-1:]
    assert attrs.evolve(made, missed="all").due(now) == found[:MOST_AT_ONCE]
    recent = found[-1:] if now - found[-1] <= timedelta(minutes=5) else []
    assert attrs.evolve(made, missed="none").due(now) == recent


@pytest.mark.spec("JOB-7")
def test_the_last_time_of_a_year_is_found_at_once() -> None:
    year = START + timedelta(days=365)
    assert schedule("* * * * *").due(year + timedelta(seconds=1)) == [year]
    assert schedule("0 0 29 2 *").due(START + timedelta(days=5_000)) == [
        datetime(2036, 2, 29, tzinfo=timezone.utc)
    ]


@pytest.mark.spec("JOB-7")
def test_a_single_send_is_due_however_late_unless_missed_times_are_skipped() -> None:
    at, later = START, START + timedelta(hours=1)
    assert schedule(None, next_due=at).due(later) == [at] == schedule(None, missed="all").due(later)
    assert schedule(None, missed="none").due(later) == []
    assert schedule(None).first_after(START) is None


@pytest.mark.spec("JOB-7")
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"cron": "x"}, "cron.*five fields"),
        ({"cron": "0 2 * * * *"}, "cron.*it has 6"),
        ({"cron": "61 2 * * *"}, "cron.*Bad minute"),
        ({"cron": "0 0 30 2 *"}, "cron.*Bad day-of-month"),
        ({"cron": "1," * 100 + "1 * * * *"}, "cron.*200 characters"),
        ({"cron": "0 0 * 2 MON#5/x"}, "cron.*day-of-week"),
        ({"tz": "Mars"}, "tz.*Europe/Berlin"),
        ({"tz": "../../etc/passwd"}, "tz.*Europe/Berlin"),
        ({"tz": "Europe"}, "tz.*Europe/Berlin"),
        ({"tz": "a" * 65}, "tz.*Europe/Berlin"),
        ({"tz": "a\0"}, "tz.*Europe/Berlin"),
        ({"missed": "some"}, "missed.*last, all, none"),
        ({"name": "a/b"}, "name.*1 to 80"),
        ({"name": "a" * 81}, "name.*1 to 80"),
        ({"queue": "a b"}, "queue"),
        ({"id": "../x"}, "id.*hexadecimal"),
        ({"priority": "1"}, "priority"),
        ({"body": "\ud800"}, "body"),
        ({"next_due": None}, "next_due"),
        ({"next_due": datetime(2026, 1, 1)}, "next_due"),
        ({"created_at": datetime.max.replace(tzinfo=timezone.utc)}, "cron"),
    ],
)
def test_what_no_schedule_can_be_is_named(wrong: dict[str, object], reason: str) -> None:
    made = schedule()
    made.check()
    with pytest.raises(InvalidParameterValue, match=reason):
        attrs.evolve(made, **wrong).check()  # type: ignore[arg-type]
