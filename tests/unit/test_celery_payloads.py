"""What a worker of Celery without a broker takes for a message: all that kombu can read."""

from __future__ import annotations

import base64
import json
import resource
import zlib
from types import SimpleNamespace
from typing import Any

import pytest
from kombu import compression
from kombu.serialization import dumps
from kombu.transport import virtual

from lakequeue.integrations import celery_payloads
from lakequeue.integrations.celery_payloads import Malformed, eta_of, mark_delivery, payload_of

TASK = {"task": "jobs.add", "id": "1"}
FIRST = {"task": "jobs.add", "id": "1", "args": [1, 2], "kwargs": {}, "retries": 0, "eta": None}
"""A task in the first protocol, as other languages still send it."""
ACCEPTED = {"application/json", "application/x-python-serialize", "application/x-yaml"}
SECOND = [[1, 2], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]


def coded(body: bytes) -> str:
    return base64.b64encode(body).decode()


def packed(value: Any) -> str:
    return coded(zlib.compress(json.dumps(value).encode()))


def sent(value: Any, serializer: str = "json", **more: Any) -> dict[str, Any]:
    """A message as kombu's virtual transports make it."""
    kind, encoding, body = dumps(value, serializer=serializer)
    whole = {
        "body": coded(body.encode() if isinstance(body, str) else body),
        "content-type": kind,
        "content-encoding": encoding,
        "headers": TASK,
        "properties": {"body_encoding": "base64", "delivery_info": {"exchange": ""}, "delivery_tag": "1"},
    }
    return whole | more


def taken(text: str) -> virtual.Message:
    """Returns kombu's reading of a payload."""
    message: Any = SimpleNamespace(body=text, receive_count=1)
    payload = payload_of(message)
    mark_delivery(payload, message)
    channel = SimpleNamespace(decode_body=lambda *given: virtual.Channel.decode_body(virtual.Channel, *given))
    return virtual.Message(payload, channel=channel, accept=ACCEPTED)


READABLE = {
    "json": (sent(SECOND), SECOND),
    "pickle": (sent(tuple(SECOND), "pickle"), tuple(SECOND)),
    "yaml": (sent(SECOND, "yaml"), SECOND),
    "a body of text": (sent(SECOND, body=json.dumps(SECOND), properties={}), SECOND),
    "the first protocol": (sent(FIRST, headers={}), FIRST),
    "the first protocol without headers": (sent(FIRST, headers=None), FIRST),
    "the first protocol with headers of the second": (sent(FIRST), FIRST),
    "properties of other senders": (sent(FIRST, headers={}, properties={"body_encoding": "base64"}), FIRST),
    "the first protocol without arguments": (sent({"task": "x", "id": "1"}, headers={}), {"task": "x", "id": "1"}),
    "a compressed task": (sent(SECOND, headers=TASK | {"compression": "gzip"}, body=packed(SECOND)), SECOND),
    "no task": (sent({"a": 1}, headers={}), {"a": 1}),
    "an empty body": (sent("", headers={}, body=""), None),
}


@pytest.mark.parametrize(("payload", "value"), READABLE.values(), ids=READABLE)
def test_what_kombu_reads_is_not_malformed(payload: dict[str, Any], value: Any) -> None:
    text = json.dumps(payload)
    for whole in (text, coded(text.encode())):  # as kombu sends it to SQS
        message = taken(whole)
        assert message.body == b"" or not message.body if value is None else message.decode() == value


@pytest.mark.parametrize("eta", ["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.123+01:00", "20260102T030405", None])
def test_an_eta_is_read_as_celery_reads_it(eta: str | None) -> None:
    text = json.dumps(sent(SECOND, headers=TASK | {"eta": eta}))
    found = eta_of(payload_of(SimpleNamespace(body=text)))  # type: ignore[arg-type]
    assert (found is None) == (eta is None) and (found is None or found.tzinfo is not None)


CHECKED = {
    "shadow": ["käse", ""],
    "root_id": ["1"],
    "parent_id": ["1"],
    "group": ["1"],
    "group_index": [0, 3],
    "retries": [0, 3],
    "replaced_task_nesting": [0, 2],
    "timelimit": [[None, None], [5, 2.5]],
    "eta": ["2026-01-02T03:04:05Z", ""],
    "expires": ["2026-01-02T03:04:05.1+01:00"],
    "argsrepr": ["(1, 2)"],
    "kwargsrepr": ["{}"],
    "lang": ["py"],
    "origin": ["gen1@here"],
    "ignore_result": [True, False],
    "stamped_headers": [[], ["a"]],
    "stamps": [{}, {"a": ["b"]}],
    "chord": [{"task": "x"}],
    "chain": [[], [{"task": "x"}]],
    "errbacks": [[{"task": "x"}]],
    "callbacks": [[{"task": "x"}]],
    "groups": [["1"]],
    "children": [[]],
}
"""What Celery reads in the main process of a worker, with values that it can take."""
ANY = [*(5, -1, 1.5, 1e999, True, "x", "", "\ud800", [], [5], [[1]], [{}], {}, {"task": 1}), *([1], ["x", "y"])]
ANY += [[-1, 1], [1e999, 1], [1, 2, 3], {"a": 1, "b": 2}, "0001-01-01T00:00:00", "9999-12-31T23:59:59+00:00"]

