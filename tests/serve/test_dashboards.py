"""The dashboard for Grafana and the alerts for Prometheus name only what ``/metrics`` serves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakequeue.operations.concerns import COMPACTION_SECONDS, EXPIRING_SHARE
from lakequeue.operations.consumer_concerns import STUCK_SECONDS, UNREAD_SECONDS
from lakequeue.operations.shortage import LOW_BYTES, LOW_FILES
from lakequeue.storage.reserve import LEAST_FREE
from serve.promql import Known, consumed, problems

CONF = Path(__file__).parents[2] / "conf"
RUNBOOK = CONF.parent / "docs" / "operation" / "alerts.md"
ALERTS, DASHBOARD = CONF / "prometheus" / "alerts.yml", CONF / "grafana" / "lakequeue.json"


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


def test_alerts_name_only_what_is_served(known: Known, tmp_path: Path) -> None:
    everything = known | consumed(tmp_path)
    assert {rule["alert"]: problems(rule["expr"], everything) for rule in alerts()} == {
        rule["alert"]: [] for rule in alerts()
    }


def test_alerts_are_complete() -> None:
    sections = re.findall(r"^## (.+)$", RUNBOOK.read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for name in sections if name.startswith("Lakequeue")] == [rule["alert"] for rule in alerts()]
    for rule in alerts():
        page = f"http://lakequeue.example:9324/console/runbooks/alerts#{rule['alert'].lower()}"
        assert rule["annotations"]["runbook_url"] == page
        assert {*rule} <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"].endswith(".")
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
    assert len({rule["alert"] for rule in alerts()}) == len(alerts())


def test_the_table_of_alerts_has_each_with_its_severity_its_threshold_and_how_long_it_lasts() -> None:
    row = r"^\| \[(\w+)\]\(#(\w+)\) \| ([^|]+) \| (\w+) \| ([^|]+) \| (\w*) ?\|$"
    lines = re.findall(row, RUNBOOK.read_text(encoding="utf-8"), re.MULTILINE)
    assert [f"Lakequeue{name}" for name, *_ in lines] == [rule["alert"] for rule in alerts()]
    for rule, (_, anchor, act, severity, condition, lasts) in zip(alerts(), lines, strict=True):
        assert (anchor, severity, lasts) == (
            rule["alert"].lower(),
            rule["labels"]["severity"],
            rule.get("for", ""),
        )
        assert act == "now" or severity != "critical"
        for limit, hours in re.findall(r"[<>] ([\d.]+)( \* 3600)?$", rule["expr"]):
            shown = {f"{float(limit):,.0f}", f"{float(limit):.0%}"}
            told = re.findall(r"[\d,]+(?: %)?", condition)
            assert limit == "0" or shown & {number.replace(" ", "") for number in told}, condition
            assert f"{limit} hours" in condition or not hours


def test_doctor_warns_when_the_alert_does() -> None:
    held = "max by (queue) (lakequeue_queue_oldest_receive_age_seconds)"
    timeout = "max by (queue) (lakequeue_queue_visibility_timeout_seconds)"
    letters = "max by (queue) (lakequeue_queue_dead_letter_sources)"
    expected = {
        "LakequeueNoCompaction": f"{COMPACTION_SECONDS // 3600} * 3600",
        "LakequeueNobodyReceives": f"{UNREAD_SECONDS} unless {letters} > 0",
        "LakequeueMessagesExpire": f"{1 - EXPIRING_SHARE} * max by (queue) (lakequeue_queue_retention_seconds)",
        "LakequeueHandlerStuck": f"{STUCK_SECONDS} and {held} > {timeout}",
        "LakequeueDiskFull": f"{LEAST_FREE} and min(lakequeue_storage_free_bytes) < {LOW_BYTES >> 30} * 2 ^ 30",
        "LakequeueInodesRunOut": f"{LEAST_FREE} and min(lakequeue_storage_free_files) < {LOW_FILES}",
    }
    expressions = {rule["alert"]: rule["expr"] for rule in alerts()}
    assert {name: re.split(" [<>] ", expressions[name], maxsplit=1)[1] for name in expected} == expected


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
    assert named == served | {"lakequeue_store_requests_total"}  # it has samples only on an object store


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
