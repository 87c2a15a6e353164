"""Queue attributes: ranges by profile, updates, the wire form, and the checks of call arguments."""

import re
from datetime import timedelta
from functools import partial
from itertools import product

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakequeue.errors import (
    InvalidAttributeName,
    InvalidAttributeValue,
    InvalidParameterValue,
    MissingParameter,
)
from lakequeue.model.arguments import (
    check_attempt_id,
    check_delay,
    check_max_messages,
    check_tags,
    check_visibility_timeout,
    check_wait,
)
from lakequeue.model.attribute_values import as_text
from lakequeue.model.attributes import ATTRIBUTE_NAMES, HIDDEN, QueueAttributes, selected
from lakequeue.model.redrive_policies import RedriveAllowPolicy, RedrivePolicy
from lakequeue.serve.errors import wire_message

PROFILES = ["lake", "sqs", "sqs-2018", "cmq"]
create = QueueAttributes.create


def fifo(profile="lake", **given):
    return create(profile, fifo=True, **given)


RANGES = [  # attribute, its wire name, then per profile: values in range, values outside
    ("visibility_timeout", "VisibilityTimeout", ["lake", "sqs", "sqs-2018"], [0, 43_200], [-1, 43_201]),
    ("visibility_timeout", "VisibilityTimeout", ["cmq"], [1, 43_200], [0, -1, 43_201, 1.5]),
    ("visibility_timeout", "VisibilityTimeout", ["sqs", "sqs-2018"], [30.0], [0.5]),
    ("visibility_timeout", "VisibilityTimeout", ["lake"], [0.5, 43_199.9], [43_200.1, -0.1]),
    ("message_retention_period", "MessageRetentionPeriod", PROFILES[:3], [60, 1_209_600], [59, 1_209_601]),
    ("message_retention_period", "MessageRetentionPeriod", ["cmq"], [60, 1_296_000], [59, 1_296_001]),
    ("receive_wait_time", "ReceiveMessageWaitTimeSeconds", ["sqs", "sqs-2018"], [0, 20], [-1, 21, 0.5]),
    ("receive_wait_time", "ReceiveMessageWaitTimeSeconds", ["lake"], [0, 20, 0.5], [-1, 20.1]),
    ("receive_wait_time", "ReceiveMessageWaitTimeSeconds", ["cmq"], [0.2, 30, 7.25], [0, 0.1, 30.1]),
    ("delay", "DelaySeconds", ["sqs", "sqs-2018"], [0, 900], [-1, 901, 0.5]),
    ("delay", "DelaySeconds", ["cmq"], [0, 3_600], [-1, 3_601]),
    ("delay", "DelaySeconds", ["lake"], [0, 0.5, 345_600], [-1, 345_601]),
    ("maximum_message_size", "MaximumMessageSize", ["lake", "sqs"], [1_024, 1_048_576], [1_023, 1_048_577]),
    ("maximum_message_size", "MaximumMessageSize", ["sqs-2018"], [1_024, 262_144], [1_023, 262_145]),
    ("maximum_message_size", "MaximumMessageSize", ["cmq"], [1_024, 65_536], [1_023, 65_537, 2_000.5]),
    ("max_inflight_messages", "MaxInflightMessages", PROFILES, [1, 3, 120_000, 10**9], [0, -1, 1.5]),
    (
        "group_in_flight_limit",
        "GroupInFlightLimit",
        ("lake", "sqs", "cmq"),
        [1, 120_000],
        [0, -1, 1.5, 120_001, "x"],
    ),
    ("max_delayed_messages", "MaxDelayedMessages", PROFILES, [1, 20_000], [0]),
    ("max_stored_messages", "MaxStoredMessages", ["cmq"], [10**6, 10**8], [10**6 - 1, 10**8 + 1]),
    ("max_stored_messages", "MaxStoredMessages", PROFILES[:3], [1, 10**10], [0]),
    ("shards", "Shards", PROFILES, [1, 8], [0, -1, 1.5]),
    ("deduplication_interval", "DeduplicationInterval", ["lake"], [1, 86_400], [0.5, 86_401]),
]


def cases(place):
    return [
        pytest.param(field, wire, profile, value, id=f"{profile}-{field}-{value}")
        for field, wire, profiles, *values in RANGES
        for profile in profiles
        for value in values[place]
    ]


@pytest.mark.spec("PRF-2", "PRF-3", "QUE-7", "QUE-17", "QUE-18", "QUE-19", "QUE-20", "QUE-21", "RET-4")
@pytest.mark.parametrize(("field", "wire", "profile", "value"), cases(0))
def test_values_in_range_are_taken_under_both_names_and_as_text(field, wire, profile, value):
    for key, given_value in ((field, value), (wire, value), (wire, str(value))):
        attributes = create(profile, **{key: given_value})
        assert getattr(attributes, field) == value
        assert QueueAttributes.from_wire(attributes.to_wire()) == attributes