_TEXTS = [value for value in ANY if isinstance(value, str) and value != "\ud800"]
ALSO: dict[str, list[Any]] = {
    **dict.fromkeys(
        ("shadow", "root_id", "parent_id", "group", "argsrepr", "kwargsrepr", "lang", "origin"), _TEXTS
    ),
    **dict.fromkeys(("group_index", "retries", "replaced_task_nesting"), [5]),
    **dict.fromkeys(("chain", "errbacks", "callbacks", "children"), [[]]),
    **dict.fromkeys(("groups", "stamped_headers"), [[], ["x", "y"]]),
    **dict.fromkeys(("eta", "expires"), [""]),
    "ignore_result": [True],
    "stamps": [value for value in ANY if isinstance(value, dict)],
}
"""Of ``ANY``, what a worker can take, though nobody sends it."""


def with_one(name: str, value: Any) -> list[dict[str, Any]]:
    """Messages that say something in a header, in the body of the first protocol, or with tasks that follow."""
    follow = SECOND[:2] + [{name: value}]
    return [
        sent(SECOND, headers=TASK | {name: value}),
        sent(FIRST | {name: value}, headers={}),
        sent(FIRST, headers=TASK | {name: value}),
        sent(follow),
        sent(SECOND, headers=TASK | {name: value, "compression": "gzip"}, body=packed(SECOND)),
    ]


@pytest.mark.parametrize("name", CHECKED)
def test_each_value_that_celery_reads_is_checked(name: str) -> None:
    for value in (*CHECKED[name], None):
        for payload in with_one(name, value):
            taken(json.dumps(payload))
    for value in ANY:
        for payload in with_one(name, value):
            if value in ALSO.get(name, ()) and not (isinstance(value, bool) and name != "ignore_result"):
                taken(json.dumps(payload))
            else:
                with pytest.raises(Malformed, match="is not |decoded"):
                    taken(json.dumps(payload))


@pytest.mark.parametrize("name", ["callbacks", "chain", "errbacks"])
def test_tasks_that_follow_have_all_parts(name: str) -> None:
    """A worker with threads never settles a task that fails if the parts of those that follow are wrong."""
    whole = {"task": "x", "args": [1], "kwargs": {"a": 1}, "options": {"task_id": "7", "group_id": None}}
    bare = {"args": [], "kwargs": {}, "options": {}}
    for follow, found in (([whole], [whole]), ([{"task": "x"}, whole], [{"task": "x"} | bare, whole])):
        for body in (SECOND[:2] + [{name: follow}], FIRST | {name: follow}):
            headers = TASK if isinstance(body, list) else {}
            packed_headers = {**TASK, "compression": "gzip"}
            for payload in (sent(body, headers=headers), sent(body, headers=packed_headers, body=packed(body))):
                decoded = taken(json.dumps(payload)).decode()
                assert (decoded[2] if isinstance(decoded, list) else decoded)[name] == found
    parts = [{part: wrong} for part in bare for wrong in (5, "x", None, True)]
    parts += [{"args": {}}, {"kwargs": []}, {"options": [5]}]
    parts += [{"options": {"task_id": wrong}} for wrong in (5, [5], {}, "\ud800", "x" * 256)]
    parts += [{"options": {"group_id": wrong}} for wrong in (5, [5])] + [{"options": {"chord": 5}}]
    for part in parts:
        for body in (SECOND[:2] + [{name: [whole, whole | part]}], FIRST | {name: [whole | part]}):
            headers = TASK if isinstance(body, list) else {}
            with pytest.raises(Malformed, match=f"its {name} is not a list of tasks"):
                taken(json.dumps(sent(body, headers=headers)))


@pytest.mark.parametrize("name", ["reply_to", "correlation_id"])
def test_properties_and_the_way_of_a_message_are_checked(name: str) -> None:
    for value in (5, [], {}, "\ud800"):
        properties = {"body_encoding": "base64", name: value}
        with pytest.raises(Malformed, match=f"its {name} is not a text"):
            taken(json.dumps(sent(SECOND, properties=properties)))
        route = {"body_encoding": "base64", "delivery_info": {"routing_key": value}}
        with pytest.raises(Malformed, match="its routing_key is not a text"):
            taken(json.dumps(sent({"a": 1}, headers={}, properties=route)))


