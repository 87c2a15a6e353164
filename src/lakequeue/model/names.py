"""Names of queues, queue keys, and sequence numbers of messages."""

from __future__ import annotations

import hashlib
import re
import reprlib
import secrets
import zlib

from lakequeue.errors import InvalidParameterValue, coded_for
from lakequeue.model.profiles import Profile
from lakequeue.model.profiles import profile as profile_of

_SQS_STANDARD = re.compile(r"[A-Za-z0-9_-]{1,80}")
_SQS_FIFO = re.compile(r"[A-Za-z0-9_-]{1,75}\.fifo")
_CMQ = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")

_SQS_STANDARD_RULE = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
_SQS_FIFO_RULE = (
    "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, "
    "must end with .fifo suffix and be 1 to 80 in length"
)
_CMQ_RULE = "Can only include letters, digits and hyphens, and starts with a letter. 1 to 64 in length"


def shard_of_group(group_id: str, shards: int) -> int:
    """Returns a message group's shard: ``crc32`` of the id, modulo the number of shards, as Spark computes it."""
    return zlib.crc32(group_id.encode()) % shards


def validate_name(name: str, profile: Profile | str, fifo: bool) -> None:
    """Checks the name of a new queue. Raises InvalidParameterValue (NAM-1, NAM-2, NAM-4, NAM-5, NAM-10)."""
    rules = profile_of(profile)
    if rules.name_rule == "cmq":
        pattern, rule = _CMQ, _CMQ_RULE
    elif fifo:
        pattern, rule = _SQS_FIFO, _SQS_FIFO_RULE
    else:
        pattern, rule = _SQS_STANDARD, _SQS_STANDARD_RULE
    if not isinstance(name, str) or not pattern.fullmatch(name):
        with coded_for(rules.name):
            unmarked = isinstance(name, str) and name.endswith(".fifo") and not fifo
            unlike = f"{reprlib.repr(name)} is not such a name"
            hint = "a name that ends in .fifo needs fifo=True (--fifo)" if unmarked else unlike
            raise InvalidParameterValue(rule, hint=hint)


def is_name(name: object) -> bool:
    """Returns True if any kind of queue allows this name."""
    patterns = (_SQS_STANDARD, _SQS_FIFO, _CMQ)
    return isinstance(name, str) and any(each.fullmatch(name) for each in patterns)


def name_hash(region: str, name: str) -> str:
    """Hashes region and name, both case-sensitive (NAM-6, NAM-9). Returns 16 hex digits."""
    return hashlib.sha256(f"{region}\0{name}".encode()).hexdigest()[:16]


def new_key(region: str, name: str) -> str:
    """Returns a random key for a new queue. Queues of the same name never share a key."""
    return f"{name_hash(region, name)}-{secrets.token_hex(4)}"


_BASE = 10**19
_SHARDS = 1_024
_SPREAD = 256
_STEP = 37


def sequence_number(shard: int, offset: int) -> str:
    """Returns 20 digits, unique in a queue. The number grows with the offset, with gaps (SEQ-1, SEQ-3, SEQ-6)."""
    place = offset * _SHARDS + shard
    return str(_BASE + place * _SPREAD + offset * _STEP % _SPREAD)
