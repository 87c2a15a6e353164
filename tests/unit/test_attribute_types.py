"""The types of keyword arguments name the attributes that there are."""

from __future__ import annotations

from lakequeue.model import attributes
from lakequeue.model.attribute_values import ChangeableAttributes, NewQueueAttributes

POLICY = {"dead_letter_queue", "max_receive_count"}
"""Another form of ``redrive_policy``."""


def test_every_attribute_that_can_be_set_is_typed() -> None:
    known = attributes._BY_CMQ_NAME
    typed = {**NewQueueAttributes.__annotations__, "fifo": bool}
    missing = [
        f"    {name}: {'...' if name == known[name].field else 'Any'}" for name in known if name not in typed
    ]
    assert typed.keys() == known.keys() | POLICY, "\n".join(["src/lakequeue/model/attribute_values.py:", *missing])
    fixed = {name for name, each in known.items() if each.fixed or each.field == "fifo"}
    assert ChangeableAttributes.__annotations__.keys() == typed.keys() - fixed
