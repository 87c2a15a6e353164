"""What object stores refuse is told in one line: what is wrong, what was tried, what to set; and soon."""

from __future__ import annotations

import socket
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from uuid import uuid4

import attrs
import pytest
from benchmarks.object_store import Counted, environment
from typer.testing import CliRunner

from insides import engine_of
from lakequeue import LakeQueue, QueueClientError
from lakequeue.cli import app
from lakequeue.storage.store_failures import first_line
from lakequeue.storage.stores import Store
from objectstore import servers

pytestmark = pytest.mark.objectstore

SECRET = "s3cr3t-value"
SOON = 5.0
"""Seconds, on a busy machine."""


@attrs.frozen
class Server:
    url: str
    store: Counted

    def options(self, **changed: str | None) -> dict[str, str]:
        """Options that reach it, with some of them changed or left out."""
        given = environment(self.url) | {"AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": SECRET} | changed
        return {name: value for name, value in given.items() if value is not None}


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with servers.served() as found:
        yield Server(*found)


@pytest.fixture
def server(running: Server) -> Iterator[Server]:
    yield running
    running.store.refusal = lambda _: None


@attrs.frozen
class Case:
    """A thing that is wrong, and what is told about it."""

    told: str
    advice: str
    refusal: tuple[str, str, str] | None = None
    changed: dict[str, str | None] = attrs.field(factory=dict)
    bucket: str = "lake"


def refused(status: str, code: str, told: str, advice: str) -> Case:
    return Case(f"{told} ({code}, ", advice, (status, code, f"<AWSAccessKeyId>{SECRET}</AWSAccessKeyId>"))


KEYS = "AWS_SECRET_ACCESS_KEY"
CASES = {
    "bucket": Case("the bucket does not exist (NoSuchBucket, ", "create it", bucket="missing"),
    "right": refused("403 Forbidden", "AccessDenied", "access is denied", "list, read, write and delete"),
    "key": refused("403 Forbidden", "InvalidAccessKeyId", "the access key is not known there", KEYS),
    "secret": refused("403 Forbidden", "SignatureDoesNotMatch", "the secret key is wrong", KEYS),
    "expired": refused("400 Bad Request", "ExpiredToken", "the credentials have expired", "set new ones"),
    "region": refused(
        "400 Bad Request", "AuthorizationHeaderMalformed", "the bucket is in another region", "AWS_REGION"
    ),
    "redirect": Case(
        "the bucket is in another region", "AWS_REGION", ("301 Moved Permanently", "PermanentRedirect", "-")
    ),
    "clock": refused("403 Forbidden", "RequestTimeTooSkewed", "the clock of this machine is wrong", "set it"),
    "port": Case(
        "nothing listens at the endpoint", "AWS_ENDPOINT_URL", changed={"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    ),
    "host": Case(
        "the endpoint's host is unknown", "AWS_ENDPOINT_URL", changed={"AWS_ENDPOINT_URL": "http://no.invalid:80"}
    ),
    "scheme": Case("the endpoint is not HTTPS", "AWS_ALLOW_HTTP", changed={"AWS_ALLOW_HTTP": None}),
    "credentials": Case(
        "there are no credentials",
        "AWS_ACCESS_KEY_ID",
        changed={
            "AWS_ACCESS_KEY_ID": None,
            "AWS_SECRET_ACCESS_KEY": None,
            "AWS_METADATA_ENDPOINT": "http://127.0.0.1:1",
        },
    ),
    "busy": refused("503 Slow Down", "SlowDown", "the storage is too busy", "repeat"),
    "broken": Case("the storage answered 500 (InternalError, ", "repeat", ("500 Internal", "InternalError", "-")),
}
CALLS: dict[str, Callable[[LakeQueue], object]] = {
    "create": lambda lq: lq.create_queue("orders"),
    "list": lambda lq: lq.list_queues(),
    "open": lambda lq: engine_of(lq).open(f"{lq.root}/queues"),
}


@pytest.mark.spec("ERR-2")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("wrong", CASES)
def test_errors_of_a_store_are_one_line_and_come_soon(
    server: Server, wrong: str, call: str, capfd: pytest.CaptureFixture[str]
) -> None:
    case = CASES[wrong]
    server.store.refusal = lambda _: case.refusal
    lq = LakeQueue(f"s3://{case.bucket}/{uuid4().hex}", storage_options=server.options(**case.changed))
    began = time.monotonic()
    with pytest.raises(QueueClientError) as caught, lq._runtime.storage_errors():
        CALLS[call](lq)
    assert time.monotonic() - began < SOON
    told = str(caught.value)
    assert lq.root in told and case.told in told and case.advice in told.partition("; ")[2]
    assert "\n" not in told and "\x1b" not in told and SECRET not in told and "?" not in told
    assert not caught.value.outcome_unknown
    assert SECRET not in "".join(traceback.format_exception(caught.value))  # as `lakequeue -v` shows it
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("wrong", ["bucket", "right", "port"])
def test_the_command_line_reports_the_error_in_one_line(server: Server, wrong: str) -> None:
    case = CASES[wrong]
    server.store.refusal = lambda _: case.refusal
    options = [
        part for each in server.options(**case.changed).items() for part in ("--storage-option", "=".join(each))
    ]
    done = CliRunner().invoke(app, ["--root", f"s3://{case.bucket}/a", *options, "create", "orders"])
    assert done.exit_code != 0
    assert case.told.split(" (")[0] in " ".join(done.output.split()) and SECRET not in done.output


def test_a_missing_file_is_no_missing_bucket(server: Server) -> None:
    folder = Store("s3://lake/a", server.options(AWS_SESSION_TOKEN=None)).folder("s3://lake/a/b")
    for call in (folder.read, folder.entry):
        with pytest.raises(FileNotFoundError) as caught:
            call("c")
        assert first_line(caught.value).startswith("there is no such file or bucket (")


def test_missing_credentials_are_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in environment(""):
        monkeypatch.delenv(name, raising=False)
    with ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        host, port = silent.getsockname()
        for _ in range(2):  # its queue is full: it is as a network that drops what it gets
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex((host, port))
        lq = LakeQueue("s3://lake/a", storage_options={"AWS_METADATA_ENDPOINT": f"http://{host}:{port}"})
        began = time.monotonic()
        for call in (lambda: lq.create_queue("orders"), lq.list_queues):
            with pytest.raises(QueueClientError, match="s3://lake/a .*no credentials; set AWS_ACCESS_KEY_ID"):
                call()
        assert time.monotonic() - began < SOON
