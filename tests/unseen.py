"""Random cases that nobody has seen: others for each change of the code, the same for whoever repeats them."""

from __future__ import annotations

import zlib
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src"


def first_seed() -> int:
    """Returns a seed that depends on the source code. A million seeds from there on belong to this code alone."""
    code = b"".join(path.read_bytes() for path in sorted(SOURCES.rglob("*.py")))
    return 10**7 + 10**6 * (zlib.crc32(code) % 10**6)