def test_a_sender_cannot_say_by_which_consumer_a_message_came() -> None:
    route = {"body_encoding": "base64", "delivery_info": {"consumer_tag": []}}
    assert "consumer_tag" not in taken(json.dumps(sent(SECOND, properties=route))).delivery_info


@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz", "zstd", "brotli"])
@pytest.mark.parametrize("spare", [0, -1])
def test_a_compressed_body_is_decompressed_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch, kind: str, spare: int
) -> None:
    if kind in {"zstd", "brotli"} and getattr(compression, kind, None) is None:
        pytest.skip(f"{kind} is not installed")
    body = json.dumps([[0] * 200_000, {}, None])
    monkeypatch.setattr(celery_payloads, "_LARGEST", len(body) + spare)
    data, name = compression.compress(body, kind)
    payload = sent(SECOND, headers=TASK | {"compression": name}, body=coded(data))
    if spare == 0:
        message = taken(json.dumps(payload))
        assert message.decode()[0] == [0] * 200_000
        assert "compression" not in message.headers  # else kombu would decompress without a bound
    else:
        with pytest.raises(Malformed, match="not complete, or larger"):
            taken(json.dumps(payload))


@pytest.mark.parametrize(
    ("text", "number", "problem"),
    [(b"\0" * 2**20, 512, "larger than 64 MiB"), (b"[]," * 2**20, 21, "more than 1,000,000 elements")],
    ids=["zeros", "lists"],
)
def test_a_body_that_would_take_gigabytes_takes_no_more_than_its_bound(
    text: bytes, number: int, problem: str
) -> None:
    made = zlib.compressobj(1)
    body = b"".join(made.compress(part) for part in (b"[", *[text] * number, b"0]")) + made.flush()
    payload = sent(SECOND, headers=TASK | {"compression": "application/x-gzip"}, body=coded(body))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(Malformed, match=problem):
        taken(json.dumps(payload))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 250 * 1024


@pytest.mark.parametrize("element", ["[]", '{"":0}', '[[""]]', '"a,[b"', "1"])
def test_a_compressed_body_has_a_bounded_number_of_elements(monkeypatch: pytest.MonkeyPatch, element: str) -> None:
    monkeypatch.setattr(celery_payloads, "_MOST", 1_000)
    each = 1 + element.count("[") + element.count("{") - ("a" in element)
    fit = (celery_payloads._MOST - 4) // each  # two lists, an object and the commas between them
    headers = TASK | {"compression": "gzip"}
    for number, fits in ((fit, True), (fit + 2, False)):
        body = f"[[{','.join([element] * number)}], {{}}, null]".encode()
        payload = json.dumps(sent(SECOND, headers=headers, body=coded(zlib.compress(body, 1))))
        if fits:
            assert len(taken(payload).decode()[0]) == number
            continue
        with pytest.raises(Malformed, match="more than 1,000 elements"):
            taken(payload)


def test_a_compressed_text_is_one_element_whatever_it_holds() -> None:
    text = '[{,"\\' * 1_000_000
    payload = sent(SECOND, headers=TASK | {"compression": "gzip"}, body=packed([[text], {}, None]))
    assert taken(json.dumps(payload)).decode()[0] == [text]


ENDING = {
    "a part of a compressed body": json.dumps(
        sent(SECOND, headers=TASK | {"compression": "gzip"}, body=coded(zlib.compress(b"[[], {}, null]")[:-3]))
    ),
    "tasks that follow in a list": json.dumps(sent([*SECOND[:2], ["args"]])),
    **{text: text for text in ("", "x", "5", "W10=", "bnVsbA==", "/w==")},
    "a list": json.dumps([sent(SECOND)]),
    "no arguments": json.dumps(sent([1])),
    "no arguments, compressed": json.dumps(sent([1], headers=TASK | {"compression": "gzip"}, body=packed([1]))),
    "compressed by nothing known": json.dumps(sent(SECOND, headers=TASK | {"compression": "x"})),
    "half a character as id": json.dumps(sent(SECOND, headers=TASK | {"id": "\ud800"})),
    "a long id": json.dumps(sent(SECOND, headers=TASK | {"id": "x" * 256})),
    "an id with NUL": json.dumps(sent(SECOND, headers=TASK | {"id": "a\0b"})),
    "half a character as task": json.dumps(sent(SECOND, headers=TASK | {"task": "\ud800"})),
    "the first protocol without an id": json.dumps(sent({"task": "x"}, headers={})),
    "the first protocol with half a character as id": json.dumps(sent(FIRST | {"id": "\ud800"}, headers={})),
    "the first protocol with a list as task": json.dumps(sent(FIRST | {"task": []}, headers={})),
}


@pytest.mark.parametrize("text", ENDING.values(), ids=ENDING)
def test_what_would_end_a_worker_is(text: str) -> None:
    with pytest.raises(Malformed):
        payload_of(SimpleNamespace(body=text))  # type: ignore[arg-type]
