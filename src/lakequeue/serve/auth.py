"""Who is asking, and what they may do."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Protocol

import attrs

from lakequeue.serve.faults import WireError


@attrs.frozen
class Request:
    """The head of a request, as it was signed.

    Attributes:
        path, query: as they came, still quoted.
        headers: in lower case; of a repeated one all values, joined by commas.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]


class Caller(Protocol):
    """Somebody who was let in."""

    @property
    def name(self) -> str:
        """What the access log calls them."""
        ...

    def may(self, action: str, queue: str | None) -> bool:
        """Whether they may do an action of SQS, on a queue or on none in particular."""
        ...

    def may_at_all(self, action: str) -> bool:
        """Whether there may be a queue on which they may do it."""
        ...


class Claim(Protocol):
    """What the head of a request says of who signed it."""

    @property
    def key(self) -> str | None:
        """Name of the key that they name; None if nobody has to sign."""
        ...

    def caller(self, body: bytes) -> Caller:
        """Who signed the request, now that its body is there.

        Raises:
            WireError: somebody else, or another request.
        """
        ...


class Access(Protocol):
    """The door."""

    def claim(self, request: Request, now: datetime) -> Claim:
        """Judges what can be judged of a signature before the body is there.

        Raises:
            WireError: there is none, or none of a key that is known, or it was not made lately.
        """
        ...

    def password(self, key_id: str, secret: str) -> Caller | None:
        """Who has this key and its secret, compared in constant time; None if that is nobody.

        A request without any comes with two empty texts.
        """
        ...


@attrs.frozen
class Anyone:
    """Everybody on this machine, where no file of keys is given; they may do everything."""

    name: str = "-"
    key: None = None

    def may(self, action: str, queue: str | None) -> bool:
        return True

    def may_at_all(self, action: str) -> bool:
        return True

    def caller(self, body: bytes) -> Caller:
        return self


def denied(caller: Caller, action: str, queue: str | None) -> WireError:
    """The refusal of what a caller may not do."""
    where = queue or "all queues"
    return WireError("AccessDeniedException", f"{caller.name} may not do {action} on {where}.", 403)


def by_password(access: Access, authorization: str) -> Caller | None:
    """Who a header ``Authorization`` names by HTTP Basic, with a key id and its secret; None if that is nobody."""
    key_id = secret = ""
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() == "basic":
        with suppress(ValueError, binascii.Error):
            key_id, _, secret = base64.b64decode(credentials.strip()).decode().partition(":")
    return access.password(key_id, secret)


class Open:
    """The door of a server without a file of keys."""

    def claim(self, request: Request, now: datetime) -> Claim:
        return Anyone()

    def password(self, key_id: str, secret: str) -> Caller | None:
        return Anyone()
