"""The types of keyword arguments name the attributes that there are."""

from __future__ import annotations

from lakequeue.model import attributes
from lakequeue.model.attribute_values import ChangeableAttributes, NewQueueAttributes

FIXED = {"profile", "Profile", "FifoQueue", "priorities", "Priorities"}
POLICY = {"dead_letter_queue", "max_receive_count"}
"""Another form of ``redrive_policy``."""


def test_every_attribute_that_can_be_set_is_typed() -> None:
    known = set(attributes._BY_CMQ_NAME)
    assert set(NewQueueAttributes.__annotations__) | {"fifo"} == known | POLICY
    assert set(ChangeableAttributes.__annotations__) == (known | POLICY) - FIXED - {"fifo"}
