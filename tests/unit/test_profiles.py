"""The table of the four profiles."""

import pytest

from lakequeue.errors import InvalidAttributeName, InvalidAttributeValue
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.profiles import PROFILES, profile, widest

DAY = 86_400
STRICTNESS = [("lake", False), ("sqs", False), ("sqs-2018", False), ("cmq", True)]


@pytest.mark.spec("PRF-1")
def test_there_are_four_profiles_and_no_others():
    assert set(PROFILES) == {"lake", "sqs", "sqs-2018", "cmq"}
    assert all(profile(name).name == name for name in PROFILES)
    for name in ("SQS", "", None, "kafka"):
        with pytest.raises(InvalidAttributeValue):
            profile(name)


@pytest.mark.spec("PRF-1")
def test_the_profile_is_lake_by_default_and_shown():
    assert QueueAttributes.create().to_wire()["Profile"] == "lake"


@pytest.mark.spec("PRF-1")
def test_the_profile_is_chosen_once():
    for name in PROFILES:
        attributes = QueueAttributes.create(name)
        for key in ("profile", "Profile"):
            with pytest.raises(InvalidAttributeName):
                attributes.with_changes(**{key: name})


@pytest.mark.parametrize(
    ("field", "values"),
    [  # lake, sqs, sqs-2018, cmq
        ("visibility_timeout", [(30, 0, 43_200)] * 3 + [(30, 1, 43_200)]),
        ("message_retention_period", [(4 * DAY, 60, 14 * DAY)] * 3 + [(4 * DAY, 60, 15 * DAY)]),
        ("receive_wait_time", [(0, 0, 20)] * 3 + [(0.2, 0.2, 30)]),
        ("delay", [(0, 0, None), (0, 0, 900), (0, 0, 900), (0, 0, 3_600)]),
        (
            "maximum_message_size",
            [(1_048_576, 1_024, 1_048_576)] * 2 + [(262_144, 1_024, 262_144), (65_536, 1_024, 65_536)],
        ),
        (
            "max_inflight_messages",
            [(None, 1, None), (120_000, 1, None), (120_000, 1, None), (None, 1, None)],
        ),
        (
            "max_inflight_messages_fifo",
            [(None, 1, None), (120_000, 1, None), (20_000, 1, None), (None, 1, None)],
        ),
        ("group_in_flight_limit", [(None, 1, 120_000)] * 4),
        ("max_delayed_messages", [(None, 1, None)] * 3 + [(20_000, 1, None)]),
        ("max_stored_messages", [(None, 1, None)] * 3 + [(100_000_000, 1_000_000, 100_000_000)]),
    ],
)
@pytest.mark.spec("PRF-2", "PRF-3", "QUE-4", "QUE-7", "QUE-8", "QUE-18", "RET-4", "INF-2", "INF-4", "INF-8")
def test_defaults_and_ranges(field, values):
    for name, expected in zip(("lake", "sqs", "sqs-2018", "cmq"), values, strict=True):
        limits = getattr(profile(name), field)
        assert (limits.default, limits.low, limits.high) == expected, name


@pytest.mark.parametrize(
    ("field", "lake", "sqs", "sqs_2018", "cmq"),
    [
        ("max_batch", None, 10, 10, 16),
        ("batch_bytes", None, 1_048_576, 262_144, 65_536),
        ("recreate_cooldown", 0, 60, 60, 0),
        ("existing_name", "compare", "compare", "compare", "error"),
        ("name_rule", "sqs", "sqs", "sqs", "cmq"),
        ("message_id_format", "uuid", "uuid", "uuid", "cmq"),
        ("allow_zero_visibility", True, True, True, False),
        ("receipt_policy", "lenient", "lenient", "lenient", "strict"),
        ("receipt_policy_fifo", "strict", "strict", "strict", "strict"),
        ("inflight_limit_behavior", "error", "error", "error", "error"),
        ("inflight_limit_behavior_fifo", "empty", "empty", "empty", "empty"),
        ("over_limit_on", "short_poll", "short_poll", "end_of_wait", "short_poll"),
        ("fractional_seconds", True, False, False, False),
        ("fractional_wait", True, False, False, True),
        ("fair_groups", True, True, None, False),
        ("fifo_queues", True, True, True, False),
    ],
)
@pytest.mark.spec("PRF-2", "BAT-1", "QUE-14", "QUE-15", "QUE-16", "INF-3", "INF-7", "RCP-7", "RCP-8")
def test_behaviours(field, lake, sqs, sqs_2018, cmq):
    assert [getattr(profile(n), field) for n in ("lake", "sqs", "sqs-2018", "cmq")] == [
        lake,
        sqs,
        sqs_2018,
        cmq,
    ]


@pytest.mark.spec("PRF-10", "RCP-7", "RCP-8")
@pytest.mark.parametrize(("name", "strict"), STRICTNESS)
def test_receipts_are_strict_on_fifo_and_cmq_queues(name, strict):
    attributes = QueueAttributes.create(name)
    assert attributes.strict_receipts is strict
    fifo = QueueAttributes.from_wire(attributes.to_wire() | {"FifoQueue": "true"})
    assert fifo.strict_receipts is True
    assert (attributes.inflight_limit_behavior, fifo.inflight_limit_behavior) == ("error", "empty")


@pytest.mark.spec("PRF-2")
def test_the_widest_range_holds_those_of_all_profiles():
    for field in (
        "visibility_timeout",
        "message_retention_period",
        "receive_wait_time",
        "max_stored_messages",
    ):
        union = widest(field)
        own = [getattr(p, field) for p in PROFILES.values()]
        assert union.low == min(limits.low for limits in own)
        highs = [limits.high for limits in own]
        assert union.high == (None if None in highs else max(highs))
