"""The arithmetic of the renewal policies: the tables and worked timelines, without threads or queues."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import attrs
import pytest

from lakequeue import ComputedRenewal, HeartbeatRenewal, InvalidOptions, NoRenewal
from lakequeue.model.receipt_handles import LONGEST_RECEIPT
from lakequeue.renewal.policies import Hold, Renewal, renew_after, renewed_timeout

S = 1_000_000


def timeline(
    policy: Renewal, timeout: float, end: float, received: float = 0, since: float = 0
) -> list[tuple[float, float]]:
    """(when, new timeout) of each extension of a receipt whose handler ends at an instant, in seconds."""
    hold = Hold.fresh(round(received * S), round((received + timeout) * S))
    calls = []
    while (look := policy.next_check(hold, round(since * S))) is not None and look < end * S:
        extension = policy.extension(hold, look)
        calls.append((look / S, extension / S))
        hold = hold.extended(look, extension)
    return calls


# --- heartbeats


@pytest.mark.spec("HBN-4", "HBN-6", "HBN-8", "EXM-12")
def test_defaults_of_the_heartbeat() -> None:
    policy = HeartbeatRenewal()
    assert (policy.visibility_timeout, policy.extension_threshold, policy.heartbeat_interval) == (30, 5, 1)
    assert not policy.disable_extension
    assert policy.receive_timeout == 30
    assert HeartbeatRenewal(visibility_timeout=timedelta(minutes=2)).receive_timeout == timedelta(minutes=2)


@pytest.mark.spec("HBN-7", "HBN-9", "HBN-10", "PRF-8")
@pytest.mark.parametrize(
    ("handler", "calls"),
    [(45, [(25, 30)]), (90, [(25, 30), (50, 30), (75, 30)]), (20, []), (25, []), (25.001, [(25, 30)])],
)
def test_timelines_of_the_heartbeat(handler: float, calls: list[tuple[float, float]]) -> None:
    assert timeline(HeartbeatRenewal(), 30, handler) == calls


@pytest.mark.spec("HBN-6")
def test_a_receipt_is_extended_when_no_more_than_the_threshold_is_left() -> None:
    policy = HeartbeatRenewal(heartbeat_interval=0.001)
    [(at, _)] = timeline(policy, 30, 26)
    assert at == 25  # 5.000 s are left; a millisecond before, 5.001 were


@pytest.mark.spec("HBN-8", "HBN-12")
@pytest.mark.parametrize(
    ("interval", "received", "first"),
    [(1, 0, 25), (0.5, 0, 25), (2, 0, 26), (4, 0, 28), (1, 10, 35), (1, 0.3, 26), (0.5, 0.3, 25.5)],
)
def test_looks_happen_at_ticks_only(interval: float, received: float, first: float) -> None:
    policy = HeartbeatRenewal(heartbeat_interval=timedelta(seconds=interval))
    assert timeline(policy, 30, 40, received)[0] == (first, 30)


@pytest.mark.spec("HBN-8")
def test_ticks_count_from_when_something_was_first_held() -> None:
    assert timeline(HeartbeatRenewal(), 30, 40, received=0.5, since=0.25)[0] == (26.25, 30)


@pytest.mark.spec("HBN-22")
def test_the_last_extension_ends_with_the_twelve_hours() -> None:
    policy = HeartbeatRenewal(visibility_timeout=20_000)
    assert timeline(policy, 20_000, 50_000) == [(19_995, 20_000), (39_990, 3_210)]
    hold = Hold.fresh(0, 20_000 * S).extended(19_995 * S, 20_000 * S)
    assert not hold.exhausted
    assert hold.extended(39_990 * S, 3_210 * S).exhausted
    assert policy.extension(hold, LONGEST_RECEIPT + 1) == policy.extension(hold, LONGEST_RECEIPT - 1) == 0


@pytest.mark.spec("HBN-16", "PRF-9")
@pytest.mark.parametrize(
    "policy",
    [
        HeartbeatRenewal(disable_extension=True),
        HeartbeatRenewal(visibility_timeout=3, disable_extension=True),
        HeartbeatRenewal(heartbeat_interval=0),
        HeartbeatRenewal(heartbeat_interval=timedelta(seconds=-1)),
        NoRenewal(),
        ComputedRenewal(max_auto_renewal_duration=0),
        ComputedRenewal(message_visibility_timeout=0),
    ],
)
def test_switched_off_means_no_extension_ever(policy: Any) -> None:
    assert timeline(policy, 0 if policy.receive_timeout == 0 else 30, 1_000) == []


def test_a_failed_heartbeat_is_repeated_at_the_next_tick() -> None:
    policy = HeartbeatRenewal()
    hold = Hold.fresh(0, 30 * S).refused(25 * S)
    assert policy.next_check(hold, 0) == 26 * S
    assert policy.next_check(hold.refused(90 * S), 0) == 91 * S  # to learn at least whether the receipt is lost


# --- computed renewal


@pytest.mark.spec("HNS-2", "HNS-4")
@pytest.mark.parametrize(
    ("remaining", "after"),
    [(0.5, 0.25), (1, 0.5), (10, 5), (20, 10), (30, 20), (40, 30), (160, 150), (0.399, 0), (0.4, 0.2), (-2, 0)],
)
def test_when_to_renew(remaining: float, after: float) -> None:
    assert renew_after(round(remaining * S)) == round(after * S)


@pytest.mark.spec("HNS-5", "HNS-6")
@pytest.mark.parametrize(
    ("remaining", "timeout", "new"),
    [(10, 30, 40), (-2, 30, 32), (5, 10, 15), (4.9, 30, 34), (0, 30, 30), (-0.9, 30, 30), (0.25, 0.5, 0.5)],
)
def test_the_new_timeout(remaining: float, timeout: float, new: float) -> None:
    assert renewed_timeout(round(remaining * S), round(timeout * S)) == round(new * S)


@pytest.mark.spec("HNS-3", "HNS-7", "HNS-8", "HNS-19", "EXM-7")
def test_the_worked_timeline_of_computed_renewal() -> None:
    calls = timeline(ComputedRenewal(), 30, 1_000)
    assert calls == [(at, 40) for at in range(20, 300, 30)]
    assert len(calls) == 10
    ends = [30, *(at + timeout for at, timeout in calls)]
    assert {later - earlier for earlier, later in zip(ends, ends[1:], strict=False)} == {30}
    assert ends[-1] == 330


@pytest.mark.spec("HNS-17")
@pytest.mark.parametrize(
    ("timeout", "end", "calls"),
    [
        (10, 31, [(5, 15), (12.5, 17), (21, 18), (30, 19)]),
        (20, 31, [(10, 30), (30, 30)]),
        (5, 7, [(2.5, 7), (6, 8)]),
        (1, 3.25, [(0.5, 1), (1, 1), (1.5, 1), (2, 1), (2.5, 1), (3, 1)]),
    ],
)
def test_timelines_of_other_timeouts(timeout: float, end: float, calls: list[tuple[float, float]]) -> None:
    assert timeline(ComputedRenewal(), timeout, end) == calls


@pytest.mark.spec("HNS-8", "HNS-9", "HNS-16")
@pytest.mark.parametrize(("longest", "at"), [(60, [20, 50]), (50, [20]), (20, []), (0, []), (0.5, [])])
def test_renewal_ends_with_its_longest_duration(longest: float, at: list[float]) -> None:
    policy = ComputedRenewal(max_auto_renewal_duration=longest)
    assert [when for when, _ in timeline(policy, 30, 1_000)] == at


@pytest.mark.spec("HNS-18")
def test_computed_renewal_keeps_to_the_twelve_hours() -> None:
    policy = ComputedRenewal(max_auto_renewal_duration=43_200)
    assert timeline(policy, 43_200, 50_000) == [(43_190, 10)]


@pytest.mark.spec("HNS-12", "HNS-13")
def test_a_failed_renewal_is_repeated_within_the_buffer_and_after_expiry_each_second() -> None:
    policy, hold, at = ComputedRenewal(max_auto_renewal_duration=40), Hold.fresh(0, 30 * S), []
    while (look := policy.next_check(hold, 0)) is not None:
        at.append(look / S)
        hold = hold.refused(look)
    assert at[:5] == [20, 25, 27.5, 28.75, 29.375]
    within = [each for each in at if each < 30]
    assert 5 < len(within) < 20
    assert [round(each - at[len(within)]) for each in at[len(within) :]] == [*range(10)]  # RCP-8
    assert 30 <= at[len(within)] < 30.1


@pytest.mark.spec("RCP-8", "HNS-12")
def test_a_heartbeat_goes_on_trying_after_expiry() -> None:
    policy, hold, at = HeartbeatRenewal(), Hold.fresh(0, 30 * S), []
    for _ in range(10):
        look = policy.next_check(hold, 0)
        assert look is not None
        at.append(look / S)
        hold = hold.refused(look)
    assert at == [*range(25, 35)]


@pytest.mark.spec("VIS-8", "HBN-4")
def test_two_minutes_at_first_extended_to_three_after_one() -> None:
    policy = HeartbeatRenewal(180, extension_threshold=60, initial=120)
    assert policy.receive_timeout == 120
    hold = Hold.fresh(0, 120 * S)
    assert policy.next_check(hold, 0) == 60 * S
    assert policy.extension(hold, 60 * S) == 180 * S
    with pytest.raises(InvalidOptions) as refused:
        HeartbeatRenewal(180, extension_threshold=60, initial=60)
    assert refused.value.problems == ["extension_threshold: must be less than initial (60), not 60"]
    with pytest.raises(InvalidOptions, match="initial: must be 0 to 43200 seconds, not 43201"):
        HeartbeatRenewal(initial=43_201)


@pytest.mark.parametrize("timeout", [0.001, 0.1, 0.3])
def test_short_timeouts_do_not_make_the_scheduler_spin(timeout: float) -> None:
    assert 1 <= len(timeline(ComputedRenewal(), timeout, 1)) <= 21


# --- options


@pytest.mark.spec("HBN-17")
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"visibility_timeout": -1}, ["visibility_timeout: must be 0 to 43200 seconds, not -1", "extension_thre"]),
        ({"visibility_timeout": 43_201}, ["visibility_timeout: must be 0 to 43200 seconds, not 43201"]),
        ({"extension_threshold": 0}, ["extension_threshold: must be more than 0 seconds, not 0", "heartbeat_int"]),
        ({"extension_threshold": 30}, ["extension_threshold: must be less than visibility_timeout (30), not 30"]),
        ({"heartbeat_interval": 5}, ["heartbeat_interval: must be less than extension_threshold (5), not 5"]),
        ({"heartbeat_interval": "1"}, ["heartbeat_interval: must be seconds or a timedelta, not '1'"]),
        ({"visibility_timeout": float("nan")}, ["visibility_timeout: must be seconds or a timedelta, not nan"]),
    ],
)
def test_what_a_heartbeat_refuses(options: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(InvalidOptions) as refused:
        HeartbeatRenewal(**options)
    assert len(refused.value.problems) == len(named)
    for problem, beginning in zip(refused.value.problems, named, strict=True):
        assert problem.startswith(beginning)


@pytest.mark.spec("HBN-17", "PRF-9")
def test_every_fault_is_named_at_once() -> None:
    with pytest.raises(InvalidOptions) as refused:
        HeartbeatRenewal(50_000, -1, 0, disable_extension=True, strict_options=True)
    assert [problem.partition(":")[0] for problem in refused.value.problems] == [
        "visibility_timeout",
        "heartbeat_interval",
        "extension_threshold",
        "heartbeat_interval",
    ]
    assert "more than 0 seconds, not 0" in str(refused.value)


@pytest.mark.spec("HNS-8", "HNS-11")
def test_what_computed_renewal_refuses() -> None:
    with pytest.raises(InvalidOptions) as refused:
        ComputedRenewal(message_visibility_timeout=43_201, max_auto_renewal_duration=-1)
    assert refused.value.problems == [
        "message_visibility_timeout: must be 0 to 43200 seconds, not 43201",
        "max_auto_renewal_duration: must be 0 to 43200 seconds, not -1",
    ]
    assert ComputedRenewal(43_200, timedelta(hours=12)).receive_timeout == 43_200
    assert ComputedRenewal().receive_timeout is None


@pytest.mark.spec("PRF-5")
def test_policies_are_values() -> None:
    assert HeartbeatRenewal() == HeartbeatRenewal(30, 5, 1) != HeartbeatRenewal(31)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        ComputedRenewal().max_auto_renewal_duration = 1  # type: ignore[misc]
