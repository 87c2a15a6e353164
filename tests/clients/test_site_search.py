"""The documentation's site: the words that people type lead to the page that helps, and tables fit a phone."""

from __future__ import annotations

import runpy
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import run
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.clients

HERE = Path(__file__).parents[2]
LIMITS = "limits"
PLATFORMS = "operation/platforms"
SYMPTOMS = "operation/troubleshooting"
STORAGE = "operation/storage"
FAN_IN = "guides/recipes/#run-complete-wait-until-all-is-done-fan-in"
RETURNS = "guides/consumers/#acknowledge-ack-or-retry-what-a-handler-returns"
COLUMNS = "new-columns-schema-changes-and-schema-evolution"
PRICE = "operation/cost/#price-on-an-object-store-cost-per-million-messages"
DISASTER = "operation/copying/#disaster-recovery-if-a-bucket-or-a-region-is-lost"
FIRST = {
    "stuck consumer": f"{SYMPTOMS}/#stuck-consumer-a-handler-hangs",
    "poison message": f"{SYMPTOMS}/#poison-message-delivered-again-and-again",
    "queue grows": f"{SYMPTOMS}/#a-queue-grows",
    "consumer died": f"{SYMPTOMS}/#consumer-died-crashed-killed-or-out-of-memory-oom",
    "out of memory": f"{SYMPTOMS}/#consumer-died-crashed-killed-or-out-of-memory-oom",
    "duplicate messages": f"{SYMPTOMS}/#duplicate-messages-delivered-twice",
    "nothing is received": f"{SYMPTOMS}/#nothing-is-received-no-messages",
    "paused queue": f"{SYMPTOMS}/#paused-queue",
    "slow queue": f"{SYMPTOMS}/#slow-queue",
    "lost message": f"{SYMPTOMS}/#missing-message-is-it-lost",
    "disk full": "operation/disk-full/",
    "no space left on device": "operation/disk-full/",
    "damaged file": "operation/damage/",
    "consumer lag": "operation/alerts/#lakequeueconsumerlag",
    "dead letters": "guides/dead-letters/",
    "limits": "limits/",
    "DamagedTable": "operation/damage/#damagedtable-step-by-step",
    "corrupted": "operation/damage/",
    "enospc": "operation/disk-full/",
    "unpause": f"{SYMPTOMS}/#paused-queue",
    "OverLimit": f"{SYMPTOMS}/#overlimit",
    "autoscale": "guides/running-consumers/#scaling-consumers-how-many-workers",
    "retry delay": "guides/consumers/#retry-delay-and-backoff",
    "long polling": "tutorial/#delays-and-long-polling",
    "max receive count": "guides/dead-letters/#what-to-set-max_receive_count",
    "high availability": f"{STORAGE}/#high-availability-and-failover-if-the-machine-of-a-disk-fails",
    "failover": f"{STORAGE}/#high-availability-and-failover-if-the-machine-of-a-disk-fails",
    **dict.fromkeys(("disaster recovery", "multi-region", "replication"), DISASTER),
    "node fails": f"{STORAGE}/#if-a-pod-or-a-node-fails-with-the-root-on-an-object-store",
    "rolling deployment": "operation/upgrading/#a-rolling-deployment-two-builds-at-the-same-time",
    "datadog": "operation/metrics/#monitoring-without-prometheus",
    "gdpr": "operation/erasing/",
    "license": f"{LIMITS}/#license-support-maturity",
    "who makes it": f"{LIMITS}/#who-makes-it-and-where-it-comes-from",
    "sla": f"{LIMITS}/#license-support-maturity",
    "encryption": f"{LIMITS}/#security-encryption-and-personal-data",
    "sso": f"{LIMITS}/#security-encryption-and-personal-data",
    "security": f"{LIMITS}/#security-encryption-and-personal-data",
    "message size": f"{LIMITS}/#message-size-retention-order",
    "retention": f"{LIMITS}/#message-size-retention-order",
    "tls": "operation/access/#from-other-machines-keys-and-tls",
    "price": PRICE,
    "cost": "operation/cost/",
    **dict.fromkeys(("cost per million", "price per million"), PRICE),
    "throughput": "operation/performance/",
    "latency": "operation/performance/",
    "backup": "operation/copying/",
    "upgrade": "operation/upgrading/",
    "kubernetes": "operation/deploying/#with-kubernetes",
    "docker": "operation/deploying/#with-docker-compose",
    "windows": f"{PLATFORMS}/#linux-macos-windows",
    "databricks": f"{PLATFORMS}/",
    "emr": f"{PLATFORMS}/",
    "glue": f"{PLATFORMS}/",
    "fabric": f"{PLATFORMS}/",
    "unity catalog": "operation/stores/databricks/#volumes-unity-catalog-dbfs",
    "kafka": "guides/moving/#kafka",
    "rabbitmq": "compared/",
    "alternatives": "is-it-for-me/#alternatives",
    "comparison": "is-it-for-me/",
    "migration": "guides/moving/",
    "ordering": "guides/fifo/#ordering",
    "priority": "guides/priorities/#what-a-priority-promises",
    "rollback": "operation/upgrading/#from-layout-5-to-layout-6",
    "helm": "operation/deploying/#with-kubernetes",
    "hdfs": f"{STORAGE}/#network-file-systems",
    "athena": f"{PLATFORMS}/#by-platform",
    "rbac": f"{LIMITS}/#security-encryption-and-personal-data",
    "--until-empty": "reference/cli/#messages",
    "--batch": "reference/cli/#messages",
    "merge_schema": "reference/cli/#messages",
    "QueueDoesNotExist": "reference/errors/",
    "LeaseLost": "reference/errors/",
    "send_dataframe": "reference/api/queue/#lakequeue.Queue.send_dataframe",
    "rewind_range": "reference/profiles/#attributes",
    "batch": "guides/consumers/#batches",
    "structured streaming": "guides/streams/#structured-streaming-and-foreachbatch",
    "foreachBatch": "guides/streams/#structured-streaming-and-foreachbatch",
    **dict.fromkeys(("nack", "requeue", "pydantic", "ack", "acknowledge"), RETURNS),
    "how many workers": "guides/running-consumers/#scaling-consumers-how-many-workers",
    "fan in": FAN_IN,
    "run complete": FAN_IN,
    "wait until all done": FAN_IN,
    "delivery table": "guides/tables/",
    "schema": f"guides/tables/#{COLUMNS}",
    **dict.fromkeys(("new column", "schema change", "schema evolution"), f"guides/tables/#{COLUMNS}"),
    **dict.fromkeys(("small files", "optimize"), "guides/tables/#small-files-batch_wait-and-optimize"),
    "upsert": "guides/tables/#upsert-and-merge-a-write-of-your-own",
    "dlq": "guides/dead-letters/",
    **dict.fromkeys(
        ("roll back", "bad release"), "guides/dead-letters/#after-a-bad-deploy-pause-roll-back-redrive"
    ),
    **dict.fromkeys(("quickstart", "getting started"), "tutorial/"),
    "tracing": "guides/running-consumers/#traces",
    "redeliver": f"{SYMPTOMS}/#poison-message-delivered-again-and-again",
    "manual clock": "guides/testing/#time-a-manual-clock",
    "quarantine": "guides/dead-letters/",
    "dedupe": "guides/unique-sends/",
    **dict.fromkeys(("pytest", "unit test", "mock"), "guides/testing/"),
    "deployment": "operation/deploying/",
    "until empty": "guides/running-consumers/#in-cron-ci-or-airflow-consume-until-empty",
    "environment variable": "reference/cli/#options-of-all-commands-and-environment-variables",
    "stack trace": "guides/dead-letters/#stack-traces",
    "checkpoint": "guides/streams/#checkpoints-and-what-is-sent-or-handled-twice",
    "logs": "operation/logging/",
    "ReadWritePaths": "operation/deploying/#with-systemd-readwritepaths-for-a-table-elsewhere",
    "doctor": f"{SYMPTOMS}/#what-needs-attention-lakequeue-doctor",
    "OOM": f"{SYMPTOMS}/#consumer-died-crashed-killed-or-out-of-memory-oom",
    "fixture": "guides/testing/#a-fixture-for-a-handler-that-delivers",
    "graceful shutdown": "guides/running-consumers/#graceful-shutdown-sigterm",
    "reprocess": "guides/rewind/",
    "iceberg": f"{LIMITS}/#message-size-retention-order",
    "lakequeue consume": "guides/running-consumers/",
    "lakequeue redrive": "guides/dead-letters/#redrive-send-them-back",
}
"""The first result of each search: a page, or a page and its section that is listed first."""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place = tmp_path_factory.mktemp("site")
    run([sys.executable, "-m", "mkdocs", "build", "-q", "-f", HERE / "mkdocs.yml", "-d", place], check=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(place))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_the_words_that_people_type_lead_to_the_page_that_helps(browser: Browser, site: str) -> None:
    from playwright.sync_api import expect

    page = browser.new_page()
    page.goto(f"{site}?q=")
    results, typed = page.locator(".md-search-result__item"), page.locator(".md-search__input")
    links = results.first.locator("a")
    for words, place in FIRST.items():
        typed.fill("")
        typed.press("Shift")  # A search begins when a key is released.
        expect(results).to_have_count(0)
        typed.fill(words)
        typed.press("Shift")
        expect(links.first).to_have_attribute("href", site + place.partition("#")[0])
        expect(links.nth(int("#" in place))).to_have_attribute("href", site + place)


def test_pages_that_mkdocs_serves_name_their_own_address_but_load_nothing_from_other_hosts() -> None:
    hooks = runpy.run_path(str(HERE / "docs" / "site_hooks.py"))
    served = '<link href="http://127.0.0.1:8000/limits/" rel="canonical">'
    foreign = '<link href="https://fonts.example/a.css" rel="stylesheet">'
    assert [*hooks["_loaded_by_a_page"](served + foreign)] == ["https://fonts.example/a.css"]


def test_on_a_phone_the_first_column_stays_while_a_table_scrolls(browser: Browser, site: str) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(f"{site}operation/performance/")
    cell = page.locator("td").first
    before = cell.bounding_box()
    scrolled = page.locator(".md-typeset__scrollwrap").first.evaluate(
        "wrap => (wrap.scrollLeft = 100, wrap.scrollLeft)"
    )
    after = cell.bounding_box()
    assert before and after and scrolled == 100
    assert 0 <= after["x"] <= before["x"]
    assert page.evaluate("document.documentElement.scrollWidth") == 390