@pytest.mark.spec("PRF-2", "QUE-7", "QUE-8", "QUE-18", "QUE-19", "QUE-20", "QUE-21", "RET-4", "VIS-11", "ERR-7")
@pytest.mark.parametrize(("field", "wire", "profile", "value"), cases(1))
def test_values_outside_the_range_are_refused_at_creation_and_later(field, wire, profile, value):
    for call in (create(profile).with_changes, lambda **given: create(profile, **given)):
        if field == "shards" and call.__name__ == "with_changes":
            continue
        with pytest.raises(InvalidAttributeValue) as caught:
            call(**{field: value})
        assert caught.value.message == f"Invalid value for the parameter {field}."
        assert wire_message(caught.value).startswith(f"Invalid value for the parameter {wire}. Reason: ")
        assert re.search(
            f"(in profile {profile}, not|not a (whole )?number:) '?{as_text(value)}'?$", str(caught.value)
        )
        assert caught.value.cmq_code == (4000 if profile == "cmq" else None)


READ_ONLY = [
    *("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesDelayed", "CreatedTimestamp", "QueueArn"),
    *("ApproximateNumberOfMessagesNotVisible", "LastModifiedTimestamp"),
]
NUMBERS = ["visibility_timeout", "maximum_message_size", "message_retention_period"]
NO_NUMBERS = ["x", "", " 3", "1e3", "NaN", None, True, float("nan"), float("inf"), [], "٣"]
NO_POLICIES = ["x", "[]", '{"Statement": ["a"]}', "[" * 100_000, 1, '{"Id": "\ud800"}']
NO_FLAGS = ["True", "yes", 1, None, ""]
CREATED_SCOPE = ["CreatedDeduplicationScope", "created_deduplication_scope"]
SCOPE = ["deduplication_scope", "DeduplicationScope"]
LIMIT = ["fifo_throughput_limit", "FifoThroughputLimit"]
STANDARD, FIFO, OLD = {}, {"fifo": True}, {"profile": "sqs-2018"}
BAD_VALUES = [  # ids, queue, names, values, what the error says
    ("QUE-7", STANDARD, NUMBERS, NO_NUMBERS, "{}"),
    ("QUE-7", STANDARD, ["delay", *NUMBERS[:2]], ["60"], "must be a number, not the text '60'"),
    ("QUE-1", STANDARD, ["profile_strict"], NO_FLAGS, "{}"),
    ("QUE-1", STANDARD, ["AllowZeroVisibility"], NO_FLAGS, "allow_zero_visibility"),
    ("QUE-9", FIFO, ["content_based_deduplication"], ["yes", None, 1], "{}"),
    ("DDP-14", FIFO, ["deduplication_scope"], ["group", "", None, 1, []], "{}"),
    ("DDP-14", FIFO, ["fifo_throughput_limit"], ["perMessageGroupId", "perGroup", ""], "{}"),
    ("RWD-1 RWD-2", STANDARD, ["rewind_range"], [345_601, -1, "x"], "{}"),
    ("RWD-1 RWD-2", FIFO, ["rewind_range"], [345_601, -1, "x"], "{}"),
    ("QUE-23", STANDARD, ["policy"], NO_POLICIES, "{}"),
]
BAD_NAMES = [
    ("NAM-8 QUE-23", STANDARD, ["QueueName", "name", "x"], ["1"], "^Unknown Attribute {}[.]$"),
    ("NAM-8 QUE-23", STANDARD, ["visibilityTimeout", "VisibilityTimeOut"], ["1"], "{}: did you mean Vis"),
    ("QUE-26", STANDARD, READ_ONLY, ["1"], "^Unknown Attribute {}"),
    ("DDP-15 QUE-23", STANDARD, CREATED_SCOPE, ["queue"], "^Unknown Attribute {}"),
    ("DDP-15 QUE-23", FIFO, CREATED_SCOPE, ["queue"], "^Unknown Attribute {}"),
    ("QUE-9", STANDARD, ["content_based_deduplication"], ["true", "x"], "^Unknown Attribute {}[.]$"),
    ("QUE-9", STANDARD, ["ContentBasedDeduplication"], ["true", "x"], "content_based_deduplication[.]$"),
    (
        "DDP-14",
        STANDARD,
        SCOPE,
        ["messageGroup", "x"],
        "deduplication_scope only when fifo is set to true[.]$",
    ),
    ("DDP-14", STANDARD, LIMIT, ["perQueue", "x"], "fifo_throughput_limit only when fifo is set to true[.]$"),
    ("FAI-1", FIFO, ["fair_groups"], [True], "only on a standard queue"),
    ("FAI-4", FIFO, ["group_in_flight_limit"], [1, None], "only on a standard queue"),
    ("FAI-1", OLD, ["fair_groups"], [True], "only outside profile sqs-2018"),
    ("FAI-4", OLD, ["group_in_flight_limit"], [1, None], "only outside profile sqs-2018"),
]


