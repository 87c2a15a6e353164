"""The requests of S3 that a queue makes, answered from memory: what moto does, in a tenth of its time.

moto answers 300 requests a second, fewer than four processes make, so a benchmark would measure moto.
``tests/objectstore/test_memory_store.py`` compares the answers.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable
from datetime import datetime
from email.utils import format_datetime
from typing import Any
from urllib.parse import parse_qs
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import attrs

from lakequeue.model.clock import SystemClock

Start = Callable[..., Any]
PAGE = 1000


@attrs.frozen
class _Object:
    data: bytes
    etag: str
    modified: datetime


class MemoryStore:
    """A WSGI application with one bucket; answers one request at a time."""

    def __init__(self) -> None:
        self._objects: dict[str, _Object] = {}
        self._names: list[str] = []
        """Sorted."""

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        name = environ["PATH_INFO"].encode("latin-1").decode().strip("/").partition("/")[2]
        query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        method = environ["REQUEST_METHOD"]
        if method == "PUT" and name and not query and "HTTP_X_AMZ_COPY_SOURCE" not in environ:
            return self._put(name, environ, start)
        if method in ("GET", "HEAD") and name:
            return self._get(name, environ, start)
        if method == "DELETE" and name:
            self._remove(name)
            return _answer(start, "204 No Content")
        if method == "GET" and query.get("list-type") == ["2"]:
            return self._list({key: values[0] for key, values in query.items()}, start)
        if method == "POST" and "delete" in query:
            root = ElementTree.fromstring(environ["wsgi.input"].read())
            names = [element.text or "" for element in root.iter() if element.tag.endswith("Key")]
            for name in names:
                self._remove(name)
            deleted = "".join(f"<Deleted><Key>{escape(name)}</Key></Deleted>" for name in names)
            return _answer(start, "200 OK", f"<DeleteResult>{deleted}</DeleteResult>".encode())
        if method == "PUT" and not name:  # the bucket
            return _answer(start, "200 OK")
        return _error(start, "501 Not Implemented", "NotImplemented")

    def _put(self, name: str, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        there = self._objects.get(name)
        wanted = environ.get("HTTP_IF_MATCH")
        if (environ.get("HTTP_IF_NONE_MATCH") == "*" and there) or (
            wanted and (not there or there.etag != wanted)
        ):
            return _error(start, "412 Precondition Failed", "PreconditionFailed")
        data = environ["wsgi.input"].read()
        etag = f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
        if there is None:
            self._names.insert(bisect_left(self._names, name), name)
        self._objects[name] = _Object(data, etag, SystemClock().now())
        return _answer(start, "200 OK", headers=[("ETag", etag)])

    def _get(self, name: str, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        found = self._objects.get(name)
        if found is None:
            return _error(start, "404 Not Found", "NoSuchKey")
        headers = [
            ("ETag", found.etag),
            ("Last-Modified", format_datetime(found.modified, usegmt=True)),
            ("Accept-Ranges", "bytes"),
        ]
        if environ["REQUEST_METHOD"] == "HEAD":
            return _answer(start, "200 OK", headers=[*headers, ("Content-Length", str(len(found.data)))])
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", environ.get("HTTP_RANGE", ""))
        if asked is None:
            return _answer(start, "200 OK", found.data, headers)
        size = len(found.data)
        first, last = (int(part) if part else None for part in asked.groups())
        begin, end = (size - (last or 0), size) if first is None else (first, size if last is None else last + 1)
        begin, end = max(begin, 0), min(end, size)
        if begin >= size:
            return _error(start, "416 Requested Range Not Satisfiable", "InvalidRange")
        span = ("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        return _answer(start, "206 Partial Content", found.data[begin:end], [*headers, span])

    def _remove(self, name: str) -> None:
        if self._objects.pop(name, None) is not None:
            del self._names[bisect_left(self._names, name)]

    def _list(self, query: dict[str, str], start: Start) -> Iterable[bytes]:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after", "")
        begin = bisect_left(self._names, max(prefix, after + "\0" if after else ""))
        contents, folders, token, last = [], dict[str, None](), "", ""
        for name in itertools.islice(self._names, begin, None):
            if not name.startswith(prefix):
                break
            rest, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
            folder = prefix + rest + delimiter if found else None
            if folder is None or folder not in folders:
                if len(contents) + len(folders) == PAGE:
                    token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>"
                    break
                if folder is None:
                    contents.append(self._entry(name))
                else:
                    folders[folder] = None
            last = name
        common = "".join(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in folders)
        return _answer(
            start,
            "200 OK",
            f"<ListBucketResult><IsTruncated>{str(bool(token)).lower()}</IsTruncated>{token}"
            f"{''.join(contents)}{common}</ListBucketResult>".encode(),
        )

    def _entry(self, name: str) -> str:
        one = self._objects[name]
        return (
            f"<Contents><Key>{escape(name)}</Key><LastModified>{one.modified.isoformat()}</LastModified>"
            f"<ETag>{escape(one.etag)}</ETag><Size>{len(one.data)}</Size></Contents>"
        )


def _answer(
    start: Start, status: str, body: bytes = b"", headers: Iterable[tuple[str, str]] = ()
) -> Iterable[bytes]:
    headers = [*headers]
    if not any(name == "Content-Length" for name, _ in headers):
        headers.append(("Content-Length", str(len(body))))
    start(status, headers)
    return [body]


def _error(start: Start, status: str, code: str) -> Iterable[bytes]:
    return _answer(start, status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())
