"""Messages: digests, message attributes, the checks of a send and of a batch."""

import re
from datetime import datetime, timedelta, timezone
from decimal import Decimal

import pytest

from lakequeue.errors import (
    BatchEntryIdsNotDistinct,
    BatchRequestTooLong,
    EmptyBatchRequest,
    InvalidBatchEntryId,
    InvalidMessageContents,
    InvalidParameterValue,
    MissingParameter,
    OverLimit,
    TooManyEntriesInBatchRequest,
)
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import to_micros
from lakequeue.model.messages import (
    AttributeValue,
    BatchFailure,
    Message,
    SendEntry,
    ValidEntry,
    content_dedup_id,
    md5_of_attributes,
    md5_of_body,
    new_message_ids,
    select_attributes,
    sent_about,
)
from lakequeue.model.validation import check_batch_ids, normalize_attributes, validate_batch, validate_entry

PROFILES = ["lake", "sqs", "sqs-2018", "cmq"]
START = datetime(2026, 1, 1, tzinfo=timezone.utc)


def queue(profile="lake", **given):
    return QueueAttributes.create(profile, **given)


def fifo(profile="sqs", **given):
    return queue(profile, fifo=True, **given)


def refused(error, entry, attributes=None):
    with pytest.raises(error) as caught:
        validate_entry(entry, attributes or queue())
    return caught.value.message


@pytest.mark.spec("MSA-1", "RCV-10")
def test_md5_of_a_body():
    assert md5_of_body("This is my message text.") == "6a1559560f67c5e7a7d5d838bf0272ee"
    assert md5_of_body("ä") != md5_of_body("a")


@pytest.mark.spec("MSA-2")
@pytest.mark.parametrize(
    ("attributes", "md5"),
    [
        ({"MyAttribute": "foobar"}, "adb59cd4678ea5a855436b949cd07ab6"),
        ({"n": 42, "b": b"\x00\xff", "a": "x"}, "1fe88e4d2f79f54876ff8f1d00671b3e"),
    ],
)
def test_md5_of_attributes(attributes, md5):
    assert md5_of_attributes(normalize_attributes(attributes)) == md5


@pytest.mark.spec("MSA-2")
def test_no_attributes_no_md5_and_labels_count():
    assert md5_of_attributes({}) is None
    plain, labelled = ({"a": AttributeValue(t, "1")} for t in ("Number", "Number.int"))
    assert md5_of_attributes(plain) != md5_of_attributes(labelled)


@pytest.mark.spec("MSA-3")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("v", ("String", "v")),
        (42, ("Number", "42")),
        (-1.5, ("Number", "-1.5")),
        (Decimal("0.10"), ("Number", "0.10")),
        (b"\x00", ("Binary", b"\x00")),
        (("String.json", "{}"), ("String.json", "{}")),
        (("Number", 7), ("Number", "7")),
        (AttributeValue("Binary.gz", b"z"), ("Binary.gz", b"z")),
    ],
)
def test_attribute_values_get_their_type(given, expected):
    assert normalize_attributes({"a": given}) == {"a": AttributeValue(*expected)}


@pytest.mark.spec("MSA-3")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "non-empty message attribute names"),
        ("a" * 257, "at most 256"),
        ("a b", "is invalid"),
        ("é", "is invalid"),
        ("a\n", "is invalid"),
        ("AWS.x", "reserved"),
        ("aws.x", "reserved"),
        ("Amazon.x", "reserved"),
        (".a", "period"),
        ("a.", "period"),
        ("a..b", "period"),
    ],
)
def test_attribute_names_that_are_refused(name, reason):
    with pytest.raises(InvalidParameterValue, match=reason):
        normalize_attributes({name: "v"})


