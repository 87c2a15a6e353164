"""Who is asking, and what they may do."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol

import attrs


@attrs.frozen
class Request:
    """A request as it was signed.

    Attributes:
        path, query: as they came, still quoted.
        headers: in lower case; of a repeated one all values, joined by commas.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes


class Caller(Protocol):
    """Somebody who was let in."""

    @property
    def name(self) -> str:
        """What the access log calls them."""
        ...

    def may(self, action: str, queue: str | None) -> bool:
        """Whether they may do an action of SQS, on a queue or on none in particular."""
        ...


class Access(Protocol):
    """The door."""

    def caller(self, request: Request, now: datetime) -> Caller:
        """Who signed a request.

        Raises:
            WireError: nobody who is known, or not this request, or not lately.
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

    def may(self, action: str, queue: str | None) -> bool:
        return True


class Open:
    """The door of a server without a file of keys."""

    def caller(self, request: Request, now: datetime) -> Caller:
        return Anyone()

    def password(self, key_id: str, secret: str) -> Caller | None:
        return Anyone()
