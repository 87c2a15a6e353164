"""What a worker of Celery without a broker takes for a message: all that kombu can read."""

from __future__ import annotations

import base64
import json
import zlib
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.serialization import dumps
from kombu.transport import virtual

from lakequeue.integrations.celery_consumers import Malformed, eta_of, mark_delivery, payload_of

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
    """What kombu makes of what it is given."""
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


ENDING = {
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
