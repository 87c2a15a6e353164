"""Requests that are wrong: each gets an error of SQS or a closed connection, and the server goes on serving."""

from __future__ import annotations

import json
import logging
import socket
import struct

import pytest

from lakequeue.model.clock import SystemClock
from lakequeue.model.log_lines import JsonLines
from lakequeue.serve import limits
from lakequeue.serve.connection import MAX_PIPELINED, Connection
from lakequeue.serve.middleware import MAX_HEAD_BYTES, MAX_HEADERS
from serve.raw_requests import FORM, JSON, WireError, everything, post, raw_error
from serve.serving import serving, wait_until

URL = "http://localhost/000000000000/orders"
LARGEST = 1_000_000
"""Bytes of a body that the server of these tests takes."""


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("bad") / "root", max_body_bytes=LARGEST) as running:
        running.lake.create_queue("orders", Profile="sqs")
        yield running


@pytest.fixture
def server(running):
    """The server of all tests, which serves after each of them."""
    yield running
    assert running.serves()
    wait_until(lambda: not running.server.server_state.connections)


def in_json(server, body, action="SendMessage", head="") -> WireError:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return raw_error(server.exchange(post(content, action, JSON, head)))


def staying(request: bytes) -> bytes:
    """The request of a client that wants to send another one."""
    return request.replace(b"Connection: close\r\n", b"")


def one_answer(connection: socket.socket) -> bytes:
    """The next answer, of a connection that stays."""
    answer = b""
    while not answer.endswith((b"}", b"</ErrorResponse>")):
        answer += connection.recv(65536)
    return answer


def depth(levels: int, inside: str = "1") -> bytes:
    return ('{"a":' * levels + inside + "}" * levels).encode()


# --- bodies


