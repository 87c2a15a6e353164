"""Limits on request bodies and received messages: their size, their time to arrive, and their total memory."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
import attrs
from starlette.requests import ClientDisconnect, Request

from lakequeue.serve.connection import COMPLETE
from lakequeue.serve.errors import RETRY_SECONDS, RequestError

_Waiting = TypeVar("_Waiting")

MAX_BODY_BYTES = 13 * 2**18
"""Maximum bytes of a body: 1 MiB of messages, which encoding can triple, and 256 KiB of other fields."""
MAX_OTHER_BODY_BYTES = 2**18
"""Maximum bytes of the body of a request that sends no messages."""
BODY_TIMEOUT = 30.0
"""Maximum seconds that a client may take to send a body."""
MAX_TOTAL_BODY_BYTES = 256 * 2**20
"""Maximum number of bytes in the bodies of all current requests together."""
MAX_UNVERIFIED_KEY_BYTES = 64 * 2**20
"""Maximum bytes of all incomplete bodies that name the same key. Incomplete bodies cannot be verified."""
MAX_UNVERIFIED_BYTES = 128 * 2**20
"""Maximum number of bytes in all unverified bodies together."""
UNCOUNTED_BYTES = 64 * 2**10
"""Number of bytes of each body that no limit counts. Therefore, large requests never block small requests."""
MAX_ANSWER_BYTES = 256 * 2**20
"""Maximum bytes of received messages in memory. A message counts until its answer is sent."""
MAX_ANSWER_KEY_BYTES = 128 * 2**20
"""Maximum bytes of received messages in memory for one access key. A message counts until its answer is sent."""
MEMORY_FACTOR = 5
"""Bytes of memory for each byte of a message that is read: one byte as stored, and four bytes as text."""
ANSWER_TIMEOUT = 10.0
"""Maximum seconds that a receive waits for memory, or for its turn to claim messages."""
MAX_CLAIMED = 8
"""Maximum number of receives of one key that have claimed and wait for memory. Further receives do not claim."""


@attrs.define(eq=False)
class Counted:
    """A request whose bytes a ``MemoryBudget`` counts, in total and for the request's access key."""

    key: str | None
    counted: int = 0


class MemoryBudget:
    """Counts the bytes of current requests, in total and by key. Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.by_key: Counter[str | None] = Counter()

    @property
    def total(self) -> int:
        return sum(self.by_key.values())

    def count(self, one: Counted, size: int) -> None:
        """Sets the number of bytes that are counted for a request."""
        with self.lock:
            self.by_key[one.key] += size - one.counted
            one.counted = size
            if not self.by_key[one.key]:
                del self.by_key[one.key]


@attrs.define(eq=False)
class Body(Counted):
    """The body of a current request. Its bytes count for the request's key until the request is verified."""

    content: bytes = b""
    dropped: bool = False


class RequestBodies:
    """Reads bodies of at most ``max_bytes`` each. If memory is short, drops the oldest unverified bodies."""

    def __init__(self, max_bytes: int = MAX_BODY_BYTES) -> None:
        self._max_bytes = max_bytes
        self.budget = MemoryBudget()
        self._unverified: dict[Body, anyio.CancelScope] = {}  # bodies that are being read, the oldest first

    @asynccontextmanager
    async def read(
        self, http: Request, max_bytes: int | None = None, key: str | None = None
    ) -> AsyncIterator[Body]:
        """Reads a body, and yields it. The bytes of the body count until the block ends.

        Args:
            max_bytes: maximum size of this body, if below the maximum of the server.
            key: the key that the request names; None if requests need no signature.

        Raises:
            RequestError: the body is too large or too slow, or too many large bodies are being read.
        """
        body = Body(key)
        try:
            body.content = await self._content(http, min(max_bytes or self._max_bytes, self._max_bytes), body)
            yield body
        finally:
            self.budget.count(body, 0)

    def verified(self, body: Body) -> None:
        """Marks a body as verified. From then on, its bytes no longer count for a key."""
        size = body.counted
        self.budget.count(body, 0)
        body.key = None
        self.budget.count(body, size)

    async def _content(self, http: Request, max_bytes: int, body: Body) -> bytes:
        too_large = RequestError("RequestEntityTooLarge", f"This request may have {max_bytes} bytes at most.", 413)
        length = http.headers.get("content-length", "0")
        if not re.fullmatch("[0-9]{1,20}", length):
            raise RequestError("InvalidRequest", "The header Content-Length must be a number.")
        if int(length) > max_bytes:
            raise too_large
        if http.scope.get("state", {}).get(COMPLETE):
            # the body has arrived, and a time limit would cost more than reading it
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
                self._count(body, size - UNCOUNTED_BYTES)
            parts.append(part)
        return b"".join(parts)

    def _count(self, body: Body, size: int) -> None:
        self.budget.count(body, size)
        by_key = self.budget.by_key
        while body.key is not None and by_key[body.key] > MAX_UNVERIFIED_KEY_BYTES:
            self._drop(body.key)
        while (total := self.budget.total) > MAX_TOTAL_BODY_BYTES or total - by_key[None] > MAX_UNVERIFIED_BYTES:
            self._drop()

    def _drop(self, key: str | None = None) -> None:
        """Ends the oldest unverified request, of ``key`` if one is given. Raises RequestError if there is none."""
        oldest = next((body for body in self._unverified if body.counted and key in (None, body.key)), None)
        if oldest is None:
            raise _too_many()
        self.budget.count(oldest, 0)
        oldest.dropped = True
        self._unverified[oldest].cancel()


