"""Names that only the wire has: those of SQS, and of attributes as SQS clients see them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from botocore.model import ListShape, MapShape, Shape, StructureShape

from lakequeue.model.attributes import ATTRIBUTE_NAMES
from lakequeue.model.redrive_policies import MEMBERS
from lakequeue.serve.sqs.model import operations

IN_PYTHON = {"AWSTraceHeader", "RedrivePolicy", "RedriveAllowPolicy", "SenderId"}
"""Names that Python has too: a system attribute that callers give by this name, and classes."""


def _names(shape: Shape) -> Iterator[str]:
    match shape:
        case StructureShape():
            for name, member in shape.members.items():
                yield name
                yield from _names(member)
        case ListShape():
            yield from _names(shape.member)
        case MapShape():
            yield from _names(shape.key)
    yield from getattr(shape, "enum", ())


_FOUND = {name for each in operations().values() if each.input_shape for name in _names(each.input_shape)}
_FOUND |= {*ATTRIBUTE_NAMES.values(), *MEMBERS.values(), "RewindTime", "PollingWaitSeconds"}
WIRE_NAMES = re.compile(
    rf"\b({'|'.join(name for name in sorted(_FOUND - IN_PYTHON) if re.search('[a-z][A-Z]', name))})\b"
)