@pytest.mark.parametrize(
    ("error", "queue", "names", "values", "text"),
    [
        pytest.param(error, *row, marks=pytest.mark.spec(*ids.split()))
        for error, rows in ((InvalidAttributeValue, BAD_VALUES), (InvalidAttributeName, BAD_NAMES))
        for ids, *row in rows
    ],
)
def test_what_is_refused_at_creation_and_later(error, queue, names, values, text):
    for name, value in product(names, values):
        for call in (partial(create, **queue), create(**queue).with_changes):
            with pytest.raises(error, match=text.format(name)):
                call(**{name: value})


@pytest.mark.spec("QUE-1")
@pytest.mark.parametrize("value", ["True", "yes", 1, None, ""])
def test_the_kind_of_a_queue_is_true_or_false(value):
    for name in ("fifo", "FifoQueue"):
        with pytest.raises(InvalidAttributeValue):
            create(**{name: value})


@pytest.mark.spec("QUE-5", "QUE-6", "VIS-12")
def test_durations_may_be_timedeltas_and_changes_are_read_back():
    attributes = create(visibility_timeout=timedelta(minutes=1))
    assert (attributes.visibility_timeout, attributes.visibility_timeout_micros) == (60, 60_000_000)
    changed = attributes.with_changes(visibility_timeout=90)
    assert changed.to_wire()["VisibilityTimeout"] == "90"
    assert attributes.visibility_timeout == 60
    with pytest.raises(InvalidAttributeValue):
        create(maximum_message_size=timedelta(seconds=2_000))


@pytest.mark.spec("QUE-4", "QUE-23", "DLY-2", "RWD-1")
def test_the_wire_form_names_every_set_attribute():
    assert create("sqs").to_wire() == {
        "Profile": "sqs",
        "VisibilityTimeout": "30",
        "MessageRetentionPeriod": "345600",
        "DelaySeconds": "0",
        "ReceiveMessageWaitTimeSeconds": "0",
        "MaximumMessageSize": "1048576",
        "RewindSeconds": "0",
        "MaxInflightMessages": "120000",
        "FairGroups": "true",
        "AllowZeroVisibility": "true",
        "ProfileStrict": "true",
        "Shards": "1",
    }


@pytest.mark.spec("QUE-17", "QUE-19", "QUE-22", "LPL-2")
def test_cmq_queues_understand_the_names_of_cmq():
    attributes = create("cmq", msgRetentionSeconds=120, PollingWaitSeconds="0.5", MaxMsgSize=2_048)
    assert (attributes.message_retention_period, attributes.maximum_message_size) == (120, 2_048)
    wire = attributes.to_wire()
    assert wire["PollingWaitSeconds"] == "0.5"
    assert "ReceiveMessageWaitTimeSeconds" not in wire
    assert (wire["MaxStoredMessages"], wire["RewindSeconds"]) == ("100000000", "0")
    assert create("cmq").to_wire()["PollingWaitSeconds"] == "0.2"
    for name in ("msgRetentionSeconds", "PollingWaitSeconds", "MaxMsgSize"):
        with pytest.raises(InvalidAttributeName):
            create("sqs", **{name: 2_048})


@given(
    st.sampled_from(PROFILES),
    st.integers(0, 43_200),
    st.integers(60_000_000, 86_400_000_000),
    st.booleans(),
    st.one_of(st.none(), st.integers(10, 10**9)),
    st.integers(1, 9),
)
@pytest.mark.spec("DLT-3")
def test_the_wire_form_loses_nothing(profile, timeout, retention_micros, zero, cap, shards):
    attributes = create(
        profile,
        profile_strict=False,
        visibility_timeout=timeout,
        message_retention_period=timedelta(microseconds=retention_micros),
        allow_zero_visibility=zero,
        max_inflight_messages=cap,
        shards=shards,
    )
    wire = attributes.to_wire()
    assert all(isinstance(value, str) for value in wire.values())
    assert QueueAttributes.from_wire(wire) == attributes
    assert attributes.retention_micros == retention_micros
    if cap is not None:  # a lifted cap is not on the wire, so a new queue would have the default
        assert create(profile, **wire) == attributes


@pytest.mark.spec("PRF-2", "QUE-21")
def test_a_lenient_profile_lifts_ranges_to_those_of_all_profiles():
    with pytest.raises(InvalidAttributeValue):
        create("cmq", visibility_timeout=0)
    free = create("cmq", visibility_timeout=0, max_stored_messages=3, delay=345_600, profile_strict=False)
    assert (free.visibility_timeout, free.max_stored_messages) == (0, 3)
    assert create("sqs", message_retention_period=1_296_000, profile_strict="false").profile_strict is False
    assert create("sqs", delay=3_600, message_retention_period=60, profile_strict=False).delay == 3_600
    for outside in ({"visibility_timeout": 43_201}, {"message_retention_period": 1_296_001}):
        with pytest.raises(InvalidAttributeValue):
            create("lake", profile_strict=False, **outside)