NOT_JSON = [
    *(b"{", b"nothing", b"{'QueueUrl': 1}", b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": 1}}', b'{"a" 1}', b"\x00"),
    *(b'"' + b"\xff" * 10 + b'"', b'{"MessageBody": "\xed\xa0\x80"}', "{}".encode("utf-16"), b"\xef\xbb\xbf{}"),
    *(b"[" * 100_000, depth(100_000), b'{"a": ' + b"9" * 10_000 + b"}", b'{"\xc3": 1}'),
]


@pytest.mark.parametrize("body", NOT_JSON, ids=range(len(NOT_JSON)))
def test_what_is_not_json(server, body):
    assert in_json(server, body) == WireError(400, "SerializationException", "The body is not JSON in UTF-8.")


CHUNKED = "Transfer-Encoding: chunked"
TOO_LONG = b"Length: %d" % (LARGEST + 1)
NO_SUCH_ACTION = b"2\r\n{}\r\n0\r\nX-Amz-Target: AmazonSQS.ListQueues\r\nHost: elsewhere\r\n\r\n"
ERRORS = {
    (400, "SerializationException"): {
        **{
            f"JSON that is {body.decode()}": post(body, "SendMessage")
            for body in (b"[]", b"1", b"null", b'"x"', b"true")
        },
        "a form with the header of JSON": post(b"Action=ListQueues", "ListQueues", FORM),
        "a form that is not UTF-8": post(b"\xff\xfe=1", "", FORM),
    },
    (400, "MissingAction"): {"JSON without an action": post(b"{}")},
    (400, "InvalidAction"): {"a trailer with another action": post(NO_SUCH_ACTION, "NoAction", head=CHUNKED)},
    (400, "UnknownOperationException"): {
        "an action of another service": post(b"{}", head="X-Amz-Target: DynamoDB_20120810.ListTables"),
    },
    (400, "InvalidRequest"): {
        "a coding within chunks": post(b"", "ListQueues", head="Transfer-Encoding: gzip, chunked"),
        "chunks in HTTP/1.0": post(b"2\r\n{}\r\n0\r\n\r\n", "ListQueues", head=CHUNKED).replace(b"/1.1", b"/1.0"),
    },
    (405, "MethodNotAllowed"): {
        f"the method {method}": post(b"").replace(b"POST /", b"%b /orders?Action=ListQueues" % method.encode())
        for method in ("PUT", "DELETE", "PATCH", "OPTIONS")
    },
    (413, "RequestEntityTooLarge"): {  # none of the body has to arrive, nor will it be read
        f"a length of {kind} beyond the largest": staying(post(b"", target, kind)).replace(b"Length: 0", TOO_LONG)
        for kind, target in ((JSON, "SendMessage"), (FORM, ""))
    },
    (415, "UnsupportedMediaType"): {
        f"the content type {kind!r}": post(b"Action=ListQueues", "", kind)
        for kind in ("text/plain", "multipart/form-data; boundary=x", "", "application/xml", "x/y;;;")
    },
    (431, "RequestHeaderFieldsTooLarge"): {
        "too many headers": post(b"{}", "ListQueues", head="\r\n".join(f"X-{n}: 1" for n in range(MAX_HEADERS))),
    },
}
"""Status and code of an error of SQS, and requests that get it."""


@pytest.mark.parametrize(
    ("error", "request_"),
    [pytest.param(error, each, id=id) for error, requests in ERRORS.items() for id, each in requests.items()],
)
def test_what_sqs_does_not_take_gets_an_error(server, error, request_):
    found = raw_error(server.exchange(request_))
    assert (found.status, found.code) == error


# --- methods and paths


@pytest.mark.parametrize(
    "line",
    [
        *("HEAD / HTTP/1.1", "TRACE / HTTP/1.1", "FOO / HTTP/1.1", "OPTIONS * HTTP/1.1", "CONNECT a:1 HTTP/1.1"),
        *("POST http://localhost/ HTTP/1.1", "POST //[ HTTP/1.1", "POST /%ff%00%0a HTTP/1.1"),
    ],
)
def test_requests_that_nothing_here_answers(server, line):
    answer = server.exchange(
        f"{line}\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode()
    )
    assert answer.startswith(b"HTTP/1.1 4") and b"Traceback" not in answer and len(answer) < 1_000


@pytest.mark.parametrize(
    "data",
    [
        *(
            b"\x00" * 100,
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"GET\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ),
        *(
            b"POST / HTTP/1.1\r\n\r\n",
            b"POST / HTTP/x.y\r\nHost: localhost\r\n\r\n",
            b"\r\n" * 1_000 + b"x\r\n\r\n",
        ),
        *(b"POST / HTTP/1.1\r\nHost : localhost\r\n\r\n", b"POST / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
        *(b"POST /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", b"POST / HTTP/1.1\r\nHost: local\x00host\r\n\r\n"),
    ],
    ids=range(11),
)
def test_what_is_not_http(server, data, monkeypatch):
    monkeypatch.setattr(Connection, "unverified_seconds", 0.5)  # what has no host waits for another head
    answer = server.exchange(data)
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 405 "))


# --- lengths and chunks


def in_chunks(*parts: bytes) -> list[bytes]:
    return [post(b"", "ListQueues", head=CHUNKED), *parts]


BROKEN = {
    **{
        f"the length {length!r}": [post(b"").replace(b"Length: 0", b"Length: " + length) + b"abc"]
        for length in (b"x", b"-1", b"", b"1 1", b"1,2", b"+5", b"0x10", b"1" * 21)
    },
    **{
        f"the coding {coding[:20]}": [post(b"", "ListQueues", head=f"Transfer-Encoding: {coding}")]
        for coding in ("gzip", "chunked, chunked", "identity", "x" * 100)
    },
    "a chunk of x bytes": in_chunks(b"x\r\n"),
    "a chunk of -1 bytes": in_chunks(b"-1\r\n{}\r\n"),
    "a chunk that is too long": in_chunks(b"2\r\n{}x"),
    "a chunk without a length": in_chunks(b"2\r\n{}\r\n", b"\r\n\r\n"),
    "a length of 30 digits": in_chunks(b"1" * 30 + b"\r\n"),
    "two lengths": in_chunks(b"2 2\r\n"),
    "a trailer that is none": in_chunks(b"2\r\n{}\r\n0\r\n", b"\x00\r\n\r\n"),
    "an extension that is too long": in_chunks(b"2;" + b"a" * 8 * MAX_HEAD_BYTES),
}


@pytest.mark.parametrize("parts", BROKEN.values(), ids=BROKEN)
def test_lengths_codings_and_chunks_that_are_wrong(server, parts):
    answer = server.exchange(*parts)
    if not answer and len(parts[-1]) > MAX_HEAD_BYTES:
        return  # what was not read any more has reset the connection before the answer was
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"Invalid HTTP request received." in answer


@pytest.mark.parametrize("length", [0, 4, 5, 99_999])
def test_a_content_length_with_chunks_ends_the_connection(server, length):
    head = f"{CHUNKED}\r\nContent-Length: {length}"
    smuggled = staying(post(b"2\r\n{}\r\n0\r\n\r\n", "ListQueues", head=head)) + post(b"{}", "ListQueues")
    answer = server.exchange(smuggled)
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1 ") == 1
    assert b"\r\nconnection: close\r\n" in answer


@pytest.mark.parametrize("place", range(1, 9))
def test_a_line_of_a_head_that_ends_in_a_line_feed_alone_ends_the_connection(server, place):
    good = staying(post(b"{}", "ListQueues", head="X-One: 1\r\nX-Two: 2"))
    lines = good.split(b"\r\n")
    bad = b"\r\n".join(lines[:place]) + b"\n" + b"\r\n".join(lines[place:])
    for parts in ([bad + good], [good + bad + good], [bad[:40], bad[40:]], [good, bad]):
        *before, last = server.exchange(*parts).split(b"HTTP/1.1 ")[1:]
        assert last.startswith(b"400 ") and b"Invalid HTTP request received." in last
        assert b"\r\nconnection: close\r\n" in last.lower()
        assert [answer[:3] for answer in before] == [b"200"] * len(before)


@pytest.mark.parametrize(
    "parts",
    [
        [post(b"{\n\n}\n", "ListQueues")],
        in_chunks(b"5\r\n{\n\n}\n\r\n0\r\n\r\n"),
        in_chunks(b"1\r\n{\r\n", b"1;a=b\r\n", b"}\r\n0\r\nTrailer: x\r\n\r\n"),
        [post(b"{}", "ListQueues").replace(b"/1.1", b"/1.0").replace(b"Host: localhost\r\n", b"")],
    ],
    ids=["line feeds", "line feeds in chunks", "chunks with an extension and a trailer", "no host in HTTP/1.0"],
)
def test_what_looks_odd_and_is_right(server, parts):
    assert server.exchange(*parts).startswith(b"HTTP/1.1 200 ")


def test_a_body_that_is_longer_than_its_content_length(server):
    request = staying(post(b"{}", "ListQueues")) + b"garbage\r\n\r\n"
    first, second = server.exchange(request).split(b"HTTP/1.1 ")[1:]
    assert first.startswith(b"200 ") and second.startswith(b"400 ")


@pytest.mark.parametrize(
    "request_",
    [
        post(b"{}", "ListQueues", head="X: 1").replace(b"Length: 2", b"Length: 3"),
        post(b"5\r\n{", "ListQueues", head=CHUNKED),
    ],
    ids=["by its length", "by its chunks"],
)
def test_a_body_that_ends_too_soon(server, request_):
    with server.connected() as connection:
        connection.sendall(request_)
        connection.shutdown(socket.SHUT_WR)
        assert everything(connection) == b""


def test_a_body_that_does_not_come(server, monkeypatch):
    monkeypatch.setattr(limits, "BODY_TIMEOUT", 0.05)
    for kind, target in ((JSON, "ListQueues"), (FORM, "")):
        error = raw_error(server.exchange(staying(post(b"{}", target, kind)).replace(b"Length: 2", b"Length: 3")))
        assert (error.status, error.code) == (408, "RequestTimeout")


# --- too much


def test_a_body_that_becomes_too_large(server):
    with server.connected() as connection:
        connection.sendall(post(b"", "SendMessage", head=CHUNKED))
        connection.sendall(b"%x\r\n%b\r\n" % (LARGEST, b" " * LARGEST))
        connection.sendall(b"1\r\n \r\n")  # and no end
        assert raw_error(everything(connection)).code == "RequestEntityTooLarge"


def test_a_header_that_is_too_long(server):
    answer = server.exchange(post(b"{}", "ListQueues", head="X: " + "1" * MAX_HEAD_BYTES))
    assert answer == b"" or answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 "))


def test_a_head_without_an_end(server):
    request = b"POST / HTTP/1.1\r\nHost: localhost\r\nX: "
    with server.connected() as connection:
        connection.sendall(request)
        answer = b""
        while not answer:
            try:
                connection.sendall(b"1" * MAX_HEAD_BYTES)
                connection.setblocking(False)
                answer = connection.recv(65536)
            except BlockingIOError:
                pass
            except ConnectionError:
                break
            finally:
                connection.settimeout(60)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")


def test_a_head_may_come_in_small_parts(server):
    request = post(b"{}", "ListQueues", head="X: " + "1" * 5_000)
    with server.connected() as slow:
        slow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(request), 10):
            slow.sendall(request[start : start + 10])
        assert everything(slow).startswith(b"HTTP/1.1 200 ")


def test_requests_that_a_client_sends_before_their_answers_are_few(server):
    request = staying(post(b"{}", "ListQueues"))
    answers = server.exchange(request * (2 * MAX_PIPELINED)).split(b"HTTP/1.1 ")[1:]
    assert [answer[:3] for answer in answers[:-1]] == [b"200"] * (len(answers) - 1)
    assert len(answers) > MAX_PIPELINED and answers[-1].startswith(b"400 ")


@pytest.mark.parametrize("offered", ["h2c", "TLS/1.2", "websocket"])
def test_an_offer_of_another_protocol_is_not_taken(server, offered):
    request = staying(post(b"{}", "ListQueues", head=f"Connection: upgrade\r\nUpgrade: {offered}"))
    for parts in ([request, request], [2 * request]):
        answers = server.exchange(*parts, post(b"{}", "ListQueues")).split(b"HTTP/1.1 ")[1:]
        assert [answer[:3] for answer in answers] == [b"200"] * 3


# --- too slow


def test_a_head_that_does_not_come(server, monkeypatch):
    monkeypatch.setattr(Connection, "head_seconds", 0.05)
    with server.connected() as silent, server.connected() as slow:
        slow.sendall(b"POST / HTTP/1.1\r\nHost: local")
        assert everything(silent) == everything(slow) == b""


def test_a_second_head_that_does_not_come(server, monkeypatch):
    monkeypatch.setattr(Connection, "head_seconds", 0.05)
    with server.connected() as connection:
        connection.sendall(staying(post(b"{}", "ListQueues")))
        assert one_answer(connection).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"P")
        assert everything(connection) == b""


def test_an_idle_connection_may_stay_for_the_next_request(server, monkeypatch):
    monkeypatch.setattr(Connection, "head_seconds", 0.2)
    with server.connected() as idle, server.connected() as silent:
        request = staying(post(b"{}", "ListQueues"))
        idle.sendall(request)
        assert one_answer(idle).startswith(b"HTTP/1.1 200 ")
        assert everything(silent) == b""  # more time than a head gets has gone by
        idle.sendall(request)
        assert one_answer(idle).startswith(b"HTTP/1.1 200 ")


def test_a_client_that_does_not_read(server, monkeypatch):
    monkeypatch.setattr(Connection, "answer_seconds", 0.05)
    request = staying(post(b'{"%b": 1}' % (b"a" * 900), "ListQueues"))
    with server.narrow() as connection, pytest.raises(ConnectionError):
        while True:
            connection.sendall(request * 100)


def test_a_client_that_does_not_read_the_little_there_is(server, monkeypatch):
    monkeypatch.setattr(server.server.config, "timeout_keep_alive", 0.05)
    request = staying(post(b'{"%b": 1}' % (b"a" * 900), "ListQueues"))
    with server.narrow() as connection:
        connection.sendall(request * 40)  # less than what the server stops at
        wait_until(lambda: not server.server.server_state.connections)


def test_a_client_that_hangs_up_at_once(server, caplog):
    request = staying(post(b"{}", "ListQueues"))
    for sent in (request[:1], request[:50], request[:100], *[request] * 10, *[request * 100] * 10):
        connection = server.connected()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(sent)
        connection.close()
    wait_until(lambda: not server.server.server_state.connections and not server.server.server_state.tasks)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


# --- what the server says of it


def test_nothing_of_a_request_reaches_a_log_as_it_is(server, caplog, capfd):
    forged = "x\nERROR forged \x1b[31m"

    def fails(*_):
        raise RuntimeError(forged)

    with caplog.at_level(logging.DEBUG), pytest.MonkeyPatch.context() as patch:
        patch.setitem(server.application.actions._by_name, "ListQueues", fails)
        error = in_json(server, b"{}", "ListQueues")
        assert (error.status, error.code, error.message) == (500, "InternalFailure", "The server failed.")
    in_json(server, {"QueueName": forged}, "CreateQueue")
    in_json(server, {"QueueUrl": f"http://x/{forged}", "MessageBody": forged})
    server.exchange(b"POST /\x1b[31m HTTP/1.1\r\nX: \x1b\r\n\r\n")
    lines = JsonLines(SystemClock(), stacks=True)
    said = "".join(lines.format(record) for record in caplog.records) + capfd.readouterr().err
    assert "RuntimeError" in said
    assert "\x1b" not in said and "\nERROR" not in said
