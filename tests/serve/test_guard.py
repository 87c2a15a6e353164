"""Web pages, names and heads of requests: what stands before everything that is served."""

from __future__ import annotations

import asyncio
import json
import logging

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from lakequeue.model.clock import SystemClock
from lakequeue.model.log_lines import JsonLines
from lakequeue.serve.middleware import MAX_HEAD_BYTES, MAX_HEADERS, RequestChecks
from serve.raw_requests import FORM, JSON, wire_error

FORGED = "forged\nERROR line \x1b[31m\u2028"


async def plain(request):
    return PlainTextResponse("done")


async def fail(request):
    raise ValueError(FORGED)


async def fail_late(request):
    async def parts():
        yield b"half"
        raise ValueError(FORGED)

    return StreamingResponse(parts())


def application(*hosts: str, any_host: bool = False) -> Starlette:
    """A small application behind the guard."""
    routes = [
        Route("/", plain, methods=["GET", "POST"]),
        Route("/console", plain),
        Route("/fail", fail, methods=["GET", "POST"]),
        Route("/late", fail_late),
    ]
    return Starlette(routes=routes, middleware=[Middleware(RequestChecks, hosts=None if any_host else hosts)])


def ask(headers=(), *hosts: str, method="POST", path="/", any_host=False, content=b"") -> httpx.Response:
    """What it answers, without a socket."""

    async def answer() -> httpx.Response:
        transport = httpx.ASGITransport(application(*hosts, any_host=any_host))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:9324") as client:
            return await client.request(method, path, headers=headers, content=content)

    return asyncio.run(answer())


def answer(headers: dict[str, str], *hosts: str, path: str = "/", any_host: bool = False) -> str:
    found = ask(headers, *hosts, path=path, any_host=any_host)
    return "done" if found.status_code == 200 else wire_error(found.status_code, found.headers, found.content).code


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST:1", "localhost:9324", "queue.localhost", "a.b.localhost:80"),
        *("127.0.0.1", "127.0.0.1:9324", "127.9.8.7", "[::1]", "[::1]:9324", "queue.example", "Queue.Example:81"),
    ],
)
def test_names_of_this_machine_and_allowed_ones(host):
    assert answer({"host": host}, "queue.example") == "done"


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "localhost.evil.example", "notlocalhost", "localhost.", "127.0.0.1.evil.example"),
        *("10.0.0.1", "0.0.0.0", "[::]", "[fe80::1]", "2130706433", "queue.example", "x" * 10_000),
    ],
)
def test_other_names_are_refused_without_keys_and_may_be_asked_with(host):
    assert answer({"host": host}) == "InvalidHost"
    assert answer({"host": host}, "other.example") == "InvalidHost"
    assert answer({"host": host}, any_host=True) == "done"


@pytest.mark.parametrize(
    "host",
    [
        *("", " ", "local host", "localhost/x", "localhost:", "localhost:x", "localhost:123456", "user@localhost"),
        *("localhost?", "<script>", "localhost,localhost", "[localhost]", "[::1", "::1", '"', "-x", "localhost#"),
    ],
)
def test_a_host_with_odd_characters_is_refused_anyway(host):
    assert answer({"host": host}) == "InvalidHost"
    assert answer({"host": host}, any_host=True) == "InvalidHost"


def test_two_hosts_are_refused():
    assert ask([("host", "localhost"), ("host", "localhost")], method="GET").status_code == 400


@pytest.mark.parametrize(
    "origin",
    [
        *(
            "http://evil.example",
            "http://localhost:3000",
            "https://localhost",
            "null",
            "",
            "http://[::1",
            "file://",
        ),
        *("http://localhost:9324.evil.example", "http://127.0.0.1:9324", "localhost:9324"),
    ],
)
@pytest.mark.parametrize("any_host", [True, False])
def test_requests_of_foreign_pages_are_refused(origin, any_host):
    assert answer({"origin": origin}, any_host=any_host) == "AccessDenied"
    assert ask({"origin": origin}, method="GET", path="/console").status_code == 403