@pytest.mark.spec("PRF-2")
def test_strictness_cannot_return_while_a_value_is_outside():
    free = create("sqs", visibility_timeout=0.5, profile_strict=False)
    with pytest.raises(InvalidAttributeValue, match="visibility_timeout"):
        free.with_changes(profile_strict=True)
    assert free.with_changes(profile_strict=True, visibility_timeout=1).profile_strict


@pytest.mark.spec("PRF-2", "RET-4")
def test_on_lake_a_delay_never_exceeds_the_retention():
    with pytest.raises(InvalidAttributeValue, match="delay"):
        create(delay=61, message_retention_period=60)
    with pytest.raises(InvalidAttributeValue, match="delay"):
        create(delay=100).with_changes(message_retention_period=60)


@pytest.mark.spec("PRF-3", "INF-2", "QTA-4")
def test_caps_may_be_lifted():
    for unlimited in (None, "unlimited"):
        assert create("sqs", max_inflight_messages=unlimited).inflight_limit is None
        assert create("sqs").with_changes(max_inflight_messages=unlimited).inflight_limit is None
    assert "MaxInflightMessages" not in create("sqs", max_inflight_messages=None).to_wire()
    assert create("sqs").inflight_limit == 120_000
    assert create("lake").inflight_limit is None


@pytest.mark.spec("INF-2", "INF-8", "INF-11", "QUE-21")
def test_caps_are_divided_among_the_shards():
    attributes = create(max_inflight_messages=11, max_stored_messages=7, max_delayed_messages=5, shards=3)
    assert (attributes.inflight_limit, attributes.stored_limit, attributes.delayed_limit) == (3, 2, 1)
    with pytest.raises(InvalidAttributeValue):
        create(max_inflight_messages=2, shards=3)


@pytest.mark.spec("QUE-23")
@pytest.mark.parametrize(
    "given",
    [
        {"profile": "sqs-2018"},
        {"profile": "cmq", "receive_wait_time": 0.5},
        {"profile": "sqs", "max_inflight_messages": 5, "kms_master_key_id": "k", "sqs_managed_sse_enabled": True},
        {"fifo": True, "deduplication_scope": "message_group", "content_based_deduplication": True, "shards": 2},
        {"redrive_policy": RedrivePolicy("arn", 3), "redrive_allow_policy": RedriveAllowPolicy("denyAll")},
        {"rewind_range": True, "group_in_flight_limit": 7, "fair_groups": False, "policy": "{}"},
    ],
)
def test_the_values_by_name_make_the_same_attributes_again(given):
    attributes = create(**given)
    values = attributes.values()
    assert QueueAttributes.create(**values) == attributes
    kept = {name: value for name, value in given.items() if value is not True or name != "rewind_range"}
    assert values.items() >= kept.items()
    assert ("deduplication_scope" in values, "fair_groups" in values) == (
        attributes.fifo,
        not attributes.fifo and attributes.profile != "sqs-2018",
    )
    assert selected(values, ["delay", "fifo"], False) == {"delay": 0, "fifo": attributes.fifo}
    for name, hint in (("VisibilityTimeout", "visibility_timeout"), ("Colour", None)):
        with pytest.raises(InvalidAttributeName) as refused:
            selected(values, [name], False)
        assert refused.value.hint == (hint and f"did you mean {hint}?")


@pytest.mark.spec("PRF-1")
def test_an_unknown_profile_is_refused():
    for given_profile in ({"profile": "kafka"}, {"Profile": "kafka"}, {"profile_name": "kafka"}):
        with pytest.raises(InvalidAttributeValue):
            create(**given_profile)
    assert create(Profile="cmq").profile == create(profile="cmq").profile == "cmq"


@pytest.mark.spec("QUE-34")
def test_shards_of_a_standard_queue_can_be_raised():
    assert create(shards=2).with_changes(shards=3).shards == 3
    assert create(shards=2).with_changes(Shards="2").shards == 2
    for fewer in (1, 0, 1_025, "many"):
        with pytest.raises(InvalidAttributeValue, match="shards"):
            create(shards=2).with_changes(shards=fewer)
    with pytest.raises(InvalidAttributeValue, match="max_stored_messages|shards"):
        create(max_stored_messages=4).with_changes(shards=5)
    grouped = create(fifo=True, shards=2, deduplication_scope="message_group")
    with pytest.raises(InvalidAttributeValue, match="shards") as refused:
        grouped.with_changes(shards=3)
    assert refused.value.hint == "must stay 2, as many as there are"


@pytest.mark.spec("QUE-1")
def test_a_queue_is_standard_unless_asked_otherwise():
    assert create().fifo is create(fifo="false").fifo is create(FifoQueue="false").fifo is False
    assert create(fifo=True).fifo is create(fifo="true").fifo is create(FifoQueue="true").fifo is True
    assert fifo().to_wire()["FifoQueue"] == "true"
    assert "FifoQueue" not in create().to_wire()


