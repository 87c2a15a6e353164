"""Limits on request bodies: size of one, time to send it, and memory for all of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import attrs
from starlette.requests import Request

from lakequeue.serve.connection import COMPLETE
from lakequeue.serve.errors import RequestError

MAX_BODY_BYTES = 13 * 2**18
"""Bytes of one body: a full batch of 1 MiB, which encoding can make three times as long, plus a quarter."""
MAX_OTHER_BODY_BYTES = 2**18
"""Bytes of one body of a request that sends no messages."""
BODY_TIMEOUT = 30.0
"""Seconds that a client has to send a body."""
MAX_TOTAL_BODY_BYTES = 256 * 2**20
"""Bytes of the bodies of all current requests."""
MAX_UNVERIFIED_KEY_BYTES = 64 * 2**20
"""Bytes of bodies that name the same key, with signatures not yet verified; verifying takes the whole body."""
MAX_UNVERIFIED_BYTES = 128 * 2**20
"""Bytes of all bodies with signatures not yet verified."""
UNCOUNTED_BYTES = 64 * 2**10
"""Bytes of each body that do not count, so that small requests pass beside any number of large ones."""


@attrs.define(eq=False)
class Body:
    """The body of a current request.

    Attributes:
        key: key that the request names, until its signature is verified.
        counted: bytes that count towards the limits.
        dropped: whether it makes room for another one.
    """

    key: str | None
    content: bytes = b""
    counted: int = 0
    dropped: bool = False


class Bodies:
    """Reads bodies, and counts them until their requests end; the oldest unverified ones make room for others.

    Args:
        max_bytes: maximum size of one body.
    """

    def __init__(self, max_bytes: int = MAX_BODY_BYTES) -> None:
        self._max_bytes = max_bytes
        self._counted: Counter[str | None] = Counter()
        self._unverified: dict[Body, anyio.CancelScope] = {}  # those that are being read, the oldest first

    @asynccontextmanager
    async def read(
        self, http: Request, max_bytes: int | None = None, key: str | None = None
    ) -> AsyncIterator[Body]:
        """Reads a body and counts it until the context ends.

        Args:
            max_bytes: maximum size of this body, if below that of the server.
            key: key that the request names; None if it needs no signature.

        Raises:
            RequestError: the body is too large or too slow, or there are too many large ones.
        """
        body = Body(key)
        try:
            body.content = await self._content(http, min(max_bytes or self._max_bytes, self._max_bytes), body)
            yield body
        finally:
            self._counted[body.key] -= body.counted

    def verified(self, body: Body) -> None:
        """Marks the signature of a body as genuine."""
        self._counted[body.key] -= body.counted
        self._counted[None] += body.counted
        body.key = None

    async def _content(self, http: Request, max_bytes: int, body: Body) -> bytes:
        too_large = RequestError("RequestEntityTooLarge", f"This request may have {max_bytes} bytes at most.", 413)
        length = http.headers.get("content-length", "0")
        if not re.fullmatch("[0-9]{1,20}", length):
            raise RequestError("InvalidRequest", "The header Content-Length must be a number.")
        if int(length) > max_bytes:
            raise too_large
        if http.scope.get("state", {}).get(COMPLETE):
            # nothing to wait for: the time limit would cost more than all else
            return await self._parts(http, max_bytes, too_large, body)
        content, scope = b"", anyio.CancelScope(deadline=anyio.current_time() + BODY_TIMEOUT)
        try:
            if body.key is not None:
                self._unverified[body] = scope
            with scope:
                content = await self._parts(http, max_bytes, too_large, body)
        finally:
            self._unverified.pop(body, None)
        if body.dropped:
            raise _too_many()
        if scope.cancelled_caught:
            raise RequestError("RequestTimeout", "The body of the request did not arrive in time.", 408)
        return content

    async def _parts(self, http: Request, max_bytes: int, too_large: RequestError, body: Body) -> bytes:
        parts, size = [], 0
        async for part in http.stream():
            size += len(part)
            if size > max_bytes:
                raise too_large
            if size > UNCOUNTED_BYTES:
                self._count(body, size - UNCOUNTED_BYTES - body.counted)
            parts.append(part)
        return b"".join(parts)

    def _count(self, body: Body, size: int) -> None:
        body.counted += size
        self._counted[body.key] += size
        while body.key is not None and self._counted[body.key] > MAX_UNVERIFIED_KEY_BYTES:
            self._drop(body.key)
        while (total := sum(self._counted.values())) > MAX_TOTAL_BODY_BYTES or (
            total - self._counted[None] > MAX_UNVERIFIED_BYTES
        ):
            self._drop()

    def _drop(self, key: str | None = None) -> None:
        """Ends the oldest request whose body is being read and not verified, of a key or of all."""
        oldest = next((body for body in self._unverified if body.counted and key in (None, body.key)), None)
        if oldest is None:
            raise _too_many()
        self._counted[oldest.key] -= oldest.counted
        oldest.counted, oldest.dropped = 0, True
        self._unverified[oldest].cancel()


def _too_many() -> RequestError:
    return RequestError("ServiceUnavailable", "Too many large requests at a time; repeat it.", 503, False)
