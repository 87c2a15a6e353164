"""The pages for operators that the server ships: all of them are there, and links between them lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakequeue import LakeQueue
from lakequeue.operations.advice import KINDS
from lakequeue.serve.console.routes import STATIC
from serve.consoles import Browser, Console, keyed

ALERTS = Path(__file__).parents[2] / "conf" / "prometheus" / "alerts.yml"
PAGES = (
    *("index", "alerts", "damage", "disk-full", "troubleshooting", "compaction", "serve", "deploying"),
    *("stores/s3", "guides/dead-letters", "reference/cli"),
)


@pytest.fixture
def http(lake: LakeQueue) -> Iterator[Browser]:
    with keyed(lake) as browser:
        browser.client.auth = None
        yield browser


def page(http: Browser, name: str) -> str:
    answer = http.get(f"/console/runbooks/{name}")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    return answer.text


def ids(text: str) -> set[str]:
    return {*re.findall(r'<h\d id="([^"]+)"', text)}


def test_each_alert_has_its_runbook_without_a_key(http: Browser) -> None:
    found = ids(page(http, "alerts"))
    anchors = re.findall(r'runbook_url: ".*/console/runbooks/alerts#(.+)"', ALERTS.read_text(encoding="utf-8"))
    assert anchors and {*anchors} <= found


@pytest.mark.parametrize("name", PAGES)
def test_links_between_runbooks_lead_to_a_heading(http: Browser, name: str) -> None:
    text = page(http, name)
    targets = {*re.findall(r'href="([^":]*)"', text)}
    assert "<h1 id=" in text and ".md" not in "".join(targets)
    for target in targets:
        other, _, anchor = target.partition("#")
        if not other or "/runbooks/" in other:
            whole = page(http, other.rpartition("runbooks/")[2]) if other else text
            assert not anchor or anchor in ids(whole), target


def test_links_of_runbooks_lead_to_guides_and_back(http: Browser) -> None:
    assert 'href="../runbooks/guides/dead-letters#which-errors-there-are"' in page(http, "alerts")
    assert 'href="../../runbooks/alerts' in (text := page(http, "guides/consumers"))
    assert 'href="../../console.css"' in text
    assert "<a>" in page(http, "performance"), "a page that is not shipped has no link"


def test_what_needs_attention_leads_to_a_runbook(http: Browser, console: Console) -> None:
    script = (STATIC / "attention.js").read_text(encoding="utf-8")
    kinds = re.findall(r'^  "?[a-z ]+"?: \["\w*", "[^"]+", "([^"]+)"\]', script, re.MULTILINE)
    console.lake.create_queue("orders")
    roots = [each["runbook"] for each in console.get("attention")["root"]]
    assert len(kinds) == len(KINDS) + 1 and roots == ["alerts#lakequeuenocompaction"]
    failures = "damage#the-catalog-cannot-be-read", "alerts#lakequeuestorageunreadable"
    for target in {*kinds, *roots, *failures, "disk-full"}:
        name, _, anchor = target.partition("#")
        assert not anchor or anchor in ids(page(http, name)), target


@pytest.mark.parametrize("name", ["nothing", "..%2falerts", "alerts.md", "internals/fence", "guides"])
def test_no_other_file_is_served(http: Browser, name: str) -> None:
    assert http.get(f"/console/runbooks/{name}").status_code == 404