@pytest.mark.spec("NAM-3")
def test_there_are_no_fifo_queues_under_cmq_as_its_names_have_no_suffix():
    with pytest.raises(InvalidAttributeValue, match="fifo"):
        fifo("cmq")


@pytest.mark.spec("QUE-2", "QUE-29", "PRF-3", "QUE-4")
@pytest.mark.parametrize(("profile", "cap"), [("lake", None), ("sqs", 120_000), ("sqs-2018", 20_000)])
def test_a_fifo_queue_starts_like_a_standard_one_with_deduplication_and_its_own_cap(profile, cap):
    attributes = fifo(profile)
    standard = create(profile, max_inflight_messages=cap).to_wire()
    standard.pop("FairGroups", None)
    assert attributes.to_wire() == standard | {
        "FifoQueue": "true",
        "ContentBasedDeduplication": "false",
        "DeduplicationScope": "queue",
        "FifoThroughputLimit": "perQueue",
        "CreatedDeduplicationScope": "queue",
    }
    assert QueueAttributes.from_wire(attributes.to_wire()) == attributes
    for own in (3, 20_000, 120_000):
        assert fifo(profile, max_inflight_messages=own).inflight_limit == own
    assert (attributes.strict_receipts, attributes.inflight_limit_behavior) == (True, "empty")


@pytest.mark.spec("QUE-2")
def test_the_kind_of_a_queue_never_changes():
    for key in ("fifo", "FifoQueue"):
        for value in ("true", "false"):
            with pytest.raises(InvalidAttributeName, match=r"^Unknown Attribute fifo: .* fixed at its creation$"):
                create().with_changes(**{key: value})
    with pytest.raises(InvalidAttributeValue, match="Modifying queue type is not supported"):
        fifo().with_changes(fifo=False)


@pytest.mark.spec("QUE-9")
def test_content_based_deduplication_is_off_set_at_creation_and_changed():
    assert fifo().content_based_deduplication is False
    on = fifo(ContentBasedDeduplication="true")
    assert on.to_wire()["ContentBasedDeduplication"] == "true"
    assert on.with_changes(content_based_deduplication=False).content_based_deduplication is False


@pytest.mark.spec("DDP-14")
def test_the_scope_of_deduplication_has_two_spellings():
    for spelling in ("message_group", "messageGroup"):
        for name in ("deduplication_scope", "DeduplicationScope"):
            attributes = fifo(**{name: spelling})
            assert (attributes.deduplication_scope, attributes.dedup_by_group) == ("message_group", True)
            assert attributes.to_wire()["DeduplicationScope"] == "messageGroup"
    assert fifo().dedup_by_group is fifo(deduplication_scope="queue").dedup_by_group is False


@pytest.mark.spec("DDP-14")
def test_throughput_per_group_needs_deduplication_by_group():
    high = {"FifoThroughputLimit": "perMessageGroupId"}
    by_group = fifo(deduplication_scope="messageGroup")
    assert by_group.fifo_throughput_limit == "per_queue"
    for attributes in (
        fifo(deduplication_scope="messageGroup", **high),
        by_group.with_changes(**high),
        by_group.with_changes(fifo_throughput_limit="per_message_group_id"),
        fifo().with_changes(deduplication_scope="message_group", **high),
    ):
        assert attributes.to_wire()["FifoThroughputLimit"] == "perMessageGroupId"
    with pytest.raises(InvalidAttributeValue, match="fifo_throughput_limit"):
        by_group.with_changes(**high).with_changes(deduplication_scope="queue")


@pytest.mark.spec("DDP-15", "DLT-3")
@pytest.mark.parametrize(("first", "then"), [("queue", "message_group"), ("message_group", "queue")])
def test_a_later_scope_is_stored_and_shown_and_the_scope_of_the_creation_applies(first, then):
    created = fifo(deduplication_scope=first)
    changed = QueueAttributes.from_wire(created.with_changes(deduplication_scope=then).to_wire())
    assert changed.deduplication_scope == then
    assert changed.dedup_by_group is created.dedup_by_group is (first == "message_group")
    assert changed.with_changes(deduplication_scope=first) == created
    assert changed.differences({"deduplication_scope": first}) == ["deduplication_scope"]
    assert changed.differences({"DeduplicationScope": then}) == []


@pytest.mark.spec("DDP-15", "QUE-23")
def test_the_scope_of_the_creation_is_nobodys_to_set():
    stored = attrs.evolve(fifo(), paused_since="{}", delivery_id="0").to_wire()
    assert set(stored) - {*ATTRIBUTE_NAMES.values()} == HIDDEN


@pytest.mark.spec("DDP-14", "DDP-15")
def test_several_shards_of_a_fifo_queue_need_deduplication_by_group():
    sharded = fifo(shards=4, deduplication_scope="messageGroup")
    assert (sharded.shards, sharded.dedup_by_group) == (4, True)
    for scope in ({}, {"deduplication_scope": "queue"}):
        with pytest.raises(InvalidAttributeValue) as caught:
            fifo(shards=2, **scope)
        assert caught.value.message == "Invalid value for the parameter shards."
    later = sharded.with_changes(deduplication_scope="queue")
    assert (later.deduplication_scope, later.dedup_by_group) == ("queue", True)


