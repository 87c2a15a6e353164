"""Receipt handles: queue key, shard, offset, lease id and a MAC, as digits and letters (RCP-9, RCP-15).

Each lease has its own MAC key. A Spark job that computes the handles of a lease gets no keys of other leases.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

import attrs

from lakequeue.errors import ReceiptHandleIsInvalid
from lakequeue.model.clock import MICROS

MAC_LENGTH = 32
LONGEST_RECEIPT = 43_200 * MICROS
"""Maximum life of a receipt in microseconds, with all extensions (VIS-9)."""

BETWEEN = "x"
"""Separates the parts of a handle. The character is not a hexadecimal digit."""
_TEXT = re.compile(
    rf"(?P<key>[0-9a-f]{{24}}){BETWEEN}(?P<shard>0|[1-9][0-9]{{0,8}}){BETWEEN}(?P<offset>0|[1-9][0-9]{{0,18}})"
    rf"{BETWEEN}(?P<lease_id>[0-9a-f]{{32}})[0-9a-f]{{{MAC_LENGTH}}}"
)


@attrs.frozen
class ReceiptHandle:
    """The receipt of one message. The lease id has 32 hex digits."""

    key: str
    shard: int
    offset: int
    lease_id: str


def new_lease_id() -> str:
    """Returns a new, unguessable id for a receive."""
    return secrets.token_hex(16)


def lease_key(handle_key: bytes, lease_id: str) -> str:
    """Returns the key that signs one lease's handles, in hex."""
    return hmac.new(handle_key, lease_id.encode(), hashlib.sha256).hexdigest()


def around(key: str, lease_id: str) -> tuple[str, str]:
    """Returns the constant parts of a lease's handles: before the shard number, and after the offset."""
    return f"{key.replace('-', '')}{BETWEEN}", f"{BETWEEN}{lease_id}"


class HandleSigner:
    """Signs the handles of a lease in a shard."""

    def __init__(self, key: str, shard: int, lease_id: str, handle_key: bytes) -> None:
        before, self._after = around(key, lease_id)
        self._before = f"{before}{shard}{BETWEEN}"
        self._key = lease_key(handle_key, lease_id)

    def sign(self, offset: int) -> str:
        plain = f"{self._before}{offset}{self._after}"
        return f"{plain}{hashlib.sha256((self._key + plain).encode()).hexdigest()[:MAC_LENGTH]}"


def encode(handle: ReceiptHandle, handle_key: bytes) -> str:
    """Returns the text of a handle. ``handle_key`` is the queue's secret."""
    return HandleSigner(handle.key, handle.shard, handle.lease_id, handle_key).sign(handle.offset)


def decode(text: str, key: str, handle_key: bytes) -> ReceiptHandle:
    """Decodes a handle. Raises ReceiptHandleIsInvalid unless the queue signed the text."""
    parts = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if parts is not None and parts["key"] == key.replace("-", ""):
        handle = ReceiptHandle(key, int(parts["shard"]), int(parts["offset"]), parts["lease_id"])
        if hmac.compare_digest(encode(handle, handle_key), text):
            return handle
    hint = "pass the receipt_handle that a receive of this queue returned, not the id of a message"
    if parts is not None and parts["key"] != key.replace("-", ""):
        hint = "it is of another queue, or of a deleted queue of this name"
    refusal = f'The input receipt handle "{text}" is not a valid receipt handle.'
    raise ReceiptHandleIsInvalid(refusal, hint=hint)
