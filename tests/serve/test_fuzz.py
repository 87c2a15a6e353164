"""Requests made from the service model, right ones and broken ones: none of them makes the server fail."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode
from xml.etree import ElementTree

import attrs
import httpx
import pytest
from botocore.model import ListShape, MapShape, Shape, StructureShape
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st

from hostile import BODIES, conditions
from lakequeue import LakeQueue
from lakequeue.conditions import sandbox
from lakequeue.entry_verbs import prepare
from lakequeue.model.clock import SystemClock
from lakequeue.serve import limits
from lakequeue.serve.app import Application
from lakequeue.serve.connection import Connection
from lakequeue.serve.sqs import query_json, query_protocol
from lakequeue.serve.sqs.model import operations
from serve.raw_requests import FORM, JSON, post, wire_error
from serve.serving import serving, wait_until

BASE = "http://localhost:9324"
NAMES = ["orders", "orders", "orders.fifo", "orders.fifo", "dead", "new"]
ARN = "arn:aws:sqs:local:000000000000:"
LONG_SECONDS = 600
MAX_URL = 20_000
"""Bytes of a form that go into a URL; httpx may quote each by three, and takes 65,536."""


def mostly(sane: st.SearchStrategy[Any], wild: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """One in a dozen is wild; a request has many members, and one is enough to have it refused."""
    return st.integers(0, 11).flatmap(lambda n: wild if n == 7 else sane)


any_text = st.text(max_size=30) | st.sampled_from(
    [
        "",
        "1e400",
        "null",
        "[]",
        "\x00",
        "\ud800",
        "\uffff",
        "A" * 70_000,
        "a" * 81,
        "*",
        "../x",
        "a b",
        "9" * 5_000,
    ]
    + ["\u0661", "NaN", "1_0", "[" * 20_000, "=", "1e-99999999999"]
)
texts = mostly(st.sampled_from(["0", "1", "30", "1024", "true", "{}", "a", "x" * 500]), any_text)
names = mostly(st.sampled_from(NAMES), any_text)
numbers = mostly(
    st.integers(0, 10), st.sampled_from([-1, 11, 20, 900, 43_201, 120_000, 2**31, 2**63, -(2**63), 10**40])
)
values = st.none() | st.booleans() | numbers | st.floats(allow_nan=False, allow_infinity=False) | any_text
junk = st.recursive(
    values,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(any_text, inside, max_size=3),
    max_leaves=6,
)
policies = mostly(
    st.fixed_dictionaries({"deadLetterTargetArn": names.map(ARN.__add__), "maxReceiveCount": numbers}),
    st.dictionaries(texts, texts, max_size=2)
    | st.fixed_dictionaries({"Statement": junk}, optional={"Version": junk, "Id": junk})
    | st.fixed_dictionaries(
        {"redrivePermission": st.sampled_from(["allowAll", "byQueue"])}, optional={"sourceQueueArns": junk}
    )
    | st.fixed_dictionaries({"deadLetterTargetArn": st.just(f"{ARN}dead"), "maxReceiveCount": junk})
    | junk,
).map(json.dumps)
handles: list[str] = []
"""Receipt handles, tokens and task handles that the server has given out."""


@attrs.frozen
class Asked:
    action: str
    kind: str
    path: str
    body: bytes
    target: str | None = None
    accept: str = "*/*"

    def headers(self) -> dict[str, str]:
        named = {"x-amz-target": self.target} if self.target else {}
        return {"content-type": self.kind, "accept": self.accept} | named


def text_for(name: str, shape: Shape) -> st.SearchStrategy[Any]:
    """Texts that a member may well have, by its name."""
    known = {
        "QueueUrl": names.map(lambda queue: f"{BASE}/000000000000/{queue}"),
        "QueueName": names,
        "QueueNamePrefix": names,
        "SourceArn": names.map(ARN.__add__),
        "DestinationArn": names.map(ARN.__add__),
        "DataType": st.sampled_from(["String", "Number", "Binary", "String.x"]),
        "StringValue": mostly(st.just("1"), any_text),
        "Id": mostly(st.integers(1, 99).map(str), any_text),
        "MessageGroupId": mostly(st.sampled_from(["g", "h"]), any_text),
        "MessageDeduplicationId": mostly(st.integers(1, 99).map(str), any_text),
        "ReceiptHandle": given_out(),
        "NextToken": given_out(),
        "TaskHandle": given_out(),
        "RedrivePolicy": policies,
        "RedriveAllowPolicy": policies,
        "Policy": policies,
    }
    if name in known:
        return known[name]
    enum = getattr(shape, "enum", None)
    return st.sampled_from(enum) if enum else texts


def given_out() -> st.SearchStrategy[str]:
    return st.integers(0, 40).map(lambda n: handles[-1 - n] if n < len(handles) else "AQEB")


def member(shape: Shape, name: str = "") -> st.SearchStrategy[Any]:
    """Values of a shape, as JSON has them; mostly such that mean something."""
    match shape:
        case StructureShape():
            members = {key: member(inner, key) for key, inner in shape.members.items()}
            needed = {key: members[key] for key in shape.required_members}
            more = {key: value for key, value in members.items() if key not in needed}
            few = st.lists(st.sampled_from(sorted(more)), max_size=2, unique=True) if more else st.just([])
            return few.flatmap(lambda keys: st.fixed_dictionaries(needed | {key: more[key] for key in keys}))
        case ListShape():
            return st.lists(member(shape.member, name), max_size=4)
        case MapShape():
            keys = mostly(st.sampled_from(getattr(shape.key, "enum", None) or ["a", "b.c", "d"]), any_text)
            return keyed(st.lists(keys, max_size=2, unique=True), shape)
    match shape.type_name:
        case "integer" | "long":
            return numbers
        case "boolean":
            return st.booleans()
        case "blob":
            return mostly(st.just("AAEC"), any_text)
    return text_for(name, shape)


def keyed(keys: st.SearchStrategy[list[str]], shape: MapShape) -> st.SearchStrategy[dict[str, Any]]:
    def filled(chosen: list[str]) -> st.SearchStrategy[dict[str, Any]]:
        special = {"RedrivePolicy": policies, "RedriveAllowPolicy": policies, "Policy": policies}
        each = member(shape.value) if isinstance(shape.value, StructureShape) else texts
        return st.fixed_dictionaries({key: special.get(key, each) for key in chosen})

    return keys.flatmap(filled)


@st.composite
def broken(draw: st.DrawFn, value: Any) -> Any:
    """A value of which one part is another."""
    if isinstance(value, dict) and value and draw(st.booleans()):
        key = draw(st.sampled_from(sorted(value)))
        match draw(st.sampled_from(["into", "without", "renamed"])):
            case "into":
                return value | {key: draw(broken(value[key]))}
            case "without":
                return {name: item for name, item in value.items() if name != key}
            case _:
                return {draw(texts) if name == key else name: item for name, item in value.items()}
    if isinstance(value, list) and value and draw(st.booleans()):
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], draw(broken(value[place])), *value[place + 1 :]]
    if isinstance(value, dict) and draw(st.booleans()):
        return value | {draw(texts): draw(junk)}
    return draw(junk)


def fields(shape: Shape, value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """A value as the fields of a form, as far as it can be one."""
    prefix = f"{name}." if name else ""
    match shape, value:
        case StructureShape(), dict():
            for key, item in value.items():
                inner = shape.members.get(key)
                if inner is None:
                    yield f"{prefix}{key}", item
                else:
                    yield from fields(inner, item, prefix + query_protocol._element(key, inner))
        case ListShape(), list():
            for n, item in enumerate(value, 1):
                yield from fields(shape.member, item, f"{prefix}{n}")
        case MapShape(), dict():
            for n, (key, item) in enumerate(value.items(), 1):
                yield f"{prefix}{n}.{query_protocol.key_name(shape)}", key
                yield from fields(shape.value, item, f"{prefix}{n}.Value")
        case _, bool():
            yield name, str(value).lower()
        case _:
            yield name, value


@st.composite
def requests(draw: st.DrawFn) -> Asked:
    action = draw(st.sampled_from([*sorted(operations()), *["SendMessage", "ReceiveMessage"] * 4]))
    shape = operations()[action].input_shape
    value = draw(member(shape))
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 0, 1, 2]))):
        value = draw(broken(value))
    path = draw(st.sampled_from(["/", "/", "/000000000000/orders", "/queue/new", "/%ff/%2F"]))
    if draw(st.booleans()):
        body, kind, target = json.dumps(value).encode(), JSON, f"AmazonSQS.{action}"
    else:
        form = [("Action", action), *(fields(shape, value, "") if isinstance(value, dict) else [("x", value)])]
        body, kind, target = urlencode(form, errors="surrogatepass").encode(), FORM, None
    match draw(st.sampled_from([*["as it is"] * 12, "cut", "changed", "random", "deep", "long"])):
        case "deep":
            levels, bracket = draw(st.integers(1, 60_000)), draw(st.sampled_from([b"[", b'{"a":', b'["a",']))
            body = bracket * levels + draw(st.sampled_from([b"", b"1", b"]" * levels, b"}" * levels]))
        case "long":
            many, item = draw(st.integers(1, 60_000)), draw(st.sampled_from([b"[]", b"{}", b"1", b'"a"', b"a=1"]))
            body = draw(st.sampled_from([b"[%b]", b'{"Entries":[%b]}', b"%b"])) % b",".join([item] * many)
        case "cut":
            body = body[: draw(st.integers(0, len(body)))]
        case "changed":
            place = draw(st.integers(0, len(body)))
            body = body[:place] + draw(st.binary(max_size=4)) + body[place + draw(st.integers(0, 4)) :]
        case "random":
            body = draw(st.binary(max_size=200))
    return Asked(action, kind, path, body, target, draw(st.sampled_from(["*/*", "*/*", query_json.RESPONSE_TYPE])))


class Forward(SystemClock):
    """The machine's clock, put forward now and then."""

    by = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.by