@pytest.mark.spec("QUE-15")
def test_fifo_queues_are_compared_by_their_given_attributes():
    attributes = fifo(deduplication_scope="messageGroup", visibility_timeout=60)
    same = {"fifo": "true", "DeduplicationScope": "message_group", "visibility_timeout": 60}
    assert attributes.differences(same) == []
    assert attributes.differences({"FifoQueue": True, "ContentBasedDeduplication": "true"}) == [
        "content_based_deduplication"
    ]
    assert attributes.differences({"fifo": False}) == ["fifo"]


@pytest.mark.spec("PRF-7", "RWD-1", "RWD-2", "RWD-3", "QUE-22")
def test_the_rewind_range_is_off_and_at_most_the_retention_period():
    assert create().rewind_range == 0
    for call in (create, fifo, create().with_changes, fifo().with_changes):
        assert call(rewind_range=60).rewind_range == 60
        assert call(rewind_range=True).rewind_range == call(RewindSeconds="345600").rewind_range == 345_600
    with pytest.raises(InvalidAttributeValue):
        create("cmq", message_retention_period=3_600, rewind_range=86_400)
    assert create("cmq", message_retention_period=1_296_000, rewind_range=True).rewind_range == 1_296_000
    with pytest.raises(InvalidAttributeValue):
        create("cmq", message_retention_period=1_296_000, rewind_range=1_296_001)


@pytest.mark.spec("DLQ-9")
def test_an_empty_redrive_policy_means_no_policy():
    assert create(redrive_policy="", redrive_allow_policy=None) == create()


@pytest.mark.spec("QUE-23")
def test_a_policy_is_stored_unchanged():
    policy = '{"Statement": {"Sid": "a"}}'
    assert create(policy=policy).to_wire()["Policy"] == policy
    assert create().with_changes(Policy=policy).with_changes(Policy="") == create(policy=None) == create()


@pytest.mark.spec("QUE-15")
def test_differences_name_only_given_attributes_with_another_value():
    attributes = create(visibility_timeout=60, receive_wait_time=0.5)
    assert attributes.differences({}) == []
    same = {"visibility_timeout": 60.0, "ReceiveMessageWaitTimeSeconds": "0.5", "fifo": False}
    assert attributes.differences(same) == []
    assert attributes.differences({"VisibilityTimeout": timedelta(seconds=61), "delay": 0}) == [
        "visibility_timeout"
    ]
    assert attributes.differences({"profile": "sqs"}) == ["profile"]
    assert attributes.differences({"shards": 2}) == ["shards"]
    with pytest.raises(InvalidAttributeValue):
        attributes.differences({"visibility_timeout": -1})


@pytest.mark.spec("QUE-36")
def test_changes_are_given_attributes_that_differ_even_if_they_need_others():
    urgent = {"priorities": 2, "priorities_strict": True, "RateLimit": "50/s"}
    assert create(**urgent).changes(urgent | {"RateBurst": "250", "delay": 5}) == {"RateBurst": "250", "delay": 5}
    kept = {"message_retention_period": 600, "rewind_range": True}
    assert create(**kept).changes(kept | {"message_retention_period": 900}) == kept | {
        "message_retention_period": 900
    }
    by_group = {
        "deduplication_scope": "message_group",
        "fifo_throughput_limit": "per_message_group_id",
        "shards": 2,
    }
    assert fifo(**by_group).changes(by_group | {"delay": 5}) == {"delay": 5}


NAN = float("nan")
CALLS = [  # argument, profile, seconds in range, values outside
    ("visibility_timeout", "lake", [0, 0.5, 43_200, timedelta(hours=12)], [-1, 43_201, "x", 43_200.1, NAN]),
    ("visibility_timeout", "sqs", [0, 30.0, 43_200], [-1, 43_201, 0.5]),
    ("visibility_timeout", "sqs-2018", [0, 43_200], [-1, 43_201]),
    ("visibility_timeout", "cmq", [1, 43_200], [0, -1, 43_201, 1.5]),
    ("wait_time", "lake", [0, 0.3, 20], [-1, 20.5, 21]),
    ("wait_time", "sqs", [0, 20], [-1, 21, 0.3]),
    ("wait_time", "sqs-2018", [0, 20], [-1, 21]),
    ("wait_time", "cmq", [0.2, 30], [0, 0.1, 30.1, 31]),
    ("delay", "lake", [0, 0.5, 345_600], [-1, 345_601]),
    ("delay", "sqs", [0, 900], [-1, 901, 0.5]),
    ("delay", "sqs-2018", [0, 900], [-1, 901]),
    ("delay", "cmq", [0, 1, 3_600], [-1, 3_601]),
]
CHECKS = {
    "visibility_timeout": check_visibility_timeout,
    "wait_time": check_wait,
    "delay": check_delay,
    "attempt_id": check_attempt_id,
    "max_messages": check_max_messages,
}


