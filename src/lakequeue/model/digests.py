"""Digests of messages: MD5 of bodies and attributes, and the deduplication id that a body gives."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping


def md5_of_body(body: str) -> str:
    """MD5 of the UTF-8 bytes of a body, in hex (MSA-1)."""
    return hashlib.md5(body.encode(), usedforsecurity=False).hexdigest()


def md5_of_attributes(attributes: Mapping[str, tuple[str, str | bytes]]) -> str | None:
    """MD5 over names, types and values, sorted by name (MSA-2); None if there are none."""
    if not attributes:
        return None
    digest = hashlib.md5(usedforsecurity=False)
    for name, (type_, value) in sorted(attributes.items()):
        for part in (name.encode(), type_.encode()):
            digest.update(len(part).to_bytes(4, "big") + part)
        content = as_bytes(value)
        transport = b"\x02" if type_.startswith("Binary") else b"\x01"
        digest.update(transport + len(content).to_bytes(4, "big") + content)
    return digest.hexdigest()


def content_dedup_id(body: str) -> str:
    """The deduplication id of content-based deduplication: SHA-256 of the body alone (DDP-4, MSA-6)."""
    return hashlib.sha256(body.encode()).hexdigest()


def as_bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()
