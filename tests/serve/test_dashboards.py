"""The dashboard for Grafana and the alerts for Prometheus name only what ``/metrics`` serves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from lakequeue import LakeQueue
from lakequeue import errors as error_module
from lakequeue.model.states import MessageState
from serve.serving import client_of, serving

CONF = Path(__file__).parents[2] / "conf"
ALERTS, DASHBOARD = CONF / "prometheus" / "alerts.yml", CONF / "grafana" / "lakequeue.json"

Known = dict[str, set[str]]
"""Names of labels by the name of the sample."""

BY_PROMETHEUS = {"up": set[str]()}
"""What Prometheus itself adds; and to every sample, these labels."""
TARGET = {"job", "instance"}
WORDS = {
    *("sum", "max", "min", "rate", "increase", "histogram_quantile", "by", "unless", "on", "and", "or", "time"),
    *("label_values",),
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


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Known:
    lake = LakeQueue(str(tmp_path_factory.mktemp("watched") / "queues"))
    lake.create_queue("orders")
    with serving(lake) as server, client_of(server.url) as client:
        client("SendMessage", QueueUrl=client.queue_url("orders"), MessageBody="A", MessageGroupId="g")
        client.http.get(f"{client.url}/console/api/queues")
        text = client.http.get(f"{client.url}/metrics").text
    found: Known = dict(BY_PROMETHEUS)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def alerts() -> list[dict[str, Any]]:
    document = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
    assert {*document} == {"groups"}
    return [rule for group in document["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return document


def expressions() -> Iterator[str]:
    for panel in dashboard()["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["definition"]


def test_alerts_name_only_what_is_served(known: Known) -> None:
    assert {rule["alert"]: problems(rule["expr"], known) for rule in alerts()} == {
        rule["alert"]: [] for rule in alerts()
    }


def test_alerts_are_complete() -> None:
    for rule in alerts():
        assert {*rule} <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"].endswith(".")
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
    assert len({rule["alert"] for rule in alerts()}) == len(alerts())


def test_the_dashboard_names_only_what_is_served(known: Known) -> None:
    found = {expression: problems(expression, known) for expression in expressions()}
    assert len(found) > 30
    assert not {expression: wrong for expression, wrong in found.items() if wrong}


def test_the_dashboard_shows_every_metric_of_queues(known: Known) -> None:
    text = "\n".join(expressions())
    assert not [name for name in known if name.startswith("lakequeue_queue_") and name not in text]


def test_the_page_about_metrics_names_each_of_them(known: Known) -> None:
    text = (CONF.parent / "docs" / "operation" / "metrics.md").read_text(encoding="utf-8")
    named = {*re.findall(r"`(lakequeue_\w+)`", text)}
    ours = {name for name in known if name.startswith("lakequeue_") and not name.endswith("_created")}
    served = {re.sub("_(bucket|count|sum)$", "", name) for name in ours}
    assert named == served


def test_panels_are_side_by_side() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set[tuple[int, int]]()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("sum(rate(lakequeue_nothing_total[5m]))", ["no metric lakequeue_nothing_total"]),
        ('lakequeue_queues{queue="a"}', ["lakequeue_queues has no label queue"]),
        ("sum by (colour) (lakequeue_queue_messages)", ["no metric here has the label colour"]),
        ("sum(lakequeue_queues", ["brackets do not match"]),
        ('lakequeue_requests_total{code=~"OK|Nonsense"}', ["code: Nonsense"]),
        ('lakequeue_queue_messages{state="visibel"}', ["state: visibel"]),
        ('max by (queue, state) (lakequeue_queue_messages{job="x", state!="held"}) > 0', []),
    ],
)
def test_the_check_finds_what_is_wrong(known: Known, expression: str, wrong: list[str]) -> None:
    assert problems(expression, known) == wrong