class Fuzzed:
    """An application that is asked without a socket, and what it has answered."""

    def __init__(self, application: Application, clock: Forward, loop: asyncio.AbstractEventLoop) -> None:
        self._lake, self._clock, self._loop = application.actions.lake, clock, loop
        self._lake._runtime._tables.guard.now = None  # as if the storage's clock were put forward, too
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(application.asgi), base_url=BASE, timeout=None
        )
        self.answers: Counter[tuple[str, int]] = Counter()

    def ask(self, asked: Asked) -> None:
        form = asked.body.decode("latin-1")
        fits = len(form) < MAX_URL and form.isascii() and form.isprintable()
        by_get = asked.kind == FORM and fits and self.answers.total() % 2  # a form may be in the URL, too
        if by_get:
            sent = self._client.get(f"{asked.path}?{form}", headers=asked.headers())
        else:
            sent = self._client.post(asked.path, content=asked.body, headers=asked.headers())
        answer = self._loop.run_until_complete(sent)
        assert answer.status_code < 500, answer.text
        if answer.text == "<UnknownOperationException/>":
            assert by_get and answer.status_code == 404
            return
        self.answers[asked.action, answer.status_code] += 1
        if answer.status_code == 200:
            self._remember(asked, answer)
            if asked.action == "DeleteQueue":
                self._clock.by += timedelta(seconds=61)
                make_missing_queues(self._lake)
        else:
            error = wire_error(answer.status_code, answer.headers, answer.content)
            assert error.code and error.message

    def look(self, path: str, members: dict[str, str]) -> None:
        """Asks the console; its conditions are not all conditions."""
        sent = self._client.get(f"/console/api/queues/orders/{path}", params=members)
        answer = self._loop.run_until_complete(sent)
        assert answer.status_code in (200, 400), answer.text
        told = answer.json()
        if answer.status_code == 400:
            assert told["code"] and "\n" not in told["message"] and len(told["message"]) < 1_100
        self.answers[f"console {path}", answer.status_code] += 1

    def change(self, path: str, members: Any) -> None:
        """Has the console change something."""
        content = json.dumps(members).encode()
        headers = {"Content-Type": "application/json", "X-Lakequeue-Console": "1"}
        sent = self._client.post(f"/console/api/{path}", content=content, headers=headers)
        answer = self._loop.run_until_complete(sent)
        assert answer.status_code in (200, 400, 403), answer.text
        told = answer.json()
        if answer.status_code != 200:
            assert told["code"] and "\n" not in told["message"] and len(told["message"]) < 1_100
            assert told.get("field") is None or told["field"] in json.dumps(members)
        self.answers[f"console {path}", answer.status_code] += 1

    def _remember(self, asked: Asked, answer: httpx.Response) -> None:
        if asked.kind == JSON:
            document = answer.json() if answer.content else {}
            assert isinstance(document, dict)
            if asked.action == "ReceiveMessage":
                handles.extend(message["ReceiptHandle"] for message in document.get("Messages", []))
            handles.extend(document[name] for name in ("NextToken", "TaskHandle") if name in document)
        elif asked.accept != "*/*":
            assert [*answer.json()] == [f"{asked.action}Response"]
        else:
            root = ElementTree.fromstring(answer.content)
            assert root.tag == f"{{{query_protocol.NAMESPACE}}}{asked.action}Response"
        del handles[:-40]

    def fill(self) -> None:
        """Has hostile messages in a queue."""
        for body in BODIES:
            if body:
                self._lake.queue("orders").send(body)

    def serves(self) -> bool:
        self.ask(Asked("ListQueues", JSON, "/", b"{}", "AmazonSQS.ListQueues"))
        return self.answers["ListQueues", 200] > 0