@attrs.define(eq=False)
class CountedAnswer(Counted):
    """Memory for the messages of a receive. ``gone`` is a future that ends if the client disconnects."""

    answers: CountedAnswers = attrs.field(kw_only=True)
    gone: asyncio.Future[None] | None = None

    def take(self, size: int) -> bool:
        return self.answers.take(self, size * MEMORY_FACTOR)

    async def wait(self, size: int) -> None:
        await self.answers.wait(self, size * MEMORY_FACTOR)

    def count(self, size: int) -> None:
        """Sets the number of bytes that are counted for the answer: 0 once the answer is sent."""
        self.answers.count(self, size)


class CountedAnswers:
    """Limits the memory of received messages. A message counts from its read until its answer is sent."""

    def __init__(self) -> None:
        self.budget = MemoryBudget()
        self._waiting: dict[asyncio.Future[None], tuple[CountedAnswer, int]] = {}  # the oldest first
        self._to_claim: dict[asyncio.Future[None], CountedAnswer] = {}  # answers that may not claim yet

    def of(self, key: str | None) -> CountedAnswer:
        """Creates an answer whose bytes are counted for a key. No bytes are counted yet."""
        return CountedAnswer(key, answers=self)

    def take(self, answer: CountedAnswer, size: int) -> bool:
        """Reserves memory for an answer. Returns False if memory is short, or another receive of the key waits."""
        with self.budget.lock:
            before = any(other.key == answer.key for other, _ in self._waiting.values())
            return not before and self._take(answer, size)

    async def wait(self, answer: CountedAnswer, size: int) -> None:
        """Waits for memory. Raises RequestError after ``ANSWER_TIMEOUT`` seconds, or ClientDisconnect."""
        await self._turn(self._waiting, answer, (answer, size))

    async def begin(self, answer: CountedAnswer) -> None:
        """Waits while ``MAX_CLAIMED`` receives of the key wait for memory. Raises the errors of ``wait``."""
        if len(self._waiting) >= MAX_CLAIMED and self._claimed()[answer.key] >= MAX_CLAIMED:
            await self._turn(self._to_claim, answer, answer)

    async def _turn(
        self, waiting: dict[asyncio.Future[None], _Waiting], answer: CountedAnswer, what: _Waiting
    ) -> None:
        turn = asyncio.get_running_loop().create_future()
        with self.budget.lock:
            waiting[turn] = what
        self._admit()
        try:
            ends = {turn} if answer.gone is None else {turn, answer.gone}
            await asyncio.wait(ends, timeout=ANSWER_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
        finally:
            with self.budget.lock:
                waiting.pop(turn, None)
            self._admit()  # the next in line
        if turn.done():
            return
        if answer.gone is not None and answer.gone.done():
            raise ClientDisconnect
        raise _too_many()

    def _claimed(self) -> Counter[str | None]:
        return Counter(answer.key for answer, _ in self._waiting.values())

    def count(self, answer: CountedAnswer, size: int) -> None:
        self.budget.count(answer, size)
        self._admit()

    def _admit(self) -> None:
        """Wakes receives for which there is memory. Among receives of one key, the longest wait ends first."""
        with self.budget.lock:
            full = set()
            for room, (answer, size) in list(self._waiting.items()):
                if answer.key not in full and self._take(answer, size):
                    del self._waiting[room]
                    room.set_result(None)
                else:
                    full.add(answer.key)
            claimed = self._claimed()
            for turn, answer in list(self._to_claim.items()):
                if claimed[answer.key] < MAX_CLAIMED or not self.budget.by_key[answer.key]:
                    claimed[answer.key] += 1
                    del self._to_claim[turn]
                    turn.set_result(None)

    def _take(self, answer: CountedAnswer, size: int) -> bool:
        key, total = self.budget.by_key[answer.key], self.budget.total
        most = MAX_ANSWER_BYTES if answer.key is None else MAX_ANSWER_KEY_BYTES
        # an answer larger than the whole limit waits until it is alone
        if (key and key + size > most) or (total and total + size > MAX_ANSWER_BYTES):
            return False
        self.budget.count(answer, size)
        return True


def _too_many() -> RequestError:
    what = "Too many large requests at a time; repeat it."
    return RequestError("ServiceUnavailable", what, 503, False, RETRY_SECONDS)
