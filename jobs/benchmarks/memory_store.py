"""An S3 server in memory for the requests that a queue makes: like moto, but much faster.

moto answers 300 requests a second, fewer than four processes make, and a server with a thread for each client
pauses for 0.1 s now and then, so a benchmark would measure the server. ``python memory_store.py`` serves one
bucket, ``lake``, and prints its port. ``tests/objectstore/test_memory_store.py`` compares the answers with moto's.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import re
import socket
import xml.etree.ElementTree as ET
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from email.utils import format_datetime
from urllib.parse import parse_qs, unquote
from uuid import uuid4
from xml.sax.saxutils import escape

import attrs
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from lakequeue.model.clock import SystemClock

CONTROL = "/__control__"
"""GET: number of requests by method. POST: sets the delay in seconds and resets the count."""
PAGE = 1000


@attrs.frozen
class _Object:
    data: bytes
    etag: str
    modified: datetime


class MemoryStore:
    """An ASGI application with one bucket, which delays and counts requests."""

    def __init__(self) -> None:
        self.delay = 0.0
        self._requests: Counter[str] = Counter()
        self._objects: dict[str, _Object] = {}
        self._names: list[str] = []
        self._uploads: dict[str, dict[int, bytes]] = {}

    @property
    def objects(self) -> dict[str, tuple[bytes, datetime]]:
        """Content and time of each object."""
        return {name: (each.data, each.modified) for name, each in self._objects.items()}

    def hold(self, objects: Mapping[str, bytes]) -> None:
        """Replaces all objects."""
        self._objects.clear()
        self._names[:] = sorted(objects)
        for name, data in objects.items():
            self._objects[name] = _Object(data, _etag(data), SystemClock().now())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = await request.body()
        if scope["path"] == CONTROL:
            answer: Response = self._control(request.method, body)
        else:
            await asyncio.sleep(self.delay)
            answer = self._answer(request, body)
        await answer(scope, receive, send)

    def _control(self, method: str, body: bytes) -> Response:
        if method == "POST":
            self.delay = json.loads(body).get("delay", self.delay)
            self._requests.clear()
        return JSONResponse(self._requests)

    def _answer(self, request: Request, body: bytes) -> Response:
        name = request.scope["path"].strip("/").partition("/")[2]
        query = parse_qs(request.scope["query_string"].decode(), keep_blank_values=True)
        method = request.method
        self._requests["LIST" if method == "GET" and "list-type" in query else method] += 1
        if method == "PUT" and name and not query and "x-amz-copy-source" not in request.headers:
            return self._put(name, request, body)
        if method == "PUT" and name and not query:
            source = unquote(request.headers["x-amz-copy-source"]).strip("/").partition("/")[2]
            if source not in self._objects:
                return _error(404, "NoSuchKey")
            etag = self._put(name, request, self._objects[source].data).headers["ETag"]
            return Response(f"<CopyObjectResult><ETag>{escape(etag)}</ETag></CopyObjectResult>")
        if method in ("PUT", "POST") and query.keys() & {"uploads", "uploadId"}:
            return self._upload(name, request, query, body)
        if method in ("GET", "HEAD") and name:
            return self._get(name, request)
        if method == "DELETE" and name:
            self._remove(name)
            return Response(status_code=204)
        if method == "GET" and query.get("list-type") == ["2"]:
            return self._list({key: values[0] for key, values in query.items()})
        if method == "POST" and "delete" in query:
            names = [element.text or "" for element in ET.fromstring(body).iter() if element.tag.endswith("Key")]
            for each in names:
                self._remove(each)
            deleted = "".join(f"<Deleted><Key>{escape(each)}</Key></Deleted>" for each in names)
            return Response(f"<DeleteResult>{deleted}</DeleteResult>")
        return _error(501, "NotImplemented")

    def _put(self, name: str, request: Request, data: bytes) -> Response:
        there = self._objects.get(name)
        wanted = request.headers.get("if-match")
        if (request.headers.get("if-none-match") == "*" and there) or (
            wanted and (not there or there.etag != wanted)
        ):
            return _error(412, "PreconditionFailed")
        etag = _etag(data)
        if there is None:
            self._names.insert(bisect_left(self._names, name), name)
        self._objects[name] = _Object(data, etag, SystemClock().now())
        return Response(headers={"ETag": etag})

    def _upload(self, name: str, request: Request, query: dict[str, list[str]], body: bytes) -> Response:
        """Begins a multipart upload, takes a part, or makes an object of the parts."""
        if "uploads" in query:
            upload = uuid4().hex
            self._uploads[upload] = {}
            return Response(
                f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            )
        [upload] = query["uploadId"]
        if request.method == "PUT":
            self._uploads[upload][int(query["partNumber"][0])] = body
            return Response(headers={"ETag": _etag(body)})
        parts = self._uploads.pop(upload)
        etag = self._put(name, request, b"".join(parts[number] for number in sorted(parts))).headers["ETag"]
        return Response(
            f"<CompleteMultipartUploadResult><ETag>{escape(etag)}</ETag></CompleteMultipartUploadResult>"
        )

    def _get(self, name: str, request: Request) -> Response:
        found = self._objects.get(name)
        if found is None:
            return _error(404, "NoSuchKey")
        headers = {
            "ETag": found.etag,
            "Last-Modified": format_datetime(found.modified, usegmt=True),
            "Accept-Ranges": "bytes",
        }
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range", ""))
        if asked is None:
            return Response(found.data, headers=headers)  # For HEAD, the server omits the content.
        size = len(found.data)
        first, last = (int(part) if part else None for part in asked.groups())
        begin, end = (size - (last or 0), size) if first is None else (first, size if last is None else last + 1)
        begin, end = max(begin, 0), min(end, size)
        if begin >= size:
            return _error(416, "InvalidRange")
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
        return Response(found.data[begin:end], 206, headers)

    def _remove(self, name: str) -> None:
        if self._objects.pop(name, None) is not None:
            del self._names[bisect_left(self._names, name)]

    def _list(self, query: dict[str, str]) -> Response:
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
        return Response(
            f"<ListBucketResult><IsTruncated>{str(bool(token)).lower()}</IsTruncated>{token}"
            f"{''.join(contents)}{common}</ListBucketResult>"
        )

    def _entry(self, name: str) -> str:
        one = self._objects[name]
        return (
            f"<Contents><Key>{escape(name)}</Key><LastModified>{one.modified.isoformat()}</LastModified>"
            f"<ETag>{escape(one.etag)}</ETag><Size>{len(one.data)}</Size></Contents>"
        )


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def _error(status: int, code: str) -> Response:
    return Response(f"<Error><Code>{code}</Code><Message>{code}</Message></Error>", status)


def server(listening: socket.socket, store: MemoryStore | None = None) -> uvicorn.Server:
    """Returns a server of a store, by default a new one. ``run(sockets=[listening])`` serves."""
    port = listening.getsockname()[1]
    return uvicorn.Server(uvicorn.Config(store or MemoryStore(), port=port, log_level="critical", lifespan="off"))


if __name__ == "__main__":
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    server(listening).run(sockets=[listening])
