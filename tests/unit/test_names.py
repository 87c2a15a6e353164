"""Queue names and the keys derived from them."""

import re

import pytest

from lakequeue.errors import InvalidParameterValue
from lakequeue.model.names import name_hash, new_key, validate_name
from lakequeue.model.profiles import profile

SQS_LIKE = ["lake", "sqs", "sqs-2018"]


@pytest.mark.spec("NAM-5", "QTA-8")
@pytest.mark.parametrize("name_of_profile", SQS_LIKE)
@pytest.mark.parametrize("name", ["a", "A-b_9", "-", "9", "a" * 80])
def test_standard_names_that_are_accepted(name_of_profile, name):
    validate_name(name, profile(name_of_profile), False)


@pytest.mark.spec("NAM-4", "NAM-5")
@pytest.mark.parametrize("name_of_profile", SQS_LIKE)
@pytest.mark.parametrize("name", ["", "a b", "a/b", "a" * 81, "x.fifo", "a\n", "é", "a.b", None])
def test_standard_names_that_are_refused(name_of_profile, name):
    with pytest.raises(InvalidParameterValue) as caught:
        validate_name(name, profile(name_of_profile), False)
    assert caught.value.message == (
        "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
    )
    assert repr(name)[:9] in str(caught.value) or name == "x.fifo"


@pytest.mark.spec("NAM-1", "NAM-2")
def test_the_fifo_suffix_counts_towards_eighty_characters():
    validate_name("a" * 75 + ".fifo", profile("lake"), True)
    with pytest.raises(InvalidParameterValue):
        validate_name("a" * 76 + ".fifo", profile("lake"), True)


@pytest.mark.spec("NAM-1")
@pytest.mark.parametrize("name", ["orders", ".fifo", "orders.FIFO", "a.b.fifo", "orders.fifo\n"])
def test_fifo_names_that_are_refused(name):
    with pytest.raises(InvalidParameterValue) as caught:
        validate_name(name, profile("sqs"), True)
    assert "must end with .fifo suffix" in caught.value.message


@pytest.mark.spec("NAM-10", "ERR-7")
@pytest.mark.parametrize("name", ["1a", "a_b", "a" * 65, "-a", "", "a.fifo"])
def test_cmq_names_that_are_refused(name):
    with pytest.raises(InvalidParameterValue) as caught:
        validate_name(name, profile("cmq"), False)
    assert caught.value.cmq_code == 4000


@pytest.mark.spec("NAM-10")
@pytest.mark.parametrize("name", ["a", "A-1", "a" * 64])
def test_cmq_names_that_are_accepted(name):
    validate_name(name, "cmq", False)


@pytest.mark.spec("NAM-6", "NAM-7", "NAM-9")
def test_region_and_exact_name_make_the_hash():
    hashes = {name_hash(r, n) for r in ("r1", "r2") for n in ("Foo", "foo", "fo")}
    assert len(hashes) == 6
    assert all(re.fullmatch("[0-9a-f]{16}", h) for h in hashes)
    assert name_hash("ab", "c") != name_hash("a", "bc")
    assert name_hash("r1", "foo") == name_hash("r1", "foo")


@pytest.mark.spec("NAM-11")
def test_each_incarnation_of_a_name_has_its_own_key():
    one, two = new_key("r1", "foo"), new_key("r1", "foo")
    assert one != two
    assert one[:17] == two[:17] == name_hash("r1", "foo") + "-"
    assert re.fullmatch("[0-9a-f]{16}-[0-9a-f]{8}", one)
