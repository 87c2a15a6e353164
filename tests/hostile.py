"""Conditions that do harm, for the tests of those who judge them."""

from __future__ import annotations

from random import Random

SLOW = "(" + " OR ".join(f"regexp_matches(body, 'x[xy]{{{500 + n}}}z')" for n in range(200)) + ")"
"""Takes a minute for `SLOW_BODY`, and no time for a short body."""
SLOW_BODY = "".join(Random(0).choices("xy", k=100_000))
