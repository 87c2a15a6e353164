"""Object stores on this machine, each a process of its own: S3 by moto, Azure by Azurite, GCS by its fake.

``python -m objectstore.servers CACHE`` installs the programs of the last two below pytest's directory for caches.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from urllib.request import Request, urlopen
from uuid import uuid4

import attrs
import pytest
from benchmarks import memory_store, object_store

from clients.running_tools import output
from objectstore import gcs_front
from serve.serving import answers, free_port, wait_until

BUCKET = object_store.BUCKET
AZURITE = "3.35.0"
"""Runs on Node 20; 3.37 does not."""
FAKE_GCS = "v1.56.1"
AZURITE_CACHE, FAKE_GCS_CACHE = f"azurite-{AZURITE}", f"fake-gcs-server-{FAKE_GCS}"
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Account and key that Azurite publishes for everybody."""


@attrs.frozen
class Bucket:
    """A bucket on a server.

    Attributes:
        uri: of the bucket.
        options: storage options that direct clients to the server.
        environment: variables that do the same, or what options cannot say.
    """

    uri: str
    options: Mapping[str, str]
    environment: Mapping[str, str]

    def new_root(self) -> str:
        """A root that does not exist yet."""
        return f"{self.uri}/{uuid4().hex}"


def requests(store: object_store.Counted, call: Callable[[], object]) -> Counter[str]:
    """Requests of a call to a store in this process."""
    store.requests.clear()
    call()
    return Counter(store.requests)


def never_confirm(patch: pytest.MonkeyPatch) -> None:
    """Leaves out the requests that follow from how slow this machine is."""
    patch.setattr("lakequeue.storage.engines.commit.OLDEST_BASE", 3600)
    patch.setattr("lakequeue.storage.snapshot._CONFIRMED", 3600)
    patch.setattr("lakequeue.storage.requests.SURE", 3600)
    patch.setattr("lakequeue.storage.requests.LATELY", 3600)


@contextmanager
def served() -> Iterator[tuple[str, object_store.Counted]]:
    """S3 in this process, which counts requests, and its URL."""
    server, store = object_store.serve()
    try:
        yield f"http://127.0.0.1:{server.server_port}", store
    finally:
        server.shutdown()


@contextmanager
def failing(
    server: object_store.Counted, kind: str, path: str, times: int = 1, method: str = "PUT", late: float = 2.5
) -> Iterator[object_store.Counted]:
    """Makes the next requests to a path fail, as many as given."""
    left = times

    def fault(environ: object_store.Environ) -> str | None:
        nonlocal left
        if environ["REQUEST_METHOD"] == method and re.search(path, environ["PATH_INFO"]) and left:
            left -= 1
            server.faults[kind] += 1
            return kind
        return None

    server.fail({}, late=late)
    server.choose = fault
    try:
        yield server
    finally:
        server.fail({})


@contextmanager
def in_memory(store: memory_store.MemoryStore | None = None) -> Iterator[tuple[str, memory_store.MemoryStore]]:
    """The store of the benchmark in this process, and its URL."""
    store = store or memory_store.MemoryStore()
    listening = socket.create_server(("127.0.0.1", 0))
    running = memory_store.server(listening, store)
    thread = threading.Thread(target=running.run, args=([listening],), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", store
    finally:
        running.should_exit = True
        thread.join(10)


@contextmanager
def found_by_variables(url: str, **more: str) -> Iterator[None]:
    """Leads clients to a server."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (object_store.environment(url) | more).items():
            patch.setenv(name, value)
        yield


@contextmanager
def s3() -> Iterator[Bucket]:
    """moto behind a lock."""
    with _started([sys.executable, object_store.__file__]) as process:
        options = object_store.environment(f"http://127.0.0.1:{int(_line(process))}")
        yield Bucket(f"s3://{BUCKET}", options, options)


def azurite(cache: Path) -> Path:
    """The program of Azurite, installed from npm into a directory that outlives the run."""
    program = cache / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if not program.exists():
        output(["npm", "install", "--no-audit", "--no-fund", "--prefix", cache, f"azurite@{AZURITE}"], cache)
    return program


def fake_gcs(cache: Path) -> Path:
    """The program of fake-gcs-server, built by Go into a directory that outlives the run."""
    program = cache / "fake-gcs-server"
    if not program.exists():
        module = f"github.com/fsouza/fake-gcs-server@{FAKE_GCS}"
        output(["go", "install", module], cache, **os.environ | {"GOBIN": str(cache)})
    return program


@contextmanager
def azure(program: Path) -> Iterator[Bucket]:
    """Azurite."""
    command = ["node", program, "--blobPort", "0", "--inMemoryPersistence", "--disableTelemetry", "--silent"]
    with _started(command) as process:
        url = ""
        while "http://" not in url:
            url = _line(process)
        url = url[url.index("http://") :]
        _create_container(url)
        # The endpoint of the emulator is taken from the environment only. With the endpoint as an option and no
        # emulator, listings from a name on are left to the server, and Azurite lists from the beginning: every
        # second commit to a table fails.
        yield Bucket(f"az://{BUCKET}", {"AZURE_STORAGE_USE_EMULATOR": "true"}, {"AZURITE_BLOB_STORAGE_URL": url})


@contextmanager
def gcs(program: Path) -> Iterator[Bucket]:
    """fake-gcs-server."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    command = [program, "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-public-host", "127.0.0.1"]
    front = [sys.executable, gcs_front.__file__, address]
    with _started([*command, "-port", str(port), "-log-level", "error"]), _started(front) as process:
        url = f"http://127.0.0.1:{int(_line(process))}"
        wait_until(lambda: answers(f"http://{address}"), "the server to answer")
        headers = {"Content-Type": "application/json"}
        bucket = json.dumps({"name": BUCKET}).encode()
        urlopen(Request(f"http://{address}/storage/v1/b?project=lake", bucket, headers)).read()
        account = {"gcs_base_url": url, "disable_oauth": True} | dict.fromkeys(
            ("client_email", "private_key", "private_key_id"), ""
        )
        yield Bucket(
            f"gs://{BUCKET}", {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account), "ALLOW_HTTP": "true"}, {}
        )


def _create_container(url: str) -> None:
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    signed = "\n".join(f"{name}:{value}" for name, value in headers.items())
    text = "PUT" + 12 * "\n" + f"{signed}\n/{_ACCOUNT}/{_ACCOUNT}/{BUCKET}\nrestype:container"
    digest = hmac.new(base64.b64decode(_KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}"
    headers["Content-Length"] = "0"
    urlopen(Request(f"{url}/{_ACCOUNT}/{BUCKET}?restype=container", method="PUT", headers=headers)).read()


@contextmanager
def _started(command: Sequence[str | Path]) -> Iterator[subprocess.Popen[str]]:
    """Runs a server until the end of the block."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the server does not start"
    return line.strip()


if __name__ == "__main__":
    for install, directory in ((azurite, AZURITE_CACHE), (fake_gcs, FAKE_GCS_CACHE)):
        place = Path(sys.argv[1]).resolve() / directory  # go wants it absolute
        place.mkdir(parents=True, exist_ok=True)
        install(place)
