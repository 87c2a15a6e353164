"""The bodies of requests: how large one may be, how long it may take, and what all of them may take together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import attrs
from starlette.requests import Request

from lakequeue.serve.faults import WireError

LARGEST_BODY = 13 * 2**18
"""Bytes of a body: a full batch of 1 MiB, which encoding may make three times as long, and a quarter more."""
LARGEST_OTHER = 2**18
"""Bytes of the body of a request that sends no messages."""
SLOWEST_BODY = 30.0
"""Seconds that a client has to send the body of a request."""
LARGEST_BODIES = 256 * 2**20
"""Bytes of the bodies of all requests that are under way."""
LARGEST_CLAIMED = 64 * 2**20
"""Those that name the same key, but whose signature is not verified yet: for that, all of a body is needed."""
LARGEST_UNVERIFIED = 128 * 2**20
"""The same of all keys."""
UNCOUNTED = 64 * 2**10
"""Bytes of each body that do not count: small requests go on beside any number of large ones."""


@attrs.define
class Body:
    """The body of a request that is under way.

    Attributes:
        key: name of the key that it is said to be signed with, until that is verified.
        counted: bytes of it that count.
    """

    key: str | None
    content: bytes = b""
    counted: int = 0


class Bodies:
    """Reads bodies, and counts them until their requests have ended.

    Args:
        largest: bytes of one at most.
    """

    def __init__(self, largest: int = LARGEST_BODY) -> None:
        self._largest = largest
        self._counted: Counter[str | None] = Counter()

    @asynccontextmanager
    async def read(self, http: Request, most: int | None = None, key: str | None = None) -> AsyncIterator[Body]:
        """The body of a request, for as long as the request is under way.

        Args:
            most: bytes of this body at most, if less than the server takes of any.
            key: name of the key that it is said to be signed with; None if it need not be.

        Raises:
            WireError: it is too large, does not come in time, or there are too many.
        """
        body = Body(key)
        try:
            body.content = await self._content(http, min(most or self._largest, self._largest), body)
            yield body
        finally:
            self._counted[body.key] -= body.counted

    def verified(self, body: Body) -> None:
        """The signature of a body is genuine."""
        self._counted[body.key] -= body.counted
        self._counted[None] += body.counted
        body.key = None

    async def _content(self, http: Request, most: int, body: Body) -> bytes:
        too_large = WireError("RequestEntityTooLarge", f"This request may have {most} bytes at most.", 413)
        length = http.headers.get("content-length", "0")
        if not re.fullmatch("[0-9]{1,20}", length):
            raise WireError("InvalidRequest", "The header Content-Length must be a number.")
        if int(length) > most:
            raise too_large
        parts, size = [], 0
        try:
            with anyio.fail_after(SLOWEST_BODY):
                async for part in http.stream():
                    size += len(part)
                    if size > most:
                        raise too_large
                    self._count(body, max(0, size - UNCOUNTED) - body.counted)
                    parts.append(part)
        except TimeoutError:
            raise WireError("RequestTimeout", "The body of the request did not arrive in time.", 408) from None
        return b"".join(parts)

    def _count(self, body: Body, size: int) -> None:
        body.counted += size
        self._counted[body.key] += size
        total = sum(self._counted.values())
        unverified = total - self._counted[None]
        if total > LARGEST_BODIES or (
            body.key is not None and (unverified > LARGEST_UNVERIFIED or self._counted[body.key] > LARGEST_CLAIMED)
        ):
            raise WireError("ServiceUnavailable", "Too many large requests at a time; repeat it.", 503, False)
