"""Receipt handles: round trip, tampering, foreign queues."""

import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakequeue.errors import ReceiptHandleIsInvalid
from lakequeue.model.names import new_key
from lakequeue.model.receipt_handles import ReceiptHandle, decode, encode, lease_key, new_lease_id

KEY = "0123456789abcdef-01234567"
SECRET = b"secret of the queue"
LEASE = "ab" * 16
HANDLE = ReceiptHandle(KEY, 3, 1_234, LEASE)
TEXT = encode(HANDLE, SECRET)


def refused(text, key=KEY, secret=SECRET):
    with pytest.raises(ReceiptHandleIsInvalid) as caught:
        decode(text, key, secret)
    assert caught.value.message == f'The input receipt handle "{text}" is not a valid receipt handle.'
    return True


@pytest.mark.spec("RCP-15")
@given(st.integers(0, 999_999_999), st.integers(0, 2**62), st.binary(min_size=1))
def test_a_handle_survives_its_text(shard, offset, secret):
    handle = ReceiptHandle(KEY, shard, offset, new_lease_id())
    text = encode(handle, secret)
    assert decode(text, KEY, secret) == handle
    assert len(text) <= 1_024


@pytest.mark.spec("RCP-15")
def test_a_handle_has_letters_and_digits_only():
    assert re.fullmatch("[0-9a-z]{1,200}", TEXT)
    old = "-".join([KEY, "3", "1234", LEASE])
    mac = hashlib.sha256((lease_key(SECRET, LEASE) + old).encode()).hexdigest()[:32]
    assert refused(f"{old}-{mac}"), "as older versions made them"


@pytest.mark.spec("RCP-15")
def test_a_text_with_any_one_character_changed_is_refused():
    for place, old in enumerate(TEXT):
        for new in "0f-Ax":
            assert new == old or refused(TEXT[:place] + new + TEXT[place + 1 :])


@pytest.mark.spec("RCP-9", "RCP-3")
@pytest.mark.parametrize(
    "text",
    [
        "garbage",
        "",
        "d8d5a1ae-7fa5-4ae0-8ba4-5d32a9ff2a2d",
        "Msg-12345678",
        None,
        TEXT[:-1],
        TEXT + "0",
        "é" * 300,
    ],
)
def test_what_no_receive_returned_is_refused(text):
    assert refused(text)


@pytest.mark.spec("RCP-15")
@pytest.mark.parametrize(
    "text", [TEXT.upper(), f" {TEXT}", f"{TEXT}\n", TEXT.replace("x3x", "x03x"), TEXT[:-1] + "٣"]
)
def test_only_the_canonical_text_counts(text):
    assert refused(text)


@pytest.mark.spec("RCP-15")
def test_a_leading_zero_is_refused_even_under_a_right_seal():
    plain = TEXT[:-32].replace("x3x", "x03x")
    mac = hashlib.sha256((lease_key(SECRET, LEASE) + plain).encode()).hexdigest()[:32]
    assert refused(plain + mac)


@pytest.mark.spec("RCP-9")
def test_a_handle_of_another_queue_or_incarnation_is_refused():
    assert refused(TEXT, key=new_key("local", "other"))
    assert refused(TEXT, key=KEY[:-1] + "8")
    assert refused(TEXT, secret=b"another secret")


@pytest.mark.spec("RCP-15")
def test_the_key_of_one_lease_does_not_seal_another():
    assert lease_key(SECRET, LEASE) != lease_key(SECRET, "cd" * 16)
    other = encode(ReceiptHandle(KEY, 3, 1_234, "cd" * 16), SECRET)
    assert refused(other[:-32] + TEXT[-32:])


@pytest.mark.spec("RCP-5", "RCP-14")
def test_lease_ids_do_not_repeat():
    ids = {new_lease_id() for _ in range(1_000)}
    assert len(ids) == 1_000
    assert all(re.fullmatch("[0-9a-f]{32}", i) for i in ids)
