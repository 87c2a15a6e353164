"""Bodies of requests: what is judged before they are read, and what they may take together."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Iterator
from urllib.parse import urlencode

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from lakequeue.cli.serve import serve
from lakequeue.serve import limits
from lakequeue.serve.keys import AccessRule, Key, Keys
from lakequeue.serve.limits import MAX_BODY_BYTES, MAX_OTHER_BODY_BYTES, UNCOUNTED_BYTES, RequestBodies
from lakequeue.serve.middleware import RequestChecks
from serve.raw_requests import (
    FORM,
    JSON,
    WireError,
    everything,
    post,
    raw_error,
    request,
    signed_head,
    wire_error,
)
from serve.serving import Running, serving, wait_until

ONE, OTHER, READER = "AKIDONE", "AKIDOTHER", "AKIDREADER"
KEYS = Keys(
    {
        ONE: Key(ONE, "one-secret"),
        OTHER: Key(OTHER, "other-secret"),
        READER: Key(READER, "reader-secret", (AccessRule(("*",), frozenset({"ReceiveMessage"})),)),
    }
)
SECRETS = {ONE: "one-secret", OTHER: "other-secret", READER: "reader-secret"}
URL = "http://localhost/000000000000/orders"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("bodies") / "root", access=KEYS) as running:
        running.lake.create_queue("orders", Profile="sqs")
        yield running


def signed(
    server: Running, key: str, body: bytes, action: str, kind: str = JSON, secret: str | None = None
) -> dict[str, str]:
    return signed_head(server.url, key, secret or SECRETS[key], body, action, kind)


def ask(
    server: Running, key: str, body: object, action: str, kind: str = JSON, secret: str | None = None
) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = signed(server, key, content, action, kind, secret)
    return httpx.post(f"{server.url}/", content=content, headers=headers, timeout=60, trust_env=False)


def refused(answer: httpx.Response) -> WireError:
    return wire_error(answer.status_code, answer.headers, answer.content)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"Authorization": None}, "MissingAuthenticationToken"),
        ({"Authorization": "Bearer x"}, "IncompleteSignature"),
        ({"X-Amz-Date": "20260101T000000Z"}, "SignatureDoesNotMatch"),
        ({"X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"}, "IncompleteSignature"),
        ({"X-Amz-Target": "AmazonSQS.Nothing"}, "InvalidAction"),
        ({}, "InvalidClientTokenId"),
    ],
)
def test_a_stranger_is_refused_before_the_body(server: Running, change: dict[str, str | None], code: str):
    key = ONE if change else "AKIDNOBODY"
    headers = signed(server, key, b"", "SendMessage", secret="guessed") | change
    with server.connected() as connection:
        given = {name: value for name, value in headers.items() if value}
        connection.sendall(request(given, length=MAX_BODY_BYTES))
        answer = everything(connection)  # which the server ends
    assert raw_error(answer).code == code and b"\r\nconnection: close\r\n" in answer


def test_bodies_of_strangers_take_nothing_from_those_who_sign(server: Running, monkeypatch):
    """However large and many they are; nobody has to wait for them to be sent."""
    monkeypatch.setattr(limits, "MAX_TOTAL_BODY_BYTES", 2 * MAX_BODY_BYTES)
    size = MAX_BODY_BYTES - 1_000
    connections = [server.connected() for _ in range(32)]
    for connection in connections:
        connection.sendall(request({"Content-Type": JSON, "X-Amz-Target": "AmazonSQS.SendMessage"}, length=size))
    assert ask(server, ONE, {"QueueUrl": URL, "MessageBody": "x" * 1_000_000}, "SendMessage").status_code == 200
    for connection in connections:
        assert raw_error(everything(connection)).code == "MissingAuthenticationToken"
        connection.close()


def test_the_oldest_body_that_names_a_key_makes_room(server: Running, monkeypatch):
    """So that who names a key without its secret, and sends slowly, keeps nobody from it."""
    monkeypatch.setattr(limits, "MAX_UNVERIFIED_KEY_BYTES", 2_500_000)
    headers = signed(server, ONE, b"", "SendMessage", secret="guessed")
    with server.connected() as forged:
        forged.sendall(request(headers, b"x" * 2_000_000, 2_500_000))
        counted = server.application.endpoint.bodies.budget.by_key
        wait_until(lambda: counted[ONE] == 2_000_000 - UNCOUNTED_BYTES)
        large = {"QueueUrl": URL, "MessageBody": "x" * 1_048_576}
        assert ask(server, OTHER, large, "SendMessage").status_code == 200
        small = {"QueueUrl": URL, "MessageBody": "x" * (UNCOUNTED_BYTES - 1_000)}
        assert ask(server, ONE, small, "SendMessage").status_code == 200
        assert ask(server, ONE, large, "SendMessage").status_code == 200
        error = raw_error(everything(forged))
        assert (error.status, error.code) == (503, "ServiceUnavailable")
    wait_until(lambda: not counted[ONE])
    assert ask(server, ONE, large, "SendMessage").status_code == 200
    assert not any(counted.values())


def test_what_a_key_may_not_do_is_refused_before_it_is_parsed(server: Running):
    for action in ("SendMessage", "PurgeQueue", "CreateQueue"):
        error = refused(ask(server, READER, b"[" * 100_000, action))
        assert (error.status, error.code) == (403, "AccessDenied")
        assert error.message == f"{READER} may not do {action} on any queue."
    denied = ask(server, READER, {"QueueUrl": URL, "MessageBody": "x"}, "SendMessage")
    assert denied.json()["__type"].rpartition("#")[2] == "AccessDeniedException", (
        "its name in JSON, unlike the code"
    )
    assert denied.headers["x-amzn-query-error"] == "AccessDenied;Sender"
    form = urlencode({"Action": "SendMessage", "Nothing": "1"}).encode()
    assert refused(ask(server, READER, form, "", FORM)).code == "AccessDenied"
    assert refused(ask(server, READER, b"[" * 100, "ReceiveMessage")).code == "SerializationException"
    assert refused(ask(server, READER, b"[", "SendMessage", secret="guessed")).code == "SignatureDoesNotMatch"


def test_only_requests_that_send_may_be_large(server: Running):
    error = refused(ask(server, ONE, b" " * (MAX_OTHER_BODY_BYTES + 1), "ReceiveMessage"))
    assert (error.status, error.code) == (413, "RequestEntityTooLarge")
    assert error.message == f"This request may have {MAX_OTHER_BODY_BYTES} bytes at most."
    assert ask(server, ONE, b"{}" + b" " * (MAX_OTHER_BODY_BYTES - 2), "ListQueues").status_code == 200
    error = refused(ask(server, ONE, b" " * (MAX_BODY_BYTES + 1), "SendMessage"))
    assert (error.status, error.code) == (413, "RequestEntityTooLarge")


@pytest.mark.parametrize("letter", ["\U0001f600", '"', "\u00e9", "\u4e2d"])
def test_the_largest_batch_fits_whatever_it_holds(server: Running, letter: str):
    text = letter * (2**20 // len(letter.encode()))
    part = len(text) // 8
    entries = [{"Id": str(n), "MessageBody": text[n * part : (n + 1) * part]} for n in range(8)]
    answer = ask(server, ONE, {"QueueUrl": URL, "Entries": entries}, "SendMessageBatch")
    assert answer.status_code == 200 and len(answer.json()["Successful"]) == 8
    form = {"Action": "SendMessageBatch", "QueueUrl": URL} | {
        f"SendMessageBatchRequestEntry.{n}.{name}": value
        for n, entry in enumerate(entries, 1)
        for name, value in entry.items()
    }
    answer = ask(server, ONE, urlencode(form).encode(), "", FORM)
    assert answer.status_code == 200 and answer.text.count("<MessageId>") == 8


def test_an_answer_in_json_is_utf_8_without_escapes(server: Running):
    text = "\u00e9\u4e2d\U0001f600"
    name = {"QueueName": "letters"}
    url = ask(server, ONE, name, "CreateQueue").json()["QueueUrl"]
    ask(server, ONE, {"QueueUrl": url, "MessageBody": text}, "SendMessage")
    answer = ask(server, ONE, {"QueueUrl": url}, "ReceiveMessage")
    assert text.encode() in answer.content
    assert [message["Body"] for message in answer.json()["Messages"]] == [text]


def test_the_bodies_of_all_requests_together_have_a_limit(monkeypatch):
    monkeypatch.setattr(limits, "MAX_TOTAL_BODY_BYTES", 1_000)
    monkeypatch.setattr(limits, "UNCOUNTED_BYTES", 0)
    reader = RequestBodies()

    async def read(request):
        async with reader.read(request) as body:
            return PlainTextResponse(str(len(body.content)))

    app = Starlette(routes=[Route("/", read, methods=["POST"])], middleware=[Middleware(RequestChecks)])

    async def together() -> list[httpx.Response]:
        arrived, go_on = asyncio.Event(), asyncio.Event()

        async def slow():
            yield b"x" * 600
            arrived.set()
            await go_on.wait()
            yield b"x" * 300

        async def one(content) -> httpx.Response:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.post("/", content=content)

        first = asyncio.create_task(one(slow()))
        await arrived.wait()
        second = await one(b"x" * 500)
        go_on.set()
        return [await first, second, await one(b"x" * 1_000)]

    first, second, third = asyncio.run(together())
    assert (first.text, third.text) == ("900", "1000")
    error = refused(second)
    assert (error.status, error.code) == (503, "ServiceUnavailable")


@pytest.mark.parametrize(
    ("limit", "action", "size", "status"),
    [
        (1_000, "ListQueues", 1_000, b"200"),
        (1_000, "ListQueues", 1_001, b"413"),
        (2 * MAX_BODY_BYTES, "SendMessage", 2 * MAX_BODY_BYTES, b"400"),  # higher for requests that send
        (2 * MAX_BODY_BYTES, "SendMessage", 2 * MAX_BODY_BYTES + 1, b"413"),
    ],
)
def test_a_body_of_exactly_the_limit_is_taken(tmp_path, limit: int, action: str, size: int, status: bytes):
    with serving(tmp_path / "root", max_body_bytes=limit) as running:
        answer = running.exchange(post(b"{}" + b" " * (size - 2), action))
    assert answer[9:12] == status


def test_the_largest_batch_is_the_default_limit():
    assert inspect.signature(serve).parameters["max_body"].default.default == MAX_BODY_BYTES
