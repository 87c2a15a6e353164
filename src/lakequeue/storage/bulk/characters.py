"""Counts bodies with refused characters (SND-12).

Numpy scans each row group for suspicious bytes, and rows are checked only where it finds any.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_REFUSED = r"[\x00-\x08\x0B\x0C\x0E-\x1F\x{FFFE}\x{FFFF}]"
ALLOWED = r"[\t\n\r\x20-\x{D7FF}\x{E000}-\x{FFFD}\x{10000}-\x{10FFFF}]"
"""A regular expression of Arrow for a character that messages may have."""
_ALLOWED_CONTROLS = (0x09, 0x0A, 0x0D)
_FIRST_BYTE_OF_NONCHARACTERS = 0xEF


def count_refused(bodies: pa.StringArray) -> int:
    """Number of texts with control characters or noncharacters."""
    if not _suspicious(bodies):
        return 0
    return pc.sum(pc.match_substring_regex(bodies, _REFUSED)).as_py() or 0


def _suspicious(bodies: pa.StringArray) -> bool:
    _, offsets, data = bodies.buffers()
    if data is None:
        return False
    bounds = np.frombuffer(offsets, np.int32)[[bodies.offset, bodies.offset + len(bodies)]]
    text = np.frombuffer(data, np.uint8)[bounds[0] : bounds[1]]
    controls = np.count_nonzero(text < 0x20)
    allowed = sum(np.count_nonzero(text == code) for code in _ALLOWED_CONTROLS) if controls else 0
    return bool(controls != allowed or np.any(text == _FIRST_BYTE_OF_NONCHARACTERS))
