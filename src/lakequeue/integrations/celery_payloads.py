"""Parses and checks Celery messages. Checks are needed because any program may send to a queue."""

from __future__ import annotations

import base64
import bz2
import lzma
import math
import re
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from itertools import islice
from typing import Any, TypeAlias

from celery.utils.time import maybe_iso8601
from kombu import compression
from kombu.serialization import loads as decode
from kombu.transport import virtual
from kombu.utils.json import dumps, loads

from lakequeue import Message

_LARGEST = 64 * 2**20
_MOST = 1_000_000
"""Maximum lists, objects and elements in decompressed JSON: 64 MiB of ``[],`` would take 1.5 GB of memory."""
_ELEMENT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|([\[{,])', re.DOTALL)
"""Matches JSON strings, and ``[``, ``{`` or ``,`` outside of strings. The group captures only these characters."""

_DECOMPRESSORS: dict[Any, Callable[[], Any]] = {
    bz2.decompress: bz2.BZ2Decompressor,
    lzma.decompress: lambda: lzma.LZMADecompressor(memlimit=128 * 2**20),
    zlib.decompress: zlib.decompressobj,
}
"""Maps kombu's decompressing functions to classes that decompress in parts, so that the output can be limited."""
if zstd := getattr(compression, "zstd", None):
    _DECOMPRESSORS[zstd.decompress] = zstd.ZstdDecompressor
if getattr(compression, "brotli", None):

    class _Brotli:
        """Decompresses a brotli body byte by byte, because the brotli library cannot limit its output."""

        eof = False

        def decompress(self, body: bytes, most: int) -> bytes:
            whole, decompressor = bytearray(), compression.brotli.Decompressor()
            for byte in body:
                whole += decompressor.process(bytes([byte]))
                if len(whole) > most:
                    return b""
            self.eof = decompressor.is_finished()
            return bytes(whole)

    _DECOMPRESSORS[compression.brotli.decompress] = _Brotli
_Check: TypeAlias = Callable[[Any], bool]
_Table: TypeAlias = Mapping[str, tuple[_Check, str]]


def _is_text(found: object) -> bool:
    return isinstance(found, str) and not re.search("[\ud800-\udfff]", found)


def _is_number(found: object) -> bool:
    return isinstance(found, int | float) and math.isfinite(found) and found >= 0


def _is_count(found: object) -> bool:
    return isinstance(found, int) and not isinstance(found, bool) and found >= 0


def _is_flag(found: object) -> bool:
    return found in (False, True)


def _is_task(found: object) -> bool:
    if not (isinstance(found, dict) and isinstance(found.get("task"), str)):
        return False
    if not all(isinstance(found.get(name, kind()), kind) for name, kind in _PARTS.items()):
        return False
    options = found.get("options", {})
    return all(check(options[name]) for name, check in _OPTIONS.items() if options.get(name) is not None)


def _complete(found: dict[str, Any]) -> bool:
    lacking = _PARTS.keys() - found.keys()
    found.update((name, _PARTS[name]()) for name in lacking)
    return bool(lacking)


def _is_time(found: object) -> bool:
    """Returns True for an empty text, or a time that is in the range of datetime in every time zone."""
    instant = maybe_iso8601(found) if isinstance(found, str) else None
    return found == "" or (instant is not None and 1 < instant.year < 9999)


def _each(check: _Check) -> _Check:
    return lambda found: isinstance(found, list) and all(map(check, found))


_FOLLOW = "callbacks", "chain", "errbacks"
_PARTS: Mapping[str, type] = {"args": list, "kwargs": dict, "options": dict}
_OPTIONS: Mapping[str, _Check] = {
    "chord": lambda found: isinstance(found, dict),
    "group_id": _is_text,
    "task_id": lambda found: _is_name(found),
}
"""Checks of those options of a follow-up task that Celery reads after a failure of the task."""
_TASK: _Table = {
    **dict.fromkeys(("argsrepr", "kwargsrepr", "group", "lang", "meth", "origin"), (_is_text, "a text")),
    **dict.fromkeys(("parent_id", "root_id", "shadow", "taskset"), (_is_text, "a text")),
    **dict.fromkeys(("eta", "expires"), (_is_time, "a time")),
    **dict.fromkeys(("group_index", "replaced_task_nesting", "retries"), (_is_count, "a whole number")),
    **dict.fromkeys(("ignore_result", "utc"), (_is_flag, "a truth value")),
    **dict.fromkeys(_FOLLOW, (_each(_is_task), "a list of tasks")),
    "chord": (_is_task, "a task"),
    "children": (_each(lambda _: False), "an empty list"),
    "groups": (_each(_is_text), "a list of texts"),
    "stamped_headers": (_each(_is_text), "a list of texts"),
    "stamps": (lambda found: isinstance(found, dict), "an object"),
    "timelimit": (
        lambda found: _each(lambda each: each is None or _is_number(each))(found) and len(found) == 2,
        "a pair of numbers",
    ),
}
"""Checks of those fields of a task that a Celery worker reads in its main process."""
_PROPERTIES: _Table = {
    **dict.fromkeys(("correlation_id", "reply_to"), (_is_text, "a text")),
    "priority": (_is_number, "a number"),
}
_DELIVERY: _Table = dict.fromkeys(("exchange", "routing_key"), (_is_text, "a text"))


class Malformed(ValueError):
    """Raised for a message that kombu or Celery cannot read."""


def payload_of(message: Message) -> dict[str, Any]:
    """Parses and checks a kombu message. Raises Malformed with a text that names the problem."""
    payload = envelope_of(message)
    checked(payload)
    return payload


def envelope_of(message: Message) -> dict[str, Any]:
    """Parses and checks a kombu message, except its body, which may be compressed. Raises Malformed."""
    with _malformed():
        payload: dict[str, Any] = _loaded(message.body)
        _need(isinstance(payload, dict), "it is not an object")
        _member(payload, "headers")
        properties = _member(payload, "properties")
        _need(isinstance(payload["body"], str), "its body is not a text")
        _check(_PROPERTIES, properties)
        _check(_DELIVERY, _member(properties, "delivery_info"))
        types = payload.get("content-type"), payload.get("content-encoding"), properties.get("body_encoding")
        _need(all(isinstance(each, str | None) for each in types), "its content-type or an encoding is not a text")
        eta_of(payload)
    return payload


def is_compressed(payload: dict[str, Any]) -> bool:
    return bool(payload["headers"].get("compression"))


def checked(payload: dict[str, Any]) -> None:
    """Decodes and checks the body in ``payload``. Decompresses a compressed body in place. Raises Malformed."""
    with _malformed():
        headers, properties, body = payload["headers"], payload["properties"], payload["body"]
        kind, encoding = payload.get("content-type"), payload.get("content-encoding")
        coding = properties.get("body_encoding")
        if coding and coding.lower() != "utf-8":
            body = virtual.Channel.codecs[coding].decode(body)
        if is_compressed(payload):
            body = _decompressed(body if isinstance(body, bytes) else body.encode(), headers.pop("compression"))
            payload["body"], properties["body_encoding"] = body, None
            _need(kind != "application/json" or _is_small(body), f"its body has more than {_MOST:,} elements")
        found: Any = decode(body, kind, encoding, accept={kind}) if kind == "application/json" else ([], {}, None)
        first = found if isinstance(found, dict) else {}  # protocol 1 has the whole task in its body
        task = headers if "task" in headers else first
        if "task" in task:
            _need(
                all(map(_is_name, (task.get("task"), task.get("id")))),
                "its task or id is not a printable text of less than 256 characters",
            )
            _need(kind not in (None, "application/data"), "its body is not encoded as a task")
            args, kwargs, embedded = (first.get("args", []), first.get("kwargs", {}), None) if first else found
            _need(isinstance(args, list) and isinstance(kwargs, dict), "its body lacks the arguments")
            _need(isinstance(embedded, dict | None), "the third part of its body is not an object")
            for each in (headers, first, embedded or {}):
                _check(_TASK, each)
            follow = [task for part in (first, embedded or {}) for name in _FOLLOW for task in part.get(name, ())]
            if [task for task in follow if _complete(task)]:
                payload["body"], properties["body_encoding"] = dumps(found).encode(), None
                payload["content-encoding"] = "utf-8"


def _check(table: _Table, found: dict[str, Any]) -> None:
    """Checks the fields that ``table`` names. Raises Malformed for a wrong field, and removes null fields."""
    for name in table.keys() & found.keys():
        if found[name] is None:
            del found[name]
        else:
            check, kind = table[name]
            _need(check(found[name]), f"its {name} is not {kind}")


def _decompressed(body: bytes, kind: Any) -> bytes:
    """Decompresses a body as kombu does. Raises Malformed if the result is larger than ``_LARGEST`` bytes."""
    decompressor = _DECOMPRESSORS[compression.get_decoder(kind)]()
    whole: bytes = decompressor.decompress(body, _LARGEST)
    _need(decompressor.eof, f"its compressed body is not complete, or larger than {_LARGEST >> 20} MiB")
    return whole


def _is_small(body: bytes) -> bool:
    elements = (found for found in _ELEMENT.finditer(body) if found[1])
    return next(islice(elements, _MOST, None), None) is None


@contextmanager
def _malformed() -> Iterator[None]:
    try:
        yield
    except Malformed:
        raise
    except KeyError as error:
        raise Malformed(f"{error} is missing or unknown") from None
    except Exception as error:  # a decompressor may raise any error
        raise Malformed(f"it cannot be decoded ({type(error).__name__})") from None


def _loaded(text: str) -> Any:
    """Parses a text of JSON, or of JSON in base64, which kombu sends to SQS."""
    try:
        return loads(text)
    except ValueError:
        return loads(base64.b64decode(text, validate=True).decode())


def _member(whole: dict[str, Any], name: str) -> dict[str, Any]:
    if whole.get(name) is None:
        whole[name] = {}
    found: dict[str, Any] = whole[name]
    _need(isinstance(found, dict), f"its {name} is not an object")
    return found


def _is_name(found: object) -> bool:
    """Returns True for a task's name or id. Other values crash a worker that has a result store."""
    return isinstance(found, str) and len(found) < 256 and found.isprintable()


def _need(true: bool, problem: str) -> None:
    if not true:
        raise Malformed(problem)


def mark_delivery(payload: dict[str, Any], message: Message) -> str:
    """Replaces a message's delivery tag, which copies of the message share. Returns the new tag."""
    properties = payload["properties"]
    properties["delivery_info"]["redelivered"] = message.receive_count > 1
    properties["delivery_info"].pop("consumer_tag", None)  # the tag by which kombu acknowledges
    properties["delivery_tag"] = uuid.uuid4().hex
    return str(properties["delivery_tag"])


def eta_of(message: dict[str, Any]) -> datetime | None:
    """Returns the instant at which a task is to run; None if the task has no ETA."""
    instant: datetime | None = maybe_iso8601(message["headers"].get("eta"))
    if instant is None:
        return None
    return instant if instant.tzinfo else instant.replace(tzinfo=timezone.utc)