def make_missing_queues(lake: LakeQueue) -> None:
    """Makes those of the queues that are not there."""
    there = {queue.name for queue in lake.list_queues()}
    policy = json.dumps({"deadLetterTargetArn": f"{ARN}dead", "maxReceiveCount": 1})
    wanted = {"dead": {}, "orders": {"RedrivePolicy": policy}, "orders.fifo": {"FifoQueue": "true"}}
    for name, attributes in wanted.items():
        if name not in there:
            lake.create_queue(name, Profile="sqs", **attributes)


@contextmanager
def fuzzed(root: Path) -> Iterator[Fuzzed]:
    clock = Forward()
    lake = LakeQueue(str(root), clock=clock)
    prepare(lake)
    application = Application(lake)
    make_missing_queues(lake)
    application.endpoint.receives.stop()  # nobody waits for messages
    loop = asyncio.new_event_loop()
    lifespan = application.pages.router.lifespan_context(application.pages)
    try:
        loop.run_until_complete(lifespan.__aenter__())
        yield Fuzzed(application, clock, loop)
        loop.run_until_complete(lifespan.__aexit__(None, None, None))
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def often(examples: int) -> settings:
    """Settings for a server that remembers: a smaller request may not fail again."""
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )


def fuzz(ask: Callable[[Any], None], asked: st.SearchStrategy[Any], examples: int, start: int) -> None:
    """Asks a number of times, other things for each start."""

    def one(each: Any) -> None:
        ask(each)

    seed(start)(often(examples)(given(asked)(one)))()


