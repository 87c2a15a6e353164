"""In front of fake-gcs-server: the requests of GCS's XML API that it does not know, as those of its JSON API.

Clients in Rust create, copy and list objects through the XML API. fake-gcs-server refuses such a PUT ("invalid
uploadType") and lists from the beginning whatever name a listing is to start after. Whether an object exists
already is still decided there: `x-goog-if-generation-match` becomes `ifGenerationMatch`.

``python gcs_front.py HOST:PORT`` serves before the server there, and prints its own port. It is a process of its
own, because some calls of deltalake (`is_deltatable`) hold the lock of the interpreter until the answer is there.
"""

from __future__ import annotations

import html
import json
import re
import sys
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, quote, unquote, urlsplit

_ITEM = re.compile(rb"<(Contents|CommonPrefixes)>.*?<(?:Key|Prefix)>(.*?)</.*?</\1>", re.DOTALL)


class _Front(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer in one packet: in two it takes 40 ms
    behind: ClassVar[str]

    def do_PUT(self) -> None:
        bucket, name = (unquote(part) for part in self.path.removeprefix("/").split("/", 1))
        match = self.headers.get("x-goog-if-generation-match")
        condition = f"ifGenerationMatch={match}" if match is not None else ""
        source = self.headers.get("x-goog-copy-source")
        if source is None:
            path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(name, safe='')}&{condition}"
        else:
            origin, copied = (quote(unquote(part), safe="") for part in source.removeprefix("/").split("/", 1))
            target = quote(name, safe="")
            path = f"/storage/v1/b/{origin}/o/{copied}/rewriteTo/b/{bucket}/o/{target}?{condition}"
        status, _, body = self._ask("POST", path)
        headers = {}
        if status == 200:
            made = json.loads(body)
            made = made.get("resource", made)
            headers = {"ETag": f'"{made["etag"]}"', "x-goog-generation": made["generation"]}
        self._answer(status, headers, b"")

    def do_GET(self) -> None:
        status, headers, body = self._ask(self.command, self.path)
        url = urlsplit(self.path)
        if status == 200 and url.path.count("/") == 1:
            after = parse_qs(url.query).get("start-after", [""])[0]
            body = _ITEM.sub(lambda item: item[0] if html.unescape(item[2].decode()) > after else b"", body)
        self._answer(status, headers, body)

    do_HEAD = do_DELETE = do_GET

    def _ask(self, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
        given = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        kept = {name: self.headers[name] for name in ("Content-Type", "Range", "If-Match") if self.headers[name]}
        connection = HTTPConnection(self.behind)
        try:
            connection.request(method, path, given, kept)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date"):
                self.send_header(name, value)
        length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
        if status != 204:
            self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    _Front.behind = sys.argv[1]
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Front)
    server.daemon_threads = True
    print(server.server_port, flush=True)
    server.serve_forever()
