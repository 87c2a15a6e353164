"""Authentication of requests, and permissions of callers."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Protocol

import attrs

from lakequeue.serve.errors import RequestError

GUESS_SECONDS = 60.0
MAX_GUESSES = 10
"""Maximum number of wrong secrets that one address may try in ``GUESS_SECONDS``."""
MAX_GUESSERS = 10_000
"""Maximum number of addresses whose wrong secrets are remembered."""
BASIC_CHALLENGE = {"WWW-Authenticate": 'Basic realm="lakequeue", charset="UTF-8"'}
"""Header of a 401 response, which asks the client for a key id and a secret."""


@attrs.frozen
class RequestHead:
    """The signed head of a request. The path is still percent-encoded, and header names are in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]


class Caller(Protocol):
    """An authenticated client."""

    @property
    def name(self) -> str:
        """Name of the caller in the access log."""

    @property
    def key(self) -> str | None:
        """Id of the access key; None on a server without keys."""

    def may(self, action: str, queue: str | None) -> bool:
        """Returns True if the caller may do an SQS action. ``queue`` is None for an action on no single queue."""

    def may_on_any_queue(self, action: str) -> bool:
        """Returns True if the caller may do the action on at least one name of a queue, existing or not."""


class PendingAuthentication(Protocol):
    """A request whose head has been checked. Its signature is verified when the whole body has arrived."""

    @property
    def key(self) -> str | None:
        """Id of the access key in the request's head; None if the server needs no signatures."""

    def covers(self, header: str) -> bool:
        """Returns True if the request's signature covers a header. The header's name must be in lower case."""

    def verify(self, body: bytes) -> Caller:
        """Verifies the signature, and returns the caller. Raises RequestError for a wrong signature."""


class Authenticator(Protocol):
    def check_head(self, head: RequestHead, now: datetime) -> PendingAuthentication:
        """Checks the head of a request. Raises RequestError if signature, key or date is missing or wrong."""

    def check_password(self, key_id: str, secret: str) -> Caller | None:
        """Returns the caller with this key id and secret; None if they are wrong. Compares in constant time."""


@attrs.frozen
class AnonymousCaller:
    name: str = "-"
    key: None = None

    def may(self, action: str, queue: str | None) -> bool:
        return True

    def may_on_any_queue(self, action: str) -> bool:
        return True

    def covers(self, header: str) -> bool:
        return True

    def verify(self, body: bytes) -> Caller:
        return self


class NoAuthentication:
    def check_head(self, head: RequestHead, now: datetime) -> PendingAuthentication:
        return AnonymousCaller()

    def check_password(self, key_id: str, secret: str) -> Caller | None:
        return AnonymousCaller()


def access_denied(caller: Caller, action: str, queue: str | None) -> RequestError:
    where = queue or "all queues"
    return RequestError("AccessDeniedException", f"{caller.name} may not do {action} on {where}.", 403)


def require(caller: Caller, action: str, queue: str | None) -> None:
    """Raises RequestError if the caller may not do the action on ``queue`` or, for None, on all queues."""
    if not caller.may(action, queue):
        raise access_denied(caller, action, queue)


class BasicAuthentication:
    """Authenticates by HTTP Basic. Blocks an address after too many wrong secrets. ``now`` returns seconds."""

    def __init__(self, authenticator: Authenticator, now: Callable[[], float] = time.monotonic) -> None:
        self._authenticator = authenticator
        self._now = now
        self._failures: dict[str, list[float]] = {}  # by address, the latest last

    def caller(self, address: str, authorization: str) -> Caller:
        """Returns the caller. Raises RequestError 401 for wrong credentials, 429 after too many wrong secrets."""
        key_id = secret = ""
        scheme, _, credentials = authorization.partition(" ")
        if scheme.lower() == "basic":
            with suppress(ValueError, binascii.Error):
                key_id, _, secret = base64.b64decode(credentials.strip()).decode().partition(":")
        recent = [at for at in self._failures.get(address, ()) if at > self._now() - GUESS_SECONDS]
        if key_id and len(recent) >= MAX_GUESSES:
            raise RequestError("TooManyRequests", "Too many wrong secrets; wait a minute.", 429)
        caller = self._authenticator.check_password(key_id, secret)
        if caller is not None:
            return caller
        if key_id:
            self._failures.pop(address, None)
            self._failures[address] = [*recent, self._now()]
            if len(self._failures) > MAX_GUESSERS:
                del self._failures[next(iter(self._failures))]
        raise RequestError("AccessDeniedException", "An access key id and its secret are needed.", 401)
