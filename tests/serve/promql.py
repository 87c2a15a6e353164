"""Expressions of PromQL, and the samples that they may name."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from lakequeue import Consumer, Context, LakeQueue, Message
from lakequeue import errors as error_module
from lakequeue.model.states import MessageState
from serve.serving import client_of, free_port, serving

Known = dict[str, set[str]]
"""Names of labels by the name of the sample."""

BY_PROMETHEUS = {"up": set[str]()}
"""What Prometheus itself adds; and to every sample, these labels."""
TARGET = {"job", "instance"}
WORDS = {
    *("sum", "max", "min", "rate", "increase", "histogram_quantile", "by", "unless", "on", "and", "or", "time"),
    *("max_over_time", "label_values"),
}
CODES = {*error_module.__all__} | {"OK", "InternalFailure", "ServiceUnavailable"}
STATES = {state.value for state in MessageState}

_TOKEN = re.compile(
    r'(?P<text>"(?:[^"\\]|\\.)*")|(?P<range>\[[^]]*\])|(?P<name>[A-Za-z_:][\w:]*)|(?P<number>\d[\d.]*)|(?P<sign>\S)'
)


def problems(expression: str, known: Known) -> list[str]:
    """What an expression of PromQL names that is not there."""
    tokens = [(match.lastgroup, match[0]) for match in _TOKEN.finditer(expression)]
    found, used = [], dict[str, set[str]]()
    metric, depth, labels, grouped = "", 0, False, list[str]()
    for place, (kind, token) in enumerate(tokens):
        depth += (token in "([{") - (token in ")]}") if kind == "sign" else 0
        before = tokens[place - 1][1] if place else ""
        if token == "{":
            labels = True
        elif token == "}":
            labels = False
        elif kind == "name" and labels:
            value = tokens[place + 2][1] if tokens[place + 2][0] == "text" else tokens[place + 3][1]
            used[metric].add(token)
            found += [f"{token}: {value}" for value in wrong_values(token, value.strip('"'))]
        elif kind == "name" and before in ("by", "on", "(", ",") and in_grouping(tokens, place):
            grouped.append(token)
        elif kind == "name" and token not in WORDS:
            metric = token
            used.setdefault(metric, set())
            if token not in known:
                found.append(f"no metric {token}")
    if depth:
        found.append("brackets do not match")
    for name, named in used.items():
        found += [f"{name} has no label {label}" for label in named - known.get(name, set()) - TARGET]
    everywhere = set[str]().union(*(known.get(name, set()) for name in used)) | TARGET
    return found + [f"no metric here has the label {label}" for label in grouped if label not in everywhere]


def in_grouping(tokens: list[tuple[str | None, str]], place: int) -> bool:
    """Whether a name stands in the brackets of ``by`` or ``on``, or is the label of ``label_values``."""
    names = [token for _, token in tokens[:place]]
    opened = len(names) - 1 - names[::-1].index("(") if "(" in names else -1
    return (
        opened > 0
        and ")" not in names[opened:]
        and (names[opened - 1] in ("by", "on") or (names[opened - 1] == "label_values" and names[-1] == ","))
    )


def wrong_values(label: str, value: str) -> set[str]:
    known = {"code": CODES, "state": STATES}.get(label)
    return set() if known is None else set(value.split("|")) - known


def served(root: Path) -> Known:
    """The samples of a server that was used."""
    lake = LakeQueue(str(root))
    lake.create_queue("orders")
    with serving(lake) as server, client_of(server.url) as client:
        client("SendMessage", QueueUrl=client.queue_url("orders"), MessageBody="A", MessageGroupId="g")
        client.http.get(f"{client.url}/console/api/queues")
        text = client.http.get(f"{client.url}/metrics").text
    # a disk gets no requests, so this metric has no samples here; tests/objectstore/test_requests.py sees them
    assert "# TYPE lakequeue_store_requests_total counter" in text
    return samples(text) | {"lakequeue_store_requests_total": {"kind"}}


def consumed(root: Path) -> Known:
    """The samples of a consumer that was used."""
    orders, port, texts = LakeQueue(str(root)).create_queue("orders"), free_port(), list[str]()
    orders.send("A")

    def scrape(message: Message, context: Context) -> None:
        texts.append(httpx.get(f"http://127.0.0.1:{port}/metrics").text)

    Consumer(orders, scrape, metrics_port=port).run(until_empty=True)
    return samples(texts[0])


def samples(text: str) -> Known:
    found: Known = dict(BY_PROMETHEUS)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found