@pytest.mark.spec("MSA-3")
def test_attribute_names_that_are_accepted_up_to_ten():
    names = ["a" * 256, "A.b-c_9", "AWSx", "amazonian.x", *"bcdefg"]
    assert list(normalize_attributes(dict.fromkeys(names, "v"))) == names
    with pytest.raises(InvalidParameterValue, match=r"\[11\] exceeds the allowed maximum \[10\]"):
        normalize_attributes({f"a{n}": "v" for n in range(11)})


@pytest.mark.spec("MSA-3")
@pytest.mark.parametrize(
    "value",
    [
        "", b"", ("String", ""), ("Text", "v"), ("string", "v"), ("String.", "v"), ("Stringx", "v"), ("", "v"),
        ("Binary", "v"), ("String", b"v"), ("Number", b"1"), ("String", None), None, True, [], ("String", "v", 1),
        ("String." + "x" * 256, "v"),
    ],
)  # fmt: skip
def test_attribute_values_that_are_refused(value):
    with pytest.raises(InvalidParameterValue):
        normalize_attributes({"a": value})


@pytest.mark.spec("MSA-5")
def test_numbers_have_a_range():
    for number in ("-1e128", "1e126", "0", "-0.5", 10**126):
        assert normalize_attributes({"a": ("Number", number)})
    for number in (
        "-1.1e128",
        "1.1e126",
        "x",
        "nan",
        "Infinity",
        float("inf"),
        "--1",
        "1_000",
        "\u0663",
        "0x1",
        "1e",
    ):
        with pytest.raises(InvalidParameterValue, match="Can't cast"):
            normalize_attributes({"a": ("Number", number)})


@pytest.mark.spec("SND-12")
def test_text_attributes_carry_the_characters_of_bodies():
    with pytest.raises(InvalidParameterValue, match="'a' has a value with invalid characters"):
        normalize_attributes({"a": "\x01"})


@pytest.mark.spec("MSA-4")
@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["All"], ["foo.a", "foo.b", "foobar", "x"]),
        ([".*"], ["foo.a", "foo.b", "foobar", "x"]),
        (["foo.*"], ["foo.a", "foo.b"]),
        (["x", "foo.a", "nothing"], ["foo.a", "x"]),
        ([], []),
        (["fo"], []),
    ],
)
def test_receivers_choose_attributes(names, expected):
    attributes = normalize_attributes({"foo.a": "1", "foo.b": "2", "foobar": "3", "x": "4"})
    chosen = select_attributes(attributes, names)
    assert list(chosen) == expected
    assert md5_of_attributes(chosen) == md5_of_attributes({n: attributes[n] for n in expected})


@pytest.mark.spec("SND-1")
@pytest.mark.parametrize("profile", PROFILES)
def test_a_body_has_at_least_one_byte(profile):
    for body in ("", None):
        message = refused(MissingParameter, SendEntry(body), queue(profile))
        assert message == "The request must contain the parameter body."
    assert validate_entry(SendEntry("x"), queue(profile)).size == 1


