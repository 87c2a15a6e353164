"""Messages: digests, message attributes, the checks of a send and of a batch."""

import re
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from itertools import product

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


def every(*profiles, **given):
    """Queues of these profiles, or of all."""
    return [queue(profile, **given) for profile in profiles or PROFILES]


def entries(name, *values, **given):
    return [SendEntry(**{"body": "x"} | given | {name: value}) for value in values]


def with_ids(rows):
    return [pytest.param(*row, marks=pytest.mark.spec(*ids.split())) for ids, *row in rows]


FULL = [char * (1_200 // size) for size, char in enumerate("aé€😀", start=1)]
"""Bodies of 1,200 bytes."""
WIDE = {"nn": ("Number.x", 5), "b": b"123"}  # 2 + 8 + 1, 1 + 6 + 3 bytes
GROUPED = {"group_id": "g", "dedup_id": "d"}
NO_XML = ["\x00", "\x01", "\x0b", "\x1f", chr(0xD800), chr(0xDFFF), "\ufffe", "\uffff"]
NO_TRACES = [{"Other": "x"}, *({"AWSTraceHeader": bad} for bad in ("", 5, ("Number", "5")))]
BAD_IDS = ["a" * 129, "", "a b", "é", "a\n", 5]
OTHER_TYPE = "Reason: The request includes a parameter that is not valid for this queue type."
NEITHER = "The queue should either have content_based_deduplication enabled or dedup_id provided explicitly"
FIFO_DELAY = "Reason: The request include parameter that is not valid for this queue type."
BY_CONTENT = fifo(content_based_deduplication=True)
REFUSED = [  # ids, queues, entries, error, the end of its text
    ("SND-1", every(), entries("body", "", None), MissingParameter, "request must contain the parameter body."),
    ("SND-1", every("lake"), entries("body", b"x", 5, ["x"]), InvalidParameterValue, ""),
    ("SND-2", every(maximum_message_size=1_200), entries("body", *(f"{body}a" for body in FULL)),
     InvalidParameterValue, "parameters are invalid. Reason: Message must be shorter than 1200 bytes."),
    ("SND-2", every(*PROFILES[:3], maximum_message_size=1_024), entries("body", "a" * 1_004, attributes=WIDE),
     InvalidParameterValue, "Message must be shorter than 1024 bytes."),
    ("SND-12", every("lake"), entries("body", *(f"a{char}b" for char in NO_XML)), InvalidMessageContents, ""),
    ("SND-13", [fifo()], entries("dedup_id", *BAD_IDS, group_id="g"), InvalidParameterValue, "128 in length."),
    ("SND-13 SND-14", every("sqs-2018"), entries("group_id", "g"), InvalidParameterValue, OTHER_TYPE),
    ("SND-14", every(*PROFILES[1:]), entries("dedup_id", "d"), InvalidParameterValue,
     f"Value d for parameter dedup_id is invalid. {OTHER_TYPE}"),
    ("SND-14", every("lake"), entries("dedup_id", "d"), InvalidParameterValue,
     f"{OTHER_TYPE} A queue with deduplication_interval takes it."),
    ("SND-4 ERR-5", [fifo()], entries("dedup_id", "d"), MissingParameter, "must contain the parameter group_id."),
    ("SND-4", [fifo()], entries("group_id", "", dedup_id="d"), InvalidParameterValue, ""),
    ("SND-5", [fifo()], entries("group_id", "g"), InvalidParameterValue, NEITHER),
    ("DDP-6 SND-5", [BY_CONTENT], entries("dedup_id", "", group_id="g"), InvalidParameterValue, ""),
    ("SND-6 DLY-7 DLY-10", [fifo(delay=10)], entries("delay", 2, **GROUPED), InvalidParameterValue,
     f"Value 2 for parameter delay is invalid. {FIFO_DELAY}"),
    ("SND-15", every("lake"), entries("system_attributes", *NO_TRACES), InvalidParameterValue, ""),
    ("DLY-3 DLY-4", every("sqs"), entries("delay", 901), InvalidParameterValue, ""),
    ("DLY-3 DLY-4", every("cmq"), entries("delay", 3_601), InvalidParameterValue, ""),
]  # fmt: skip


@pytest.mark.parametrize(("queues", "entries", "error", "text"), with_ids(REFUSED))
def test_entries_that_are_refused(queues, entries, error, text):
    for attributes, entry in product(queues, entries):
        with pytest.raises(error) as refused:
            validate_entry(entry, attributes)
        assert refused.type is error and refused.value.message.endswith(text)


@pytest.mark.spec("SND-13")
@pytest.mark.parametrize("value", BAD_IDS)
def test_a_refused_group_id_is_shown(value):
    with pytest.raises(InvalidParameterValue) as refused:
        validate_entry(SendEntry("x", group_id=value), queue())
    shown = repr(value) if "\n" in str(value) else value
    assert refused.value.message == (
        f"Value {shown} for parameter group_id is invalid. Reason: group_id can only include "
        "alphanumeric and punctuation characters. 1 to 128 in length."
    )


XML = ["\t", "\n", "\r", " ", "\ud7ff", "\ue000", "\ufffd", "\U00010000", "\U0010ffff", "😀"]
IDS = ["a" * 128, "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "Z9"]
TRACE = {"AWSTraceHeader": "Root=1"}
TEXT = "This is my message text."
SHA = "92b3693fce932bbbff0f6795ab3cc33a9c0a51c264160e90507fd8ea8ba2e598"
ACCEPTED = [  # ids, queues, entries, what the valid entries have
    ("SND-1", every(), entries("body", "x"), {"size": 1}),
    ("SND-2", every(maximum_message_size=1_200), entries("body", *FULL), {"size": 1_200}),
    ("SND-2", every(*PROFILES[:3], maximum_message_size=1_024),
     entries("body", "a" * 1_003, attributes=WIDE), {"size": 1_024}),
    ("SND-2", every("cmq", maximum_message_size=1_024),
     entries("body", "a" * 1_024, attributes=WIDE), {"size": 1_024}),
    *(("SND-12", every("lake"), entries("body", f"a{char}"), {"body": f"a{char}"}) for char in XML),
    *(("SND-13 SND-14", every("lake", "sqs", "cmq"), entries("group_id", id), {"group_id": id}) for id in IDS),
    ("SND-4 SND-5", [fifo()], entries("dedup_id", "d", group_id="g"), GROUPED),
    ("SND-6 DLY-7 DLY-10", [fifo(delay=10)], entries("delay", None, 0, **GROUPED), {"delay_micros": None}),
    ("DDP-4 MSA-6", [BY_CONTENT], entries("attributes", None, {"k": "v"}, body=TEXT, group_id="g"),
     {"dedup_id": SHA}),
    ("DDP-6 SND-5", [BY_CONTENT], entries("dedup_id", "x", group_id="g"), {"dedup_id": "x"}),
    ("DDP-6", every("lake"), entries("group_id", "g"), {"dedup_id": None}),
    ("SND-15", every("lake", maximum_message_size=1_024),
     entries("system_attributes", TRACE, {"AWSTraceHeader": ("String", "Root=1")}, body="a" * 1_024),
     {"size": 1_024, "system_attributes": TRACE}),
    ("DLY-9", every("lake", delay=10), entries("delay", None), {"delay_micros": 10_000_000}),
    ("DLY-9", every("lake", delay=10), entries("delay", 0), {"delay_micros": 0}),
    ("DLY-3", every("sqs"), entries("delay", timedelta(minutes=1)), {"delay_micros": 60_000_000}),
]  # fmt: skip


@pytest.mark.parametrize(("queues", "entries", "expected"), with_ids(ACCEPTED))
def test_entries_that_are_accepted(queues, entries, expected):
    for attributes, entry in product(queues, entries):
        valid = validate_entry(entry, attributes)
        assert {name: getattr(valid, name) for name in expected} == expected


@pytest.mark.spec("DDP-4", "MSA-6")
def test_content_based_deduplication_is_sha_256_of_the_body():
    assert content_dedup_id("This is my message text.") == SHA
    assert content_dedup_id("é") == "4a99557e4033c3539de2eb65472017cad5f9557f7a0625a09f1c3f6e2ba69c4c"


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


def broken(number, **fields):
    return [SendEntry("\x01" * 300_000, **fields)] * number


FIRST = SendEntry("x", **GROUPED)
BYTES = {"sqs": 1_048_576, "sqs-2018": 262_144, "cmq": 65_536}
MOST = {"sqs": 10, "sqs-2018": 10, "cmq": 16}
BAD_ENTRY_IDS = ["", "a b", "a" * 81, "é", "a\n", "a.b", 5]
BATCHES = [  # ids, queues, batch, error, a part of its text
    *(("BAT-1 BAT-3 QTA-7", every(profile), entries("body", *"x" * 20), TooManyEntriesInBatchRequest,
       f"^Maximum number of entries per request are {most}[.] You have sent 20[.]$")
      for profile, most in MOST.items()),
    ("BAT-5", every(), [], EmptyBatchRequest, ""),
    *(("BAT-5", every("lake"), entries("id", "ok", id), InvalidBatchEntryId, "") for id in BAD_ENTRY_IDS),
    ("BAT-5", every("lake"), entries("id", *"aba"), BatchEntryIdsNotDistinct, "^Id a repeated[.]$"),
    *(("BAT-5", every(profile), entries("body", *["x" * (limit // 2)] * 2, "é"), BatchRequestTooLong,
       f"^Batch requests cannot be longer than {limit} bytes[.] You have sent {limit + 2} bytes[.]$")
      for profile, limit in BYTES.items()),
    ("BAT-5 BAT-7", every("sqs-2018"), entries("body", "\x01" * 200_000, "x" * 200_000), BatchRequestTooLong, ""),
    # the order of the checks
    ("BAT-7", every("sqs-2018"), broken(11, id="a b"), TooManyEntriesInBatchRequest, ""),
    ("BAT-7", every("sqs-2018"), broken(2, id="a b"), InvalidBatchEntryId, ""),
    ("BAT-7", every("sqs-2018"), broken(2, id="a"), BatchEntryIdsNotDistinct, ""),
    ("BAT-7", [fifo("sqs-2018")], broken(2), InvalidParameterValue, "group_id"),
    ("BAT-7", every("sqs-2018"), broken(2), BatchRequestTooLong, ""),
    # one entry fails all of a FIFO batch
    ("SND-4 BAT-7", [fifo()], [FIRST, *entries("dedup_id", "e")], InvalidParameterValue, "the parameter group_id"),
    ("SND-5 BAT-7", [fifo()], [FIRST, *entries("group_id", "g")], InvalidParameterValue, NEITHER),
]  # fmt: skip


@pytest.mark.parametrize(("queues", "batch", "error", "text"), with_ids(BATCHES))
def test_batches_that_are_refused(queues, batch, error, text):
    for attributes in queues:
        with pytest.raises(error, match=text or None) as refused:
            validate_batch(batch, attributes)
        assert refused.type is error


@pytest.mark.spec("BAT-1", "BAT-3", "BAT-5", "QTA-7")
@pytest.mark.parametrize("profile", PROFILES)
def test_batches_may_have_as_many_entries_and_bytes_as_the_profile_allows(profile):
    most = MOST.get(profile, 50_000)
    assert len(validate_batch([SendEntry("x")] * most, queue(profile))) == most
    check_batch_ids([str(number) for number in range(most)], queue(profile))
    if profile in MOST:
        with pytest.raises(TooManyEntriesInBatchRequest):
            check_batch_ids([str(number) for number in range(most + 1)], queue(profile))
    whole = entries("body", *(["x" * (BYTES[profile] // 2)] * 2 if profile in BYTES else ["x" * 10**6] * 12))
    assert len(validate_batch(whole, queue(profile))) == len(whole)


@pytest.mark.spec("BAT-5")
def test_entry_ids_may_have_eighty_characters():
    assert len(validate_batch(entries("id", "A-b_9", "a" * 80, "a-b_9"), queue())) == 3


@pytest.mark.spec("SND-5")
def test_entries_of_a_batch_get_ids_from_their_content():
    results = validate_batch([FIRST, SendEntry("y", group_id="g")], BY_CONTENT)
    assert [each.dedup_id for each in results] == ["d", content_dedup_id("y")]


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