def test_requests_of_own_pages_are_served():
    assert answer({"origin": "http://localhost:9324", "sec-fetch-site": "same-origin"}) == "done"
    assert answer({"origin": "http://LOCALHOST:9324"}) == "done"


PAGES = ["/", "/console", "/console/", "/console/?queue=x", "/console/app.js", "/health", "/metrics"]


@pytest.mark.parametrize("path", PAGES)
def test_what_is_opened_from_the_address_bar_is_a_page(path):
    assert ask({"sec-fetch-site": "none"}, method="GET", path=path).status_code in (200, 307, 404)
    assert ask({"sec-fetch-site": "none"}, method="POST", path=path).status_code == 403


@pytest.mark.parametrize("path", ["/?Action=ListQueues", "/orders", "/000000000000/orders", "/console/api/queues"])
@pytest.mark.parametrize("any_host", [True, False])
def test_a_link_opens_nothing_else(path, any_host):
    found = ask({"sec-fetch-site": "none"}, method="GET", path=path, any_host=any_host)
    assert found.status_code == 403


@pytest.mark.parametrize("name", ["sec-purpose", "purpose"])
@pytest.mark.parametrize("path", PAGES)
def test_nothing_is_fetched_in_advance(name, path):
    for more in ({}, {"sec-fetch-site": "none"}, {"sec-fetch-site": "same-origin"}):
        assert ask({name: "prefetch"} | more, method="GET", path=path).status_code == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site", "", "Same-Origin", "none, same-site"])
@pytest.mark.parametrize("any_host", [True, False])
def test_requests_across_sites_and_of_neighbours_are_refused(site, any_host):
    assert answer({"sec-fetch-site": site}, any_host=any_host) == "AccessDenied"
    own = {"sec-fetch-site": site, "origin": "http://localhost:9324"}
    assert answer(own, any_host=any_host) == "AccessDenied"


def test_a_refusal_is_in_the_protocol_of_the_request():
    foreign = {"origin": "http://evil.example"}
    assert ask(foreign | {"content-type": JSON}).headers["content-type"] == JSON
    assert "xml" in ask(foreign | {"content-type": FORM}).headers["content-type"]


def test_heads_have_limits():
    few = {f"x-{n}": "1" for n in range(MAX_HEADERS - 10)}
    assert answer(few) == "done"
    assert answer(few | {f"y-{n}": "1" for n in range(11)}) == "RequestHeaderFieldsTooLarge"
    assert answer({"x": "1" * (MAX_HEAD_BYTES - 2_000)}) == "done"
    assert answer({"x": "1" * MAX_HEAD_BYTES}) == "RequestHeaderFieldsTooLarge"
    assert (
        answer({"x": "1" * 10_000}, path="/?" + "x" * (MAX_HEAD_BYTES - 10_000)) == "RequestHeaderFieldsTooLarge"
    )


@pytest.mark.parametrize("path", ["/fail", "/late"])
def test_an_error_that_nobody_caught_leaves_no_trace_on_the_wire(path, caplog):
    with caplog.at_level(logging.ERROR):
        if path == "/fail":
            found = ask({"content-type": JSON}, path=path)
            error = wire_error(found.status_code, found.headers, found.content)
            assert (error.status, error.code, error.message) == (500, "InternalFailure", "The server failed.")
        else:
            with pytest.raises(
                AssertionError
            ):  # httpx misses the end of the answer; uvicorn closes the connection
                ask(method="GET", path=path)
    (record,) = [record for record in caplog.records if record.name == "lakequeue.serve"]
    text = JsonLines(SystemClock()).format(record)
    assert json.loads(text)["error"] == f"ValueError: {FORGED}"
    assert "\\nERROR line \\u001b[31m\\u2028" in text and "\nERROR" not in text and "\x1b" not in text


def test_a_connection_is_closed_unless_all_of_the_body_was_read():
    assert ask(content=b"x").headers["connection"] == "close"
    assert "connection" not in ask().headers
    assert "connection" not in ask(method="GET").headers
