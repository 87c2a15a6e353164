"""Sequence numbers of FIFO messages."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakequeue.model.names import sequence_number

shards = st.integers(0, 1_023)
offsets = st.integers(0, 10**14)


@pytest.mark.spec("SEQ-1")
@given(shards, offsets)
def test_a_number_is_large_and_has_twenty_digits(shard, offset):
    number = sequence_number(shard, offset)
    assert len(number) == 20 and number.isdigit() and int(number) > 10**18


@pytest.mark.spec("SEQ-1", "SEQ-3")
@given(shards, offsets)
def test_neighbours_ascend_by_varying_steps(shard, offset):
    numbers = [sequence_number(shard, offset + n) for n in range(20)]
    steps = {int(b) - int(a) for a, b in pairwise(numbers)}
    assert min(steps) > 1 and len(steps) > 1
    assert numbers == sorted(numbers)  # as texts too


@pytest.mark.spec("SEQ-3", "SEQ-6")
@given(shards, offsets, shards, offsets)
def test_numbers_follow_the_offset_and_never_repeat(shard, offset, other_shard, other_offset):
    here, there = int(sequence_number(shard, offset)), int(sequence_number(other_shard, other_offset))
    assert (here == there) == ((shard, offset) == (other_shard, other_offset))
    if offset != other_offset:
        assert (here < there) == (offset < other_offset)


@pytest.mark.spec("SEQ-6")
def test_the_numbers_of_stored_messages_stay_what_they_are():
    assert sequence_number(0, 0) == "10000000000000000000"
    assert sequence_number(0, 1) == "10000000000000262181"
    assert sequence_number(3, 7) == "10000000000001835779"