def refused_argument(parameter, attributes, value):
    with pytest.raises(InvalidParameterValue, match=f"for parameter {parameter} is invalid") as caught:
        CHECKS[parameter](attributes, value)
    return caught.value


@pytest.mark.spec("RCV-13", "VIS-10", "VIS-11", "PRF-2", "QUE-8", "QUE-19", "LPL-2", "LPL-3")
@pytest.mark.spec("DLY-3", "DLY-4", "SND-11")
@pytest.mark.parametrize(("parameter", "profile", "good", "bad"), CALLS)
def test_times_of_calls(parameter, profile, good, bad):
    attributes = create(profile)
    for value in good:
        seconds = value.total_seconds() if isinstance(value, timedelta) else value
        assert CHECKS[parameter](attributes, value) == round(seconds * 1_000_000)
    for value in bad:
        refused_argument(parameter, attributes, value)


@pytest.mark.spec("RCV-1", "QTA-7")
@pytest.mark.parametrize(("profile", "most"), [("lake", None), ("sqs", 10), ("sqs-2018", 10), ("cmq", 16)])
def test_number_of_messages_asked_for(profile, most):
    attributes = create(profile)
    asked = [check_max_messages(attributes, number) for number in (None, 1, most or 10**6)]
    assert asked == [1, 1, most or 10**6]
    for value in [0, -1, "x", 1.5, True, *([most + 1] if most else [])]:
        refused_argument("max_messages", attributes, value)


@pytest.mark.spec("ATT-7")
def test_attempt_ids_have_up_to_128_letters_digits_and_punctuation():
    for good in ("a" * 128, "1", "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"):
        assert check_attempt_id(fifo(), good) == good
    assert check_attempt_id(create(), None) is check_attempt_id(fifo(), None) is None


OTHER_TYPE = "The request include parameter that is not valid for this queue type."
BAD_IDS = ["", "a" * 129, "a b", "é", "a\n", 5, b"x"]
ID_CHARACTERS = "attempt_id can only include alphanumeric and punctuation characters. 1 to 128 in length."


@pytest.mark.spec("RCV-1", "VIS-10", "LPL-3", "DLY-4", "ERR-7", "SND-6", "DLY-7", "DLY-10", "ATT-7")
@pytest.mark.parametrize(
    ("parameter", "queue", "value", "reason"),
    [
        ("visibility_timeout", {}, timedelta(seconds=43_201), "Must be >= 0 and <= 43200, if provided."),
        ("wait_time", {"profile": "sqs"}, 21, "Must be >= 0 and <= 20, if provided."),
        ("max_messages", {"profile": "sqs"}, 11, "Must be between 1 and 10, if provided."),
        ("delay", {"profile": "sqs"}, 901, "delay must be >= 0 and <= 900."),
        *(("delay", {"profile": each, "fifo": True, "delay": 10}, 2, OTHER_TYPE) for each in PROFILES[:3]),
        ("attempt_id", {"profile": "sqs"}, "x", OTHER_TYPE),
        *(("attempt_id", FIFO, each, ID_CHARACTERS) for each in BAD_IDS),
    ],
)
def test_what_is_said_of_a_refused_argument(parameter, queue, value, reason):
    shown = repr(value) if "\n" in str(value) else 43_201 if isinstance(value, timedelta) else value
    message = refused_argument(parameter, create(**queue), value).message
    assert message == f"Value {shown} for parameter {parameter} is invalid. Reason: {reason}"


@pytest.mark.spec("ERR-7", "ATT-7")
@pytest.mark.parametrize(("parameter", "value"), [("delay", 3_601), ("attempt_id", "x")])
def test_refused_arguments_have_a_code_of_cmq(parameter, value):
    assert refused_argument(parameter, create("cmq"), value).cmq_code == 4000


@pytest.mark.spec("VIS-10", "VIS-4", "PRF-2")
def test_visibility_timeouts_that_are_missing_or_zero():
    with pytest.raises(MissingParameter, match="must contain the parameter visibility_timeout"):
        check_visibility_timeout(create(), None)
    for free in ({"allow_zero_visibility": True}, {"profile_strict": False}):
        assert check_visibility_timeout(create("cmq", **free), 0) == 0
    refused_argument("visibility_timeout", create("lake", allow_zero_visibility=False), 0)


@pytest.mark.spec("LPL-2", "LPL-3", "QUE-19")
def test_a_wait_overrides_the_wait_of_the_queue_zero_included():
    assert [check_wait(create(profile), None) for profile in PROFILES] == [0, 0, 0, 200_000]
    assert [check_wait(create(receive_wait_time=7), wait) for wait in (None, 0)] == [7_000_000, 0]