@pytest.mark.spec("SND-2")
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("char", ["a", "é", "€", "😀"])
def test_a_body_is_measured_in_bytes(profile, char):
    attributes = queue(profile, maximum_message_size=1_200)
    fits = char * (1_200 // len(char.encode()))
    assert validate_entry(SendEntry(fits), attributes).size == 1_200
    message = refused(InvalidParameterValue, SendEntry(fits + "a"), attributes)
    assert message == ("One or more parameters are invalid. Reason: Message must be shorter than 1200 bytes.")


@pytest.mark.spec("SND-2")
def test_attributes_count_towards_the_size_except_on_cmq():
    given = {"nn": ("Number.x", 5), "b": b"123"}  # 2 + 8 + 1, 1 + 6 + 3
    for profile in ("lake", "sqs", "sqs-2018"):
        attributes = queue(profile, maximum_message_size=1_024)
        assert validate_entry(SendEntry("a" * 1_003, attributes=given), attributes).size == 1_024
        refused(InvalidParameterValue, SendEntry("a" * 1_004, attributes=given), attributes)
    attributes = queue("cmq", maximum_message_size=1_024)
    assert validate_entry(SendEntry("a" * 1_024, attributes=given), attributes).size == 1_024


@pytest.mark.spec("SND-12")
@pytest.mark.parametrize(
    "char", ["\t", "\n", "\r", " ", "\ud7ff", "\ue000", "\ufffd", "\U00010000", "\U0010ffff", "😀"]
)
def test_characters_that_a_body_may_have(char):
    assert validate_entry(SendEntry(f"a{char}"), queue()).body == f"a{char}"


@pytest.mark.spec("SND-12")
@pytest.mark.parametrize("char", ["\x00", "\x01", "\x0b", "\x1f", chr(0xD800), chr(0xDFFF), "\ufffe", "\uffff"])
def test_characters_that_a_body_may_not_have(char):
    assert "Invalid characters found" in refused(InvalidMessageContents, SendEntry(f"a{char}b"))


def test_a_body_is_text():
    for body in (b"x", 5, ["x"]):
        refused(InvalidParameterValue, SendEntry(body))


@pytest.mark.spec("SND-13")
@pytest.mark.parametrize("value", ["a" * 129, "", "a b", "é", "a\n", 5])
def test_group_ids_that_are_refused(value):
    message = refused(InvalidParameterValue, SendEntry("x", group_id=value))
    shown = repr(value) if "\n" in str(value) else value
    assert message == (
        f"Value {shown} for parameter group_id is invalid. Reason: group_id can only include "
        "alphanumeric and punctuation characters. 1 to 128 in length."
    )
    refused(InvalidParameterValue, SendEntry("x", group_id="g", dedup_id=value), fifo())


@pytest.mark.spec("SND-13", "SND-14")
def test_group_ids_are_accepted_on_standard_queues_except_those_of_2018():
    punctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
    for profile in ("lake", "sqs", "cmq"):
        for group in ("a" * 128, punctuation, "Z9"):
            assert validate_entry(SendEntry("x", group_id=group), queue(profile)).group_id == group
    message = refused(InvalidParameterValue, SendEntry("x", group_id="g"), queue("sqs-2018"))
    assert message.endswith("The request includes a parameter that is not valid for this queue type.")


@pytest.mark.spec("SND-14")
@pytest.mark.parametrize("profile", PROFILES)
def test_standard_queues_refuse_deduplication_ids(profile):
    message = refused(InvalidParameterValue, SendEntry("x", dedup_id="d"), queue(profile))
    remedy = " A queue with deduplication_interval takes it." if profile == "lake" else ""
    assert message == (
        "Value d for parameter dedup_id is invalid. "
        f"Reason: The request includes a parameter that is not valid for this queue type.{remedy}"
    )


@pytest.mark.spec("SND-4", "SND-5", "SND-6", "ERR-5")
def test_what_fifo_queues_require():
    message = refused(MissingParameter, SendEntry("x", dedup_id="d"), fifo())
    assert message == "The request must contain the parameter group_id."
    refused(InvalidParameterValue, SendEntry("x", dedup_id="d", group_id=""), fifo())
    message = refused(InvalidParameterValue, SendEntry("x", group_id="g"), fifo())
    assert message == (
        "The queue should either have content_based_deduplication enabled or dedup_id provided explicitly"
    )
    valid = validate_entry(SendEntry("x", group_id="g", dedup_id="d"), fifo())
    assert (valid.group_id, valid.dedup_id) == ("g", "d")


@pytest.mark.spec("SND-6", "DLY-7", "DLY-10")
def test_fifo_messages_have_no_delay_of_their_own():
    attributes = fifo(delay=10)
    for delay in (None, 0):
        valid = validate_entry(SendEntry("x", group_id="g", dedup_id="d", delay=delay), attributes)
        assert valid.delay_micros is None
    message = refused(InvalidParameterValue, SendEntry("x", group_id="g", dedup_id="d", delay=2), attributes)
    assert message == (
        "Value 2 for parameter delay is invalid. "
        "Reason: The request include parameter that is not valid for this queue type."
    )


@pytest.mark.spec("DDP-4", "MSA-6")
def test_content_based_deduplication_is_sha_256_of_the_body_alone():
    sha = "92b3693fce932bbbff0f6795ab3cc33a9c0a51c264160e90507fd8ea8ba2e598"
    assert content_dedup_id("This is my message text.") == sha
    for given in (None, {"k": "v"}):
        entry = SendEntry("This is my message text.", attributes=given, group_id="g")
        assert validate_entry(entry, fifo(content_based_deduplication=True)).dedup_id == sha
    assert content_dedup_id("é") == "4a99557e4033c3539de2eb65472017cad5f9557f7a0625a09f1c3f6e2ba69c4c"


@pytest.mark.spec("DDP-6", "SND-5")
def test_an_explicit_deduplication_id_goes_before_the_content():
    attributes = fifo(content_based_deduplication=True)
    for id in ("x", "y"):
        assert validate_entry(SendEntry("body", group_id="g", dedup_id=id), attributes).dedup_id == id
    refused(InvalidParameterValue, SendEntry("body", group_id="g", dedup_id=""), attributes)
    assert validate_entry(SendEntry("body", group_id="g"), queue()).dedup_id is None


@pytest.mark.spec("SND-15")
def test_the_trace_header_is_accepted_and_not_counted():
    attributes = queue(maximum_message_size=1_024)
    for given in ("Root=1", ("String", "Root=1")):
        valid = validate_entry(SendEntry("a" * 1_024, system_attributes={"AWSTraceHeader": given}), attributes)
        assert (valid.size, valid.system_attributes) == (1_024, {"AWSTraceHeader": "Root=1"})
    for bad in (
        {"Other": "x"},
        {"AWSTraceHeader": ""},
        {"AWSTraceHeader": 5},
        {"AWSTraceHeader": ("Number", "5")},
    ):
        refused(InvalidParameterValue, SendEntry("x", system_attributes=bad))


@pytest.mark.spec("DLY-3", "DLY-4", "DLY-9")
def test_a_valid_entry_carries_its_delay():
    assert validate_entry(SendEntry("x"), queue(delay=10)).delay_micros == 10_000_000
    assert validate_entry(SendEntry("x", delay=0), queue(delay=10)).delay_micros == 0
    assert validate_entry(SendEntry("x", delay=timedelta(minutes=1)), queue("sqs")).delay_micros == 60_000_000
    refused(InvalidParameterValue, SendEntry("x", delay=901), queue("sqs"))
    refused(InvalidParameterValue, SendEntry("x", delay=3_601), queue("cmq"))


@pytest.mark.spec("BAT-4", "SND-16")
def test_one_bad_entry_fails_alone():
    entries = [SendEntry("x") for _ in range(9)] + [SendEntry("\x01", id="bad")]
    results = validate_batch(entries, queue("sqs"))
    assert [type(r) for r in results] == [ValidEntry] * 9 + [BatchFailure]
    failure = results[-1]
    assert (failure.id, failure.code, failure.sender_fault) == ("bad", "InvalidMessageContents", True)
    assert "Invalid characters" in failure.message


@pytest.mark.spec("BAT-4")
def test_failures_have_the_position_as_their_id_by_default():
    results = validate_batch([SendEntry("x"), SendEntry(""), SendEntry("y", dedup_id="d")], queue())
    assert [(r.id, r.code) for r in results[1:]] == [
        ("1", "MissingParameter"),
        ("2", "InvalidParameterValue"),
    ]


@pytest.mark.spec("BAT-4")
def test_a_failure_repeats_the_error():
    assert BatchFailure.of("a", OverLimit("full", sender_fault=False)) == BatchFailure(
        "a", "OverLimit", "full", False
    )


@pytest.mark.spec("BAT-1", "BAT-3", "QTA-7")
@pytest.mark.parametrize(("profile", "most"), [("sqs", 10), ("sqs-2018", 10), ("cmq", 16)])
def test_batches_are_capped(profile, most):
    assert len(validate_batch([SendEntry("x")] * most, queue(profile))) == most
    with pytest.raises(TooManyEntriesInBatchRequest) as caught:
        validate_batch([SendEntry("x")] * 20, queue(profile))
    assert caught.value.message == f"Maximum number of entries per request are {most}. You have sent 20."
    with pytest.raises(TooManyEntriesInBatchRequest):
        check_batch_ids([str(n) for n in range(most + 1)], queue(profile))


@pytest.mark.spec("BAT-1", "BAT-5")
def test_lake_caps_neither_number_nor_bytes():
    entries = [SendEntry("x" * 1_000_000)] * 12
    assert len(validate_batch(entries, queue())) == 12
    check_batch_ids([str(n) for n in range(50_000)], queue())


@pytest.mark.spec("BAT-5")
@pytest.mark.parametrize("profile", PROFILES)
def test_an_empty_batch_is_refused(profile):
    with pytest.raises(EmptyBatchRequest):
        validate_batch([], queue(profile))


@pytest.mark.spec("BAT-5")
@pytest.mark.parametrize("id", ["", "a b", "a" * 81, "é", "a\n", "a.b", 5])
def test_malformed_entry_ids_are_refused(id):
    with pytest.raises(InvalidBatchEntryId):
        validate_batch([SendEntry("x", id="ok"), SendEntry("x", id=id)], queue())


@pytest.mark.spec("BAT-5")
def test_entry_ids_may_have_eighty_characters_and_must_differ():
    entries = [SendEntry("x", id="A-b_9"), SendEntry("x", id="a" * 80), SendEntry("x", id="a-b_9")]
    assert len(validate_batch(entries, queue())) == 3
    with pytest.raises(BatchEntryIdsNotDistinct, match=r"^Id a repeated\.$"):
        validate_batch([SendEntry("x", id="a"), SendEntry("y", id="b"), SendEntry("z", id="a")], queue())


@pytest.mark.spec("BAT-5")
@pytest.mark.parametrize(("profile", "limit"), [("sqs", 1_048_576), ("sqs-2018", 262_144), ("cmq", 65_536)])
def test_the_bytes_of_a_batch_are_capped(profile, limit):
    half = SendEntry("x" * (limit // 2))
    assert len(validate_batch([half, half], queue(profile))) == 2
    with pytest.raises(BatchRequestTooLong) as caught:
        validate_batch([half, half, SendEntry("é")], queue(profile))
    assert caught.value.message == (
        f"Batch requests cannot be longer than {limit} bytes. You have sent {limit + 2} bytes."
    )


@pytest.mark.spec("BAT-5", "BAT-7")
def test_bad_entries_count_towards_the_bytes_too():
    with pytest.raises(BatchRequestTooLong):
        validate_batch([SendEntry("\x01" * 200_000), SendEntry("x" * 200_000)], queue("sqs-2018"))


@pytest.mark.spec("BAT-7")
def test_the_order_of_the_checks():
    def bad(n, **fields):
        return [SendEntry("\x01" * 300_000, **fields)] * n

    attributes = queue("sqs-2018")
    with pytest.raises(TooManyEntriesInBatchRequest):
        validate_batch(bad(11, id="a b"), attributes)
    with pytest.raises(InvalidBatchEntryId):
        validate_batch(bad(2, id="a b"), attributes)
    with pytest.raises(BatchEntryIdsNotDistinct):
        validate_batch(bad(2, id="a"), attributes)
    with pytest.raises(InvalidParameterValue, match="group_id"):
        validate_batch(bad(2), fifo("sqs-2018"))
    with pytest.raises(BatchRequestTooLong):
        validate_batch(bad(2), attributes)


@pytest.mark.spec("SND-4", "BAT-7")
def test_one_entry_without_a_group_fails_a_fifo_batch():
    entries = [SendEntry("x", group_id="g", dedup_id="d"), SendEntry("y", dedup_id="e")]
    with pytest.raises(InvalidParameterValue, match="must contain the parameter group_id"):
        validate_batch(entries, fifo())


@pytest.mark.spec("SND-5", "BAT-7")
def test_one_entry_without_a_deduplication_id_fails_a_fifo_batch():
    entries = [SendEntry("x", group_id="g", dedup_id="d"), SendEntry("y", group_id="g")]
    with pytest.raises(InvalidParameterValue, match="should either have content_based_deduplication enabled"):
        validate_batch(entries, fifo())
    results = validate_batch(entries, fifo(content_based_deduplication=True))
    assert [r.dedup_id for r in results] == ["d", content_dedup_id("y")]


@pytest.mark.spec("BAT-4", "BAT-7", "SND-6", "SND-13")
def test_a_malformed_id_or_a_delay_fails_only_its_entry_of_a_fifo_batch():
    good = SendEntry("x", group_id="g", dedup_id="d")
    bad = [
        SendEntry("x", group_id="a b", dedup_id="d"),
        SendEntry("x", group_id="g", dedup_id="d" * 129),
        SendEntry("x", group_id="g", dedup_id="d", delay=2),
    ]
    results = validate_batch([good, *bad, good], fifo())
    assert [isinstance(r, ValidEntry) for r in results] == [True, False, False, False, True]
    assert {r.code for r in results[1:4]} == {"InvalidParameterValue"}


@pytest.mark.spec("RCP-2")
def test_message_ids_have_the_form_of_the_profile_and_do_not_repeat():
    for form, pattern in (
        ("uuid", r"019b76da-a800-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"),
        ("cmq", "Msg-[0-9A-Za-z]{8}"),
    ):
        ids = {*new_message_ids(100_000, to_micros(START), form)}
        assert len(ids) == 100_000
        assert all(re.fullmatch(pattern, id) for id in ids)
        assert {*map(sent_about, ids)} == {to_micros(START) if form == "uuid" else None}
    assert sent_about("0b6f8a4e-5d3c-4f0e-9a57-3f1d2c4b5a69") is None


@pytest.mark.spec("RCV-10", "RCV-11", "SEQ-5")
def test_a_message_shows_its_system_attributes_as_text():
    message = Message(
        message_id="m",
        receipt_handle="h",
        body="This is my message text.",
        receive_count=2,
        sent_at=START,
        first_received_at=START + timedelta(milliseconds=1_500),
        message_attributes=normalize_attributes({"MyAttribute": "foobar"}),
        system_attributes={"AWSTraceHeader": "Root=1"},
    )
    assert message.md5_of_body == "6a1559560f67c5e7a7d5d838bf0272ee"
    assert message.md5_of_message_attributes == "adb59cd4678ea5a855436b949cd07ab6"
    assert message.message_attributes["MyAttribute"].value == "foobar"
    assert message.attributes == {
        "ApproximateReceiveCount": "2",
        "SentTimestamp": "1767225600000",
        "ApproximateFirstReceiveTimestamp": "1767225601500",
        "AWSTraceHeader": "Root=1",
    }


@pytest.mark.spec("RCV-11", "SEQ-4")
def test_a_fifo_message_shows_group_deduplication_id_and_sequence_number():
    message = Message(
        message_id="m",
        receipt_handle="h",
        body="x",
        receive_count=1,
        sent_at=START,
        first_received_at=START,
        group_id="g",
        dedup_id="d",
        sequence_number="18870000000000000001",
        sender_id="me",
    )
    shown = message.attributes
    assert (shown["MessageGroupId"], shown["MessageDeduplicationId"]) == ("g", "d")
    assert (shown["SequenceNumber"], shown["SenderId"]) == ("18870000000000000001", "me")