@st.composite
def looks(draw: st.DrawFn) -> tuple[str, dict[str, str]]:
    """What the console may be asked for, with a condition that is mostly one."""
    path = draw(st.sampled_from(["messages", "messages", "history", "redrive"]))
    where = draw(conditions).encode(errors="replace").decode()
    while len(quote(where)) > 60_000:  # or the client refuses it
        where = where[: len(where) // 2]
    members = {"where": where}
    if path != "redrive":
        more = {
            "text": st.text(max_size=10).map(lambda text: text.encode(errors="replace").decode()),
            "state": st.sampled_from(["visible", "held", "x"]),
            "limit": texts.map(lambda text: ascii(text)[:100]),
        }
        for name in draw(st.lists(st.sampled_from(sorted(more)), max_size=2, unique=True)):
            members[name] = draw(more[name])
    return path, members


@st.composite
def changes(draw: st.DrawFn) -> tuple[str, Any]:
    """What the console may be told to change, mostly with members that it knows; the queue itself stays."""
    text = texts.map(lambda each: each.encode(errors="replace").decode())
    value = st.one_of(text, st.integers(), st.booleans(), st.none(), st.lists(text, max_size=3))
    names = st.sampled_from(["DelaySeconds", "VisibilityTimeout", "RedrivePolicy", "RewindSeconds", "Colour"])
    given: dict[str, st.SearchStrategy[Any]] = {
        "ids": st.one_of(st.lists(st.one_of(text, st.just("x")), max_size=5), value),
        "in_flight": st.one_of(st.booleans(), value),
        "QueueName": st.one_of(st.sampled_from(["a", "b.fifo"]), value),
        "Attributes": st.one_of(st.dictionaries(names, st.one_of(st.sampled_from(["0", "5", ""]), value)), value),
        "name": value,
    }
    known = {
        "queues": ("QueueName", "Attributes"),
        "queues/orders/attributes": ("Attributes",),
        "queues/orders/delete": ("name",),
        "queues/orders/messages/delete": ("ids",),
        "queues/orders/messages/visible": ("ids", "in_flight"),
    }
    path = draw(st.sampled_from(sorted(known)))
    more = draw(st.lists(st.sampled_from(sorted(given)), max_size=1)) if draw(st.integers(0, 4)) == 0 else []
    members = {name: draw(given[name]) for name in (*known[path], *more)}
    assume(path != "queues/orders/delete" or members["name"] != "orders")
    return path, members if draw(st.integers(0, 9)) else draw(value)


CONSOLE = {
    "conditions": (lambda server, asked: server.look(*asked), looks(), 60, "console messages"),
    "changes": (lambda server, asked: server.change(*asked), changes(), 150, "console "),
}
"""How it is asked, for what, how often in the short form, and some of the answers, which are of both kinds."""


LONG = [pytest.mark.long, pytest.mark.timeout(LONG_SECONDS * 2)]
LENGTHS = [pytest.param(False, id="short"), pytest.param(True, id="ten minutes", marks=LONG)]


@pytest.mark.parametrize("long", LENGTHS)
@pytest.mark.parametrize("kind", CONSOLE)
def test_nothing_makes_the_console_fail(tmp_path, monkeypatch, kind, long):
    monkeypatch.setattr(sandbox, "SECONDS", 1.0)
    ask, asked, examples, name = CONSOLE[kind]
    end = time.monotonic() + long * LONG_SECONDS
    with fuzzed(tmp_path / "root") as server:
        server.fill()
        for start in itertools.count(int(long)):
            fuzz(partial(ask, server), asked, examples, start)
            if time.monotonic() > end:
                break
        assert server.serves()
        assert {status for path, status in server.answers if path.startswith(name)} >= {200, 400}
        print(f"{server.answers.total()} of the {kind}", sorted(server.answers.items()))


@pytest.mark.parametrize("long", LENGTHS)
def test_no_request_makes_the_server_fail(tmp_path, long):
    end, round = time.monotonic() + long * LONG_SECONDS, itertools.count(int(long))
    while True:
        begun = next(round)
        with fuzzed(tmp_path / str(begun)) as server:
            fuzz(server.ask, requests(), 150, begun * 1_000)
            while time.monotonic() < end and server.answers.total() < 2_000:
                fuzz(server.ask, requests(), 250, begun * 1_000 + server.answers.total())
            assert server.serves()
            assert {status for _, status in server.answers} >= {200, 400}
            print(f"round {begun}: {server.answers.total()} requests", sorted(server.answers.items()))
        if time.monotonic() > end:
            break


@st.composite
def raw_requests(draw: st.DrawFn) -> list[bytes]:
    """A request as it goes through a socket, with some bytes changed, in one piece or in several."""
    asked = draw(requests())
    head = "Transfer-Encoding: chunked" if draw(st.booleans()) else ""
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(asked.body), asked.body) if head and asked.body else asked.body
    data = post(body, (asked.target or "").removeprefix("AmazonSQS."), asked.kind, head)
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, min(len(data), 400)))
        new = draw(
            st.binary(max_size=4)
            | st.sampled_from([b"\r\n", b"\r\n\r\n", b"\n", b"\n\n", b":", b" ", b"0", b"-", b"\x00", b"\r"])
            | st.sampled_from(
                [b"Transfer-Encoding: chunked\r\n", b"Content-Length: 5\r\n", b"X: " + b"y" * 70_000]
            )
        )
        data = data[:place] + new + data[place + draw(st.integers(0, 4)) :]
    cut = draw(st.integers(0, len(data)))
    return draw(st.sampled_from([[data], [data[:cut], data[cut:]], [data[:cut]], [data * 2]]))


@pytest.mark.parametrize("long", LENGTHS)
def test_no_bytes_make_the_server_fail(tmp_path, monkeypatch, long):
    monkeypatch.setattr(Connection, "head_seconds", 0.02)
    monkeypatch.setattr(limits, "BODY_TIMEOUT", 0.02)
    with serving(tmp_path / "root") as running:
        running.application.endpoint.receives.stop()
        running.server.config.timeout_keep_alive = 0.02
        make_missing_queues(running.application.actions.lake)
        found: Counter[bytes] = Counter()

        def ask(parts: list[bytes]) -> None:
            answer = running.exchange(*parts)
            assert not answer or answer.startswith(b"HTTP/1.1 ")
            assert b"Traceback" not in answer
            found[answer[9:12]] += 1

        end = time.monotonic() + long * LONG_SECONDS
        for start in itertools.count(int(long)):
            fuzz(ask, raw_requests(), 500 if long else 100, start)
            if time.monotonic() > end:
                break
        assert not [status for status in found if status.startswith(b"5")]
        assert running.serves()
        wait_until(lambda: not running.server.server_state.connections)
        print(f"{found.total()} exchanges", sorted(found.items()))