@pytest.mark.spec("DLY-9", "DLY-2")
def test_a_message_delay_overrides_the_delay_of_the_queue_zero_included():
    assert [check_delay(create(delay=10), delay) for delay in (None, 0, 20)] == [10_000_000, 0, 20_000_000]
    assert check_delay(create(), None) == 0


@pytest.mark.spec("SND-6", "DLY-7", "DLY-10")
@pytest.mark.parametrize("profile", ["lake", "sqs", "sqs-2018"])
def test_on_fifo_queues_only_the_queue_delays(profile):
    attributes = fifo(profile, DelaySeconds="10")
    assert [check_delay(attributes, delay) for delay in (None, 0, timedelta(0))] == [None] * 3
    for bad in (10, -1, 10**9, "x", "0"):
        refused_argument("delay", attributes, bad)


@pytest.mark.spec("QUE-28")
def test_tags_have_bounded_keys_and_values():
    good = {"k" * 128: "v" * 256, "K": "", "k": "v"}
    assert check_tags(good) == good
    half = "\ud800"
    for bad in ({"": "v"}, {"k" * 129: "v"}, {"k": "v" * 257}, {"k": 1}, {1: "v"}, {"k": half}, {half: "v"}):
        with pytest.raises(InvalidParameterValue):
            check_tags(bad)


@pytest.mark.spec("FAI-1", "FAI-4")
def test_standard_queues_are_fair_by_default_where_they_take_group_ids():
    shown = {name: create(name).to_wire().get("FairGroups") for name in PROFILES}
    assert shown == {"lake": "true", "sqs": "true", "sqs-2018": None, "cmq": "false"}
    assert create(fair_groups=False).with_changes(FairGroups="true").fair_groups is True
    assert create().group_in_flight_limit is None
    assert create(group_in_flight_limit=5).with_changes(GroupInFlightLimit="unlimited") == create()
    assert create(GroupInFlightLimit="120000").to_wire()["GroupInFlightLimit"] == "120000"


@pytest.mark.spec("JOB-5", "JOB-6")
@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"priorities": 0}, InvalidAttributeValue, "priorities"),
        ({"priorities": 11}, InvalidAttributeValue, "1 to 10"),
        ({"priorities": 3, "shards": 4}, InvalidAttributeValue, "multiple of the priorities, 3"),
        ({"priorities_strict": True}, InvalidAttributeValue, "created without priorities"),
        ({"priorities": 2, "priorities_strict": "x"}, InvalidAttributeValue, "priorities_strict"),
        ({"priorities": 2, "group_in_flight_limit": 5}, InvalidAttributeValue, "does not go with priorities"),
        ({"priorities": 2, "deduplication_interval": 60}, InvalidAttributeValue, "does not go with priorities"),
        ({"priorities": 2, "deduplication_until_deleted": True}, InvalidAttributeValue, "not go with"),
        ({"group_in_flight_limit": 2, "deduplication_interval": 60}, InvalidAttributeValue, "does not go with"),
        (
            {"deduplication_interval": 60, "deduplication_until_deleted": True},
            InvalidAttributeValue,
            "does not go with deduplication_interval$",
        ),
        *(
            (wrong | kind, InvalidAttributeName, text)
            for wrong in ({"priorities": 2}, {"deduplication_interval": 60})
            for kind, text in (({"profile_name": "sqs"}, "profile lake"), ({"fifo": True}, "standard queue"))
        ),
    ],
)
def test_what_does_not_go_together_is_refused(given, error, text):
    with pytest.raises(error, match=text):
        create(**given)


@pytest.mark.spec("FAI-1")
def test_queues_that_older_versions_made_are_as_fair_as_new_ones():
    for attributes in (*map(create, PROFILES), fifo("lake"), fifo("sqs-2018")):
        stored = attributes.to_stored()
        assert "FairGroups" not in stored  # so that these can read what this version writes
        assert QueueAttributes.from_wire(stored) == attributes == QueueAttributes.from_wire(attributes.to_wire())
    unfair = create(fair_groups=False)
    assert QueueAttributes.from_wire(unfair.to_stored()) == unfair


@pytest.mark.spec("FAI-5")
def test_a_limit_on_a_living_queue_needs_all_messages_of_a_group_on_one_shard():
    sharded = create(shards=4, group_in_flight_limit=5)
    assert sharded.by_group
    assert sharded.with_changes(group_in_flight_limit=7, shards=4).group_in_flight_limit == 7
    with pytest.raises(InvalidAttributeValue, match="shards"):
        sharded.with_changes(shards=5)
    with pytest.raises(InvalidAttributeValue, match="shards"):
        create(group_in_flight_limit=5).with_changes(shards=2)
    free = sharded.with_changes(group_in_flight_limit=None)
    assert not free.by_group
    assert free.with_changes(shards=5).shards == 5
    for refused in ({"group_in_flight_limit": 5}, {"group_in_flight_limit": 5, "shards": 5}):
        with pytest.raises(InvalidAttributeValue):
            free.with_changes(**refused)
    assert create().with_changes(group_in_flight_limit=5).group_in_flight_limit == 5
