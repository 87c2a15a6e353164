"""The console's files and its JSON API: what they answer, what they refuse, and in which headers it is wrapped."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
import subprocess
import sys
import tracemalloc
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest

from conformance.damage import live
from insides import messages_of
from lakequeue import (
    Consumer,
    Context,
    LakeQueue,
    Message,
    Queue,
    RedrivePolicy,
    SendEntry,
    __version__,
    entry_verbs,
)
from lakequeue.entry_verbs import Remedy, doctor, report_consumer
from lakequeue.model.clock import format_instant, to_micros
from lakequeue.model.consumer_processes import ConsumerFile, ConsumerProcess
from lakequeue.operations.depth import Depth
from lakequeue.operations.shortage import Shortage
from lakequeue.serve.app import Application
from lakequeue.serve.console import routes as console_module
from lakequeue.serve.console.depth_history import BUCKETS, SPAN
from lakequeue.serve.console.routes import HEADERS, STATIC
from lakequeue.serve.damage import KEPT, MOST, MetDamage
from lakequeue.serve.instrumentation import ApiCall, RequestRecord
from lakequeue.storage import consumer_files, layout
from lakequeue.testing import ManualClock
from serve.consoles import ASKED, Console, Keys, keyed, rewindable, versions, visited, visiting, with_letters

POLICY = {"deadLetterTargetArn": "queue-1", "maxReceiveCount": 1}
HOSTILE = "<img src=x onerror=alert(1)> ' OR true --\u2028\x7f"


# --- the files


def test_the_files_come_from_the_package_and_ask_nobody_else(console: Console):
    files = sorted(path.name for path in STATIC.iterdir())
    assert {"index.html", "console.css", "console.js"} <= {*files}
    for name in files:
        response = console.http.get(f"/console/{name}")
        assert response.status_code == 200
        assert {name.lower() for name in HEADERS} <= {*response.headers}
        assert "://" not in response.text.replace("http://www.w3.org/2000/svg", "")
    page = console.http.get("/console/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["cache-control"] == "no-cache"
    assert page.headers["content-security-policy"].startswith("default-src 'self'; ")
    assert page.headers["x-frame-options"] == "DENY" and page.headers["x-content-type-options"] == "nosniff"
    assert "style=" not in page.text and "<script>" not in page.text and "onclick" not in page.text
    assert console.http.get("/console/", headers={"If-None-Match": page.headers["etag"]}).status_code == 304
    assert "javascript" in console.http.get("/console/console.js").headers["content-type"]


def test_the_page_links_to_metrics_and_health(console: Console):
    page = console.http.get("/console/")
    links = re.findall(r'<a href="(\.\./[^"]*)"', page.text)
    assert links == ["../metrics", "../health"]
    metrics, health = (console.http.get(urljoin("/console/", link)) for link in links)
    assert "\nlakequeue_queues 0.0\n" in metrics.text and health.json() == {"status": "ok"}


def test_scripts_make_no_markup_of_data():
    for script in STATIC.glob("*.js"):
        text = script.read_text(encoding="utf-8")
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
            assert way not in text, f"{script.name}: {way}"


def test_the_address_without_a_slash_leads_to_the_page(console: Console):
    response = console.http.get("/console")
    assert (response.status_code, response.headers["location"]) == (307, "/console/")


def test_the_sqs_endpoint_keeps_answering(console: Console):
    headers = {"X-Amz-Target": "AmazonSQS.ListQueues", "Content-Type": "application/x-amz-json-1.0"}
    assert console.http.post("/", headers=headers, content=b"{}").json() == {}


# --- the list


@pytest.mark.spec("QUE-23")
def test_the_list_shows_the_state_of_every_queue(console: Console, clock: ManualClock):
    queue = console.lake.create_queue("orders", rewind_range=60)
    queue.send_batch([SendEntry("a"), SendEntry("b"), SendEntry("c"), SendEntry("d", delay=60)])
    clock.advance(5)
    first, _ = queue.receive(2)
    queue.delete(first.receipt_handle)
    console.lake.create_queue("jobs.fifo", fifo=True)
    found = console.get("queues")
    assert [(row["name"], row["fifo"]) for row in found["queues"]] == [("jobs.fifo", True), ("orders", False)]
    assert found["queues"][1]["counts"] == {
        "visible": 1,
        "in_flight": 1,
        "delayed": 1,
        "held": 0,
        "undecided": 0,
        "rewindable": 1,
        "oldest_age": 5,
    }
    assert found["queues"][0]["counts"]["oldest_age"] is None
    assert (found["total"], found["next"], found["region"], found["caller"]) == (2, None, "local", "-")
    assert found["version"] == __version__


def test_a_message_that_comes_again_and_again_needs_attention(console: Console, clock: ManualClock):
    orders = console.lake.create_queue("orders", visibility_timeout=60)
    orders.send("bad")
    orders.send("good")
    for _ in range(10):
        assert all(each["notice"] for each in console.get("attention")["concerns"])
        orders.receive(1)
        clock.advance(61)
    concern, waiting = console.get("attention")["concerns"]
    assert waiting["notice"] and waiting["brief"] == "2 visible, no consumer is known to run"
    assert (concern["kind"], concern["brief"], concern["may"]) == ("poison", "a message received 10 times", [])
    assert commands(concern)[0] == "lakequeue create orders-failed"


def test_what_needs_attention_is_listed_the_worst_kind_first(console: Console, clock: ManualClock):
    lake = console.lake
    assert console.get("attention")["concerns"] == []
    letters = lake.create_queue("pay-dead")
    pay = lake.create_queue("pay", dead_letter_queue="pay-dead", max_receive_count=1, visibility_timeout=60)
    pay.send("a")
    pay.receive()
    clock.advance(60)
    pay.receive()
    stuck = lake.create_queue("stuck", visibility_timeout=3600)
    stuck.send("b")
    [message] = stuck.receive(consumer="host:7")
    lake.create_queue("unread").send("c")
    lake.create_queue("paused").pause("the bank is down")
    clock.advance(3000)
    stuck.change_visibility(message.receipt_handle, 3 * 3600)
    clock.advance(2 * 3600)
    found = console.get("attention")
    assert [(each["kind"], each["queue"]) for each in found["concerns"]] == [
        ("stuck", "stuck"),
        ("unread", "unread"),
        ("dead letters", "pay-dead"),
        ("paused", "paused"),
    ]
    assert [each["errors"] for each in found["concerns"]] == [{}, {}, {"": 1}, {}], "nobody reported an error"
    assert [each["consumers"] for each in console.get("queues")["queues"]] == [0, 0, 0, 1, 0]
    assert "host:7 has held a message of stuck for 2h50m" in found["concerns"][0]["text"]
    assert found["root"][0]["text"] == "The root was never compacted: files and logs grow."
    assert [each["may"] for each in found["concerns"]] == [["free"], [], ["redrive"], ["resume"]], "their buttons"
    assert commands(found["concerns"][0]) == [
        'lakequeue reschedule stuck --in-flight --where "consumer = ?" --parameter host:7'
    ]
    assert [each["brief"] for each in found["concerns"]] == [
        "host:7 has held a message for 2h50m",
        "1 visible, no receive for 2h50m",
        "1 dead letter",
        "paused",
    ]
    since = [(each["since"], each["reason"]) for each in found["concerns"]]
    assert since == [(None, "")] * 3 + [("2026-01-01T00:01:00Z", ": the bank is down")]
    rows = console.get("queues", sort="trouble")["queues"]
    assert [row["name"] for row in rows] == ["stuck", "unread", "pay-dead", "paused", "pay"], "notices last"
    limited = console.get("queues", sort="trouble", limit=2)
    assert [row["name"] for row in limited["queues"]] == ["stuck", "unread"], "over all pages"
    assert commands(found["concerns"][3]) == ["lakequeue resume paused"]
    letters.purge()
    assert len(console.get("attention")["concerns"]) == 4, "it is read at most every half minute"
    clock.advance(31)
    assert len(console.get("attention")["concerns"]) == 3
    clock.advance(3.5 * 24 * 3600)
    assert [each["queue"] for each in console.get("attention")["concerns"] if each["kind"] == "expiring"] == [
        *("stuck", "unread")
    ]
    assert console.get("attention")["concerns"][0]["kind"] == "expiring"
    assert console.get("attention")["concerns"][0]["may"] == ["keep"]


def test_dead_letters_are_counted_by_error_for_keys_that_may_read_them(lake: LakeQueue, clock: ManualClock):
    def fail(message: Message, context: Context) -> None:
        raise {"a": KeyError, "b": ValueError}[message.body](message.body)

    lake.create_queue("pay-dead")
    pay = lake.create_queue("pay", dead_letter_queue="pay-dead", max_receive_count=1)
    pay.send_batch([SendEntry("a"), SendEntry("b"), SendEntry("b")])
    Consumer(pay, fail).run(until_empty=True)
    named = ", failed with 2 ValueError, 1 KeyError; ValueError: b; KeyError: 'a'; a redrive runs"
    assert [named in text for text in doctor(lake).warnings] == [True, False]
    with keyed(lake, "ListQueues", "GetQueueAttributes", "ReceiveMessage") as http:
        [concern] = http.get("/console/api/attention").json()["concerns"]
        assert concern["errors"] == {"ValueError": 2, "KeyError": 1}
        assert concern["examples"] == {"ValueError": "b", "KeyError": "'a'"}
        pay.send("a")
        Consumer(pay, fail).run(until_empty=True)
        clock.advance(31)
        [concern] = http.get("/console/api/attention").json()["concerns"]
        assert concern["errors"] == {"ValueError": 2, "KeyError": 2}
    with keyed(lake, "ListQueues", "GetQueueAttributes") as http:
        assert http.get("/console/api/attention").json()["concerns"][0]["errors"] == {}


@pytest.mark.spec("JOB-7")
def test_schedules_that_fail_or_are_overdue_need_attention(lake: LakeQueue, clock: ManualClock):
    for name in "gone", "late", "paused", "secret", "well":
        lake.create_queue(name)
        cron = "0 0 1 1 *" if name == "well" else "*/10 * * * *"
        lake.schedules.add(f"{name}-report", name, "x", cron=cron)
    lake.schedules.pause("paused-report")
    for name in "gone", "secret":
        lake.delete_queue(name)
    clock.advance(600)
    assert lake.schedules.run_due() == 1
    lake.queue("late").purge()
    clock.advance(600 + 301)
    with keyed(lake, "ListQueues", "GetQueueAttributes") as http:
        found, listed = (http.get(f"/console/api/{view}") for view in ("attention", "schedules"))
    [fails, overdue] = found.json()["concerns"]
    assert "secret" not in found.text + listed.text
    assert (fails["kind"], fails["queue"], overdue["kind"], overdue["queue"]) == (
        "schedule fails",
        "gone",
        "schedule overdue",
        "late",
    )
    assert fails["text"].startswith("schedule gone-report: ") and "does not exist" in fails["text"]
    assert overdue["text"] == "schedule late-report is overdue"
    assert {fails["text"], overdue["text"]} < {each.text for each in doctor(lake).concerns}
    assert {row["name"]: row["overdue"] for row in listed.json()["schedules"]} == {
        "gone-report": True,
        "late-report": True,
        "paused-report": False,
        "well-report": False,
    }
    lake.create_queue("gone")
    lake.schedules.run_due()
    for name in "gone", "late":
        lake.queue(name).purge()
    with visited(lake) as http:
        console = Console(lake, http)
        assert [each["queue"] for each in console.get("attention")["concerns"]] == ["secret"]
        lake.schedules.pause("secret-report")
        clock.advance(31)
        assert console.get("attention")["concerns"] == []


def test_attention_says_that_schedules_cannot_be_read(console: Console):
    lake = LakeQueue(console.lake.root)
    lake.create_queue("orders")
    lake.schedules.add("nightly", "orders", "x", cron="0 2 * * *")
    for file in Path(layout.schedules_path(lake.root)).glob("*.parquet"):
        file.write_bytes(b"torn")
    found = console.get("attention")
    assert found["concerns"] == [] and "The schedules cannot be read: " in found["root"][0]["text"]


def test_attention_begins_with_the_failure_for_which_health_answers_503(console: Console, clock: ManualClock):
    console.lake.create_queue("orders").pause("the bank is down")
    assert console.get("attention")["root"][0]["text"].startswith("The root was never compacted")
    catalog = Path(layout.queues_path(console.lake.root))
    for file in catalog.glob("*.parquet"):
        file.write_bytes(b"")
    assert console.http.get("/health").status_code == 503
    clock.advance(60)
    found = console.get("attention")
    assert found["failing"] and found["urgent"] and "list of queues is damaged" in found["root"][0]["text"]
    copy = f"cp -a {catalog} COPY"  # as doctor prints it
    assert commands(found["root"][0]) == ["lakequeue check", copy, "lakequeue repair --all"]
    console.lake._runtime.release()
    catalog.rename(catalog.with_name("away"))
    clock.advance(60)
    found = console.get("attention")
    assert found["failing"] and commands(found["root"][0]) == ["lakequeue list"] and not found["concerns"]


def test_a_pause_that_the_console_ended_needs_no_attention_any_more(console: Console):
    console.lake.create_queue("orders").pause("the bank is down", "acme")
    assert [each["group"] for each in console.get("attention")["concerns"]] == ["acme"]
    console.post("queues/orders/resume", group="acme")
    assert console.get("attention")["concerns"] == [], "at once"
    console.post("queues/orders/attributes", Attributes={"MaxStoredMessages": "1"})
    console.post("queues/orders/send", MessageBody="a")
    assert [each["kind"] for each in console.get("attention")["concerns"]] == ["full"], "after a send, too"
    console.post("queues/orders/attributes", Attributes={"MaxStoredMessages": "9"})
    assert console.get("attention")["concerns"] == [], "and after a change of attributes"


def commands(problem: dict[str, Any]) -> list[str]:
    return [step["command"] for step in problem["steps"]]


def test_a_disk_that_is_nearly_full_is_urgent_and_its_cure_is_the_only_one_of_the_root(
    console: Console, monkeypatch: pytest.MonkeyPatch
):
    console.lake.create_queue("old")
    short = Shortage(
        "only 3 MiB are free", steps=[Remedy("lakequeue purge old", "drops it")], largest={"old": 2**20}
    )
    monkeypatch.setattr("lakequeue.serve.console.attention.shortage", lambda lake: short)
    found = console.get("attention")
    assert (found["low"], found["urgent"], found["full"]) == (True, True, False)
    assert [*map(commands, found["root"])] == [["lakequeue purge old"]]
    assert found["root"][0]["largest"] == {"old": 2**20}


def test_consumers_have_time_to_receive_after_a_resume(console: Console, clock: ManualClock):
    queue = console.lake.create_queue("orders")
    queue.send("a")
    queue.pause("the bank is down")
    clock.advance(3600)
    console.post("queues/orders/resume")
    assert console.get("attention")["concerns"] == [] == doctor(console.lake).concerns
    clock.advance(600)
    console.post("queues/orders/attributes", Attributes={"DelaySeconds": "5"})
    clock.advance(301)
    assert [each["kind"] for each in console.get("attention")["concerns"]] == ["unread"]
    assert [each.kind for each in doctor(console.lake).concerns] == ["unread"]
    assert "PausedSince" not in console.get("queues/orders")["attributes"]


def test_commands_begin_as_the_operator_types_them(console: Console, lake: LakeQueue):
    lake.create_queue("orders")
    whole = f"lakequeue --root {lake.root}"
    for path in "queues", "queues/orders", "workers", "schedules":
        assert console.get(path)["command"] == whole
    with visited(lake, command_prefix="docker compose exec server lakequeue") as http:
        assert http.get("/console/api/queues").json()["command"] == "docker compose exec server lakequeue"
    with keyed(lake, "ListQueues") as http:
        assert http.get("/console/api/queues").json()["command"] == "lakequeue", "the root is not for everybody"


def test_a_receive_of_many_visibility_timeouts_is_marked(console: Console, clock: ManualClock):
    queue = console.lake.create_queue("orders", visibility_timeout=60)
    queue.send("a")
    [message] = queue.receive(consumer="packer")
    queue.change_visibility(message.receipt_handle, 3600)
    clock.advance(600)
    assert [each["slow"] for each in console.get("workers")["workers"]] == [False]
    clock.advance(31)
    assert [each["slow"] for each in console.get("workers")["workers"]] == [True]


def test_workers_and_schedules_of_queues_that_the_key_may_see(lake: LakeQueue, clock: ManualClock):
    for name in "orders", "secret":
        lake.create_queue(name).send("a")
        lake.queue(name).receive(consumer=f"{name}:7")
        lake.schedules.add(f"nightly-{name}", name, "report", cron="0 2 * * *")
    one = "/console/api/schedules"
    with keyed(lake, "ListQueues", "GetQueueAttributes", "SendMessage") as http:
        workers, schedules = http.get("/console/api/workers"), http.get(one)
        assert "secret" not in workers.text + schedules.text
        assert [(each["queue"], each["consumer"]) for each in workers.json()["workers"]] == [
            ("orders", "orders:7")
        ]
        [found] = schedules.json()["schedules"]
        assert (found["name"], found["cron"], found["next_due"]) == (
            "nightly-orders",
            "0 2 * * *",
            "2026-01-01T02:00:00Z",
        )

        def changed(name: str, act: str) -> int:
            return http.post(one, json={"name": name, "act": act}, headers=ASKED).status_code

        assert changed("nightly-orders", "pause") == changed("nightly-orders", "run_now") == 200
        assert [row.paused for row in lake.schedules.list()] == [True, False]
        assert len(lake.queue("orders").peek()) == 2
        assert changed("nightly-orders", "resume") == 200 and not lake.schedules.list()[0].paused
        assert (
            changed("nightly-secret", "pause"),
            changed("other", "pause"),
            changed("nightly-orders", "remove"),
        ) == (
            403,
            400,
            400,
        )
    with keyed(lake, "ListQueues", "GetQueueAttributes") as http:
        assert http.post(one, json={"name": "nightly-orders", "act": "pause"}, headers=ASKED).status_code == 403
        assert http.get(one).json()["schedules"][0]["may"] == {"SendMessage": False}


def test_attention_names_only_queues_that_the_key_may_see(lake: LakeQueue):
    letters = with_letters(lake, "mine", "secret")
    letters.purge()
    for name in "mine", "secret":
        lake.queue(name).pause(f"{name} waits")
        lake.queue(name).send("x")
        lake.queue(name).receive()
    with keyed(lake, "ListQueues", "GetQueueAttributes") as http:
        found = http.get("/console/api/attention")
        assert "secret" not in found.text and [each["queue"] for each in found.json()["concerns"]] == ["mine"]
        assert not found.json()["concerns"][0]["may"], "it may not resume"
    with keyed(lake, "ListQueues") as http:
        assert http.get("/console/api/attention").json()["concerns"] == []
    with keyed(lake, "GetQueueAttributes", "SendMessage") as http:
        assert http.get("/console/api/attention").status_code == 403
        for act in "pause", "resume":
            refused = http.post(f"/console/api/queues/mine/{act}", json={}, headers=ASKED)
            assert refused.json()["message"] == "reader may not do SetQueueAttributes on mine."


@pytest.mark.spec("JOB-1")
def test_a_queue_or_a_group_is_paused_and_resumed(console: Console):
    queue = console.lake.create_queue("orders")
    queue.send("a", group_id="acme")
    console.post("queues/orders/pause", reason="late", group="acme")
    console.post("queues/orders/pause", reason="the bank is down")
    assert [(each["group"], each["reason"]) for each in console.get("queues/orders")["pauses"]] == [
        (None, "the bank is down"),
        ("acme", "late"),
    ]
    console.post("queues/orders/resume")
    assert [each["group"] for each in console.get("queues/orders")["pauses"]] == ["acme"]
    console.post("queues/orders/resume", group="acme")
    assert console.get("queues/orders")["pauses"] == []


@pytest.mark.spec("JOB-1")
def test_a_paused_queue_says_since_when_and_why(console: Console, clock: ManualClock):
    console.lake.create_queue("orders")
    assert console.get("queues")["queues"][0]["pauses"] == console.get("queues/orders")["pauses"] == []
    other = LakeQueue(console.lake.root, clock=clock).queue("orders")
    other.pause("the bank is down")
    other.pause("it is down", "acme")
    pauses = [
        {"group": None, "reason": "the bank is down", "since": format_instant(clock.now())},
        {"group": "acme", "reason": "it is down", "since": format_instant(clock.now())},
    ]
    for found in console.get("queues")["queues"][0], console.get("queues/orders"):
        assert found["pauses"] == pauses


def test_the_list_has_pages_and_a_filter(console: Console):
    for name in ("Alpha", "beta", "gamma", "alphabet"):
        console.lake.create_queue(name)

    def names(**parameters: Any) -> list[str]:
        return [row["name"] for row in console.get("queues", **parameters)["queues"]]

    assert names() == ["Alpha", "alphabet", "beta", "gamma"]
    assert names(text="ALPHA") == ["Alpha", "alphabet"]
    assert names(text=HOSTILE) == []
    page = console.get("queues", limit=3)
    assert (page["total"], page["next"]) == (4, "beta")
    assert names(limit=3, after=page["next"]) == ["gamma"]
    assert console.get("queues", after="beta")["next"] is None
    assert names(limit=3, down=1) == ["gamma", "beta", "alphabet"]
    assert names(limit=3, down=1, after="alphabet") == ["Alpha"]


def counted(lake: LakeQueue, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queues of which the console takes the depth from now on."""
    taken: list[str] = []

    def depth(queue: Any) -> Depth:
        taken.append(queue.name)
        return real(queue)

    real = entry_verbs.depth
    monkeypatch.setattr("lakequeue.serve.console.api.depth", depth)
    monkeypatch.setattr("lakequeue.serve.console.depth_history.depth", depth)
    return taken


def test_a_page_of_many_queues_counts_only_its_own(console: Console, monkeypatch: pytest.MonkeyPatch):
    for number in range(7):
        console.lake.create_queue(f"queue-{number}", redrive_policy=POLICY if number == 6 else None)
    taken = counted(console.lake, monkeypatch)
    page = console.get("queues", limit=3)
    assert (page["total"], page["counted"]) == (7, None)
    assert sorted(taken) == ["queue-0", "queue-1", "queue-2"]
    assert [row["dead_letters"] for row in page["queues"]] == [None, 0, None], "its source is on another page"
    assert [row["died"] for row in page["queues"]] == [None, None, None]


def test_the_order_of_a_count_goes_over_all_pages_and_says_what_it_costs(
    console: Console, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    queues = [console.lake.create_queue(f"queue-{number}") for number in range(6)]
    for number, queue in enumerate(queues):
        for _ in range(number * 5 % 6):  # 0, 5, 4, 3, 2, 1
            queue.send("a")
    taken = counted(console.lake, monkeypatch)

    def page(after: str | None = None, **more: Any) -> list[str]:
        found = console.get("queues", limit=2, sort="visible", down=1, after=after or "", **more)
        following.append((found["next"], found["counted"]))
        return [row["name"] for row in found["queues"]]

    following: list[tuple[str | None, int]] = []
    assert page() == ["queue-1", "queue-2"] and following[-1] == ("queue-2", 6)
    taken.clear()
    assert page("queue-2") == ["queue-3", "queue-4"] and following[-1] == ("queue-4", 0)
    assert taken == ["queue-3", "queue-4"], "the order is known for two minutes"
    assert page("queue-4") == ["queue-5", "queue-0"] and following[-1] == (None, 0)
    clock.advance(121)
    assert page() == ["queue-1", "queue-2"] and following[-1] == ("queue-2", 6)
    up = console.get("queues", sort="oldest_age")
    assert up["queues"][0]["name"] == "queue-0" and up["counted"] is None, "one page has all counts"
    assert console.http.get("/console/api/queues?sort=colour").status_code == 400


def test_of_a_shared_dead_letter_queue_each_queue_has_its_own_number(
    console: Console, lake: LakeQueue, monkeypatch: pytest.MonkeyPatch
):
    with_letters(lake, "orders")
    lake.create_queue("mails", dead_letter_queue="letters", max_receive_count=1)

    def died() -> tuple[object, object]:
        rows = {row["name"]: row["died"] for row in console.get("queues")["queues"]}
        pages = {name: console.get(f"queues/{name}")["died"] for name in rows}
        assert rows == pages and rows["letters"] is None
        return rows["orders"], rows["mails"]

    assert died() == ([None, 2], [None, 2]), "nothing was counted"
    [concern] = console.get("attention")["concerns"]
    assert died() == ([2, 2], [0, 2])
    assert concern["text"].startswith("letters has 2 dead letters of orders, the oldest")
    assert concern["hint"].startswith("a redrive runs handlers of orders again")
    [found] = doctor(lake).concerns
    assert (found.text, found.hint) == (concern["text"], concern["hint"])
    monkeypatch.setattr("lakequeue.operations.concerns.LETTERS", 2)  # there may be more than were read
    lake.queue("orders").send("a")
    [found] = doctor(lake).concerns
    assert found.text.startswith("letters has 2 dead letters of mails, orders, the oldest")


def test_trouble_comes_first_over_all_pages_and_counts_only_dead_letter_queues(
    console: Console, lake: LakeQueue, monkeypatch: pytest.MonkeyPatch
):
    for number in range(6):
        lake.create_queue(f"queue-{number}").send("a")
    with_letters(lake, "orders")
    shutil.rmtree(layout.receipts_path(lake.root, lake.create_queue("torn").key, 0))
    taken = counted(lake, monkeypatch)
    page = console.get("queues", limit=3, sort="trouble")
    shown = [(row["name"], row["dead_letters"], row["died"]) for row in page["queues"]]
    assert shown == [("letters", 2, None), ("orders", None, [2, 1]), ("queue-0", None, None)]
    assert (page["counted"], sorted(taken)) == (1, ["letters", "letters", "orders", "queue-0"])
    page = console.get("queues", limit=3, sort="trouble", after=page["next"])
    assert [row["name"] for row in page["queues"]] == ["queue-1", "queue-2", "queue-3"]
    assert [row["name"] for row in console.get("queues", sort="trouble")["queues"]][:3] == [
        "torn",
        "letters",
        "orders",
    ]


def test_a_sparkline_joins_what_the_compactor_wrote_and_what_the_server_saw(console: Console, clock: ManualClock):
    queue = console.lake.create_queue("orders")
    part = SPAN / BUCKETS
    queue.send_batch([SendEntry("a"), SendEntry("b")])
    console.lake.compact()
    clock.advance(10 * part)
    queue.send("c")
    console.get("queues")
    clock.advance(10 * part)
    queue.purge()
    [row] = console.get("queues")["queues"]
    assert [value for value in row["depths"] if value is not None] == [2, 3, 0]
    assert [index for index, value in enumerate(row["depths"]) if value is not None] == [39, 49, 59]
    clock.advance(SPAN)
    [row] = console.get("queues")["queues"]
    assert row["depths"] == [None] * (BUCKETS - 1) + [0]


def test_the_server_looks_by_itself(lake: LakeQueue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(console_module, "RECORD_INTERVAL", 0)
    lake.create_queue("broken")
    shutil.rmtree(layout.receipts_path(lake.root, lake.queue("broken").key, 0))
    lake.create_queue("orders").send("a")
    application = Application(lake)

    async def watched() -> None:
        watching = asyncio.create_task(application.console.record_depths())
        while not application.console.depths.recorded(lake.queue("orders")):
            await asyncio.sleep(0.01)
        watching.cancel()

    asyncio.run(asyncio.wait_for(watched(), 60))
    depths = application.console.depths
    assert [stands.counts.visible for stands in depths.recorded(lake.queue("orders"))] == [1]
    assert depths.recorded(lake.queue("broken")) == []
    gone = lake.queue("orders")
    lake.delete_queue("orders")
    depths.queues()
    assert depths.recorded(gone) == []


def test_sparklines_do_without_what_the_compactor_wrote(console: Console, caplog: pytest.LogCaptureFixture):
    console.lake.create_queue("orders").send("a")
    console.lake.compact()
    for file in Path(layout.stats_path(console.lake.root)).rglob("*.parquet"):
        file.unlink()
    [row] = console.get("queues")["queues"]
    assert row["depths"] == [None] * (BUCKETS - 1) + [1]
    assert "cannot read the depths that the compactor stored" in caplog.text


def test_a_queue_that_cannot_be_read_does_not_take_the_list_with_it(console: Console):
    broken = console.lake.create_queue("broken")
    console.lake.create_queue("sound").send("a")
    shutil.rmtree(layout.receipts_path(console.lake.root, broken.key, 0))
    first, second = console.get("queues")["queues"]
    assert (first["name"], first["counts"], first["error"]) == (
        "broken",
        None,
        "The storage of the queues failed.",
    )
    assert second["counts"]["visible"] == 1
    response = console.http.get("/console/api/queues/broken")
    assert (response.status_code, response.json()["code"]) == (503, "ServiceUnavailable")
    assert str(console.lake.root) not in response.text


def test_damage_that_a_call_met_needs_attention_until_the_call_succeeds(console: Console, clock: ManualClock):
    lake = LakeQueue(console.lake.root, clock=clock)
    orders = lake.create_queue("orders")
    orders.send("a")
    orders.send("b")
    file = live(Path(messages_of(orders)))[1]
    whole = file.read_bytes()
    file.unlink()
    assert console.get("attention")["concerns"] == [], "the counts do not need the file"
    path = "/console/api/queues/orders/messages"
    response = console.http.get(path)
    message = (
        "The queue orders is damaged: `lakequeue check orders` shows how, `lakequeue repair orders` mends it."
    )
    assert (response.status_code, response.json()["message"]) == (503, message)
    assert lake.root not in response.text
    clock.advance(31)
    [concern] = console.get("attention")["concerns"]
    assert console.get("attention", queue="orders") == console.get("attention") | {"root": [], "urgent": False}
    assert console.get("attention", queue="other")["concerns"] == []
    assert (concern["kind"], concern["queue"]) == ("unreadable", "orders")
    copying = f"cp -a {lake.root}/q/{orders._runtime.key} COPY"
    assert commands(concern) == ["lakequeue check orders", copying, "lakequeue repair orders"]
    with keyed(lake, "ListQueues", "GetQueueAttributes") as http:
        assert lake.root not in http.get("/console/api/attention").text
    file.write_bytes(whole)
    assert console.http.get(path).status_code == 200
    assert console.get("attention")["concerns"] == []


def test_damage_that_an_sqs_client_met_needs_attention_for_an_hour(console: Console, clock: ManualClock):
    orders = LakeQueue(console.lake.root, clock=clock).create_queue("orders")
    orders.send("a")
    [file] = live(Path(messages_of(orders)))
    file.unlink()
    fields = {"Action": "ReceiveMessage", "QueueUrl": "http://127.0.0.1/000000000000/orders"}
    refused = console.http.post("/", data=fields)
    assert refused.status_code == 503 and "`lakequeue repair orders` mends it" in refused.text
    assert console.lake.root not in refused.text
    assert [each["kind"] for each in console.get("attention")["concerns"]] == ["unreadable"]


def test_a_missing_reserve_for_a_full_disk_needs_attention(console: Console):
    LakeQueue(console.lake.root).create_queue("orders")
    assert not [each for each in console.get("attention")["root"] if "reserved" in each["text"]]
    Path(console.lake.root, layout.RESERVE).unlink()
    [found] = [each for each in console.get("attention")["root"] if "reserved" in each["text"]]
    assert found["text"].startswith("No bytes are reserved; when the disk is full, ")
    assert found["runbook"] == "disk-full"


def test_damage_that_a_consumer_met_needs_attention(console: Console, clock: ManualClock):
    orders = LakeQueue(console.lake.root, clock=clock).create_queue("orders")
    orders.send("a")
    orders.send("b")
    live(Path(messages_of(orders)))[1].unlink()
    assert console.get("attention")["concerns"] == []
    process = ConsumerProcess("host-1", 7, clock.now(), clock.now(), 0, None)
    report = ConsumerFile("packer", [orders.key], process, damaged={orders.key: clock.now()})
    consumer_files.write(orders._runtime.root.engine.store, console.lake.root, "1", report)
    clock.advance(31)
    [concern] = console.get("attention")["concerns"]
    assert (concern["kind"], concern["queue"], len(commands(concern))) == ("unreadable", "orders", 3)
    met = f"packer, process 7 on host-1, at {process.seen_at:%F %T}Z"
    assert concern["text"] == f"orders is damaged: a consumer met messages that cannot be read: {met}"
    clock.advance(3600)
    assert [each["kind"] for each in console.get("attention")["concerns"]] == ["unread"]


def test_damage_that_a_consumer_reported_is_forgotten_once_a_check_finds_none(clock: ManualClock):
    met, at = MetDamage(start=lambda work: work()), clock.now()
    met.reported("key", "packer", at)
    assert met.queues(clock.now()) == {"key"}
    met.look_again("key", clock.now, lambda: False)
    met.reported("key", "packer", at)
    assert met.queues(clock.now()) == set(), "the consumer reports it for an hour"
    clock.advance(1)
    met.reported("key", "packer", clock.now())
    assert met.queues(clock.now()) == {"key"}


def test_damage_is_remembered_for_an_hour_and_of_a_limited_number_of_calls(clock: ManualClock):
    met, begun = MetDamage(), clock.now()

    def ended(queue: str, damaged: str | None, by_console: bool = False) -> None:
        call = ApiCall("ReceiveMessage", queue, damaged=damaged, by_console=by_console)
        met.ended(RequestRecord(clock.now(), "-", "POST", "/", call))

    ended("orders", None)
    ended("orders", "/root/q/key/0/messages")
    ended("orders", None)
    assert met.queues(begun + KEPT) == {"key"}, "a receive that finds nothing proves nothing"
    assert met.queues(begun + KEPT + timedelta(seconds=1)) == set()
    ended("orders", None, by_console=True)
    assert met.queues(begun) == set()
    for number in range(MOST + 1):
        ended(f"queue-{number}", f"/root/q/{number}/0/messages")
    assert met.queues(begun) == {str(number) for number in range(1, MOST + 1)}


def test_a_damaged_queue_is_checked_again_until_it_is_repaired(clock: ManualClock):
    met, checks = MetDamage(start=lambda work: work()), list[bool]()

    def look(damaged: bool) -> set[str]:
        def is_damaged() -> bool:
            checks.append(damaged)
            clock.advance(2)
            return damaged

        met.look_again("key", clock.now, is_damaged)
        return met.queues(clock.now())

    call = ApiCall("ReceiveMessage", "orders", damaged="s3://bucket/root/q/key/0/messages")
    met.ended(RequestRecord(clock.now(), "-", "POST", "/", call))
    assert look(damaged=True) == {"key"} == look(damaged=False), "a check reads every file: not again at once"
    assert checks == [True]
    clock.advance(39)
    assert look(damaged=False) == {"key"}, "twenty times as long as the check took"
    clock.advance(1)
    assert look(damaged=False) == set() and checks == [True, False]


def test_damage_that_was_met_during_a_check_is_kept(clock: ManualClock):
    met = MetDamage(start=lambda work: work())

    def meet() -> bool:
        clock.advance(1)
        met.ended(
            RequestRecord(clock.now(), "-", "POST", "/", ApiCall("Send", "a", damaged="/root/q/key/0/messages"))
        )
        return False

    met.look_again("key", clock.now, meet)
    assert met.queues(clock.now()) == {"key"}


# --- one queue


@pytest.mark.spec("RWD-24", "DLQ-7")
def test_a_queue_is_shown_with_all_that_is_known_of_it(console: Console, clock: ManualClock):
    console.lake.create_queue("letters")
    console.lake.create_queue(
        "orders",
        tags={HOSTILE: HOSTILE},
        rewind_range=60,
        redrive_policy={"deadLetterTargetArn": "letters", "maxReceiveCount": 3},
    )
    found = console.get("queues/orders")
    assert found["tags"] == {HOSTILE: HOSTILE}
    assert found["attributes"]["RewindSeconds"] == "60" and found["attributes"]["QueueArn"].endswith(":orders")
    assert (found["dead_letter_queue"], found["max_receive_count"]) == ("letters", 3)
    assert found["min_rewind_time"] == "2025-12-31T23:59:00Z"
    assert set(found["may"].values()) == {True}
    letters = console.get("queues/letters")
    assert (letters["sources"], letters["min_rewind_time"]) == (["orders"], None)


def test_points_reach_from_the_first_look_to_the_present(console: Console, clock: ManualClock):
    queue = console.lake.create_queue("orders")
    queue.send("a")
    begin = to_micros(clock.now()) // 1_000
    console.get("queues/orders")
    clock.advance(1800)
    queue.send("b")
    found = console.get("queues/orders/points")
    assert (found["hours"], found["points"][0]["at"], found["points"][-1]["at"]) == (3, begin, begin + 1_800_000)
    assert [found["points"][index]["visible"] for index in (0, -1)] == [1, 2]
    ats = [point["at"] for point in found["points"]]
    assert ats == sorted(ats)
    clock.advance(3600)
    assert console.get("queues/orders/points", hours=1)["points"][0]["at"] >= begin + 1_800_000
    assert console.http.get("/console/api/queues/orders/points?hours=169").status_code == 400


@pytest.mark.spec("STA-6")
def test_messages_are_shown_through_filters_and_nothing_changes(console: Console, clock: ManualClock):
    queue = console.lake.create_queue("orders")
    queue.send_batch(
        [
            SendEntry("Apple", group_id="Fruit"),
            SendEntry("banana", attributes={"kind": "ripe", "key": b"\xff"}),
            SendEntry("it's 100%_sure"),
            SendEntry("late", delay=60),
            SendEntry(HOSTILE.replace("\x7f", "")),
        ]
    )
    queue.receive()
    before = versions(console.lake)
    hostile = HOSTILE.replace("\x7f", "")
    for filters, bodies in (
        ({"state": "in_flight"}, ["Apple"]),
        ({"state": "delayed"}, ["late"]),
        ({"state": "held"}, []),
        ({"state": "moving"}, []),
        ({"text": "APPLE"}, ["Apple"]),
        ({"text": "fruit"}, ["Apple"]),
        ({"text": "it's"}, ["it's 100%_sure"]),
        ({"text": "%_s"}, ["it's 100%_sure"]),
        ({"text": hostile}, [hostile]),
        ({"text": "') OR true OR contains('"}, []),
        ({"where": "message_attributes['kind'] = 'ripe'"}, ["banana"]),
        ({"where": "receive_count = 0 -- not received", "state": "visible", "text": "ban"}, ["banana"]),
        ({"where": "body < 'b'", "text": "apple"}, ["Apple"]),
        ({"where": "false) OR (body = 'late'", "text": "late"}, ["late"]),
        ({"where": "false) OR (body = 'late'", "text": "banana"}, []),
        ({"limit": 2}, ["Apple", "banana"]),
    ):
        assert (filters, console.bodies("orders", **filters)) == (filters, bodies)
    found = console.get("queues/orders/messages", limit=4)
    assert found["next"] and not console.get("queues/orders/messages", limit=5)["next"]
    apple, banana = found["messages"][:2]
    assert (apple["state"], apple["receive_count"], apple["group_id"]) == ("in_flight", 1, "Fruit")
    assert banana["attributes"] == {
        "kind": {"type": "String", "value": "ripe"},
        "key": {"type": "Binary", "value": "/w=="},
    }
    by_id = console.get("queues/orders/messages", text=banana["id"].upper())["messages"]
    assert [message["id"] for message in by_id] == [banana["id"]]
    assert versions(console.lake) == before


@pytest.mark.spec("DLQ-4")
def test_a_dead_letter_shows_its_error_and_a_message_in_flight_its_consumer(console: Console):
    def fail(message: Message, context: Context) -> None:
        raise ValueError(HOSTILE)

    console.lake.create_queue("letters")
    orders = console.lake.create_queue("orders", redrive_policy=RedrivePolicy("letters", 1))
    orders.send("a")
    consumer = Consumer(orders, fail, name="worker", wait_time=0, make_failed_messages_visible_immediately=True)
    consumer.run(until_empty=True)
    assert orders.receive() == []
    [letter] = console.get("queues/letters/messages")["messages"]
    told = {"error": "ValueError", "text": HOSTILE, "at": "2026-01-01T00:00:00Z", "consumer": "worker"}
    assert (letter["dead_letter_reason"], letter["consumer"]) == (told, None)
    assert console.get(f"queues/letters/messages/{letter['id']}")["dead_letter_reason"] == told
    orders.send("b")
    orders.receive(consumer="picker")
    [taken] = console.get("queues/orders/messages")["messages"]
    assert (taken["state"], taken["consumer"], taken["dead_letter_reason"]) == ("in_flight", "picker", None)
    assert console.get("queues/orders/consumers") == {
        "consumers": [
            {
                "consumer": "picker",
                "in_flight": 1,
                "oldest_receive": "2026-01-01T00:00:00Z",
                "newest_receive": "2026-01-01T00:00:00Z",
                "processes": [],
                "silent": [],
                "returns_at": "2026-01-01T00:00:30Z",
                "spent": 1,
                "slow": False,
            }
        ],
        "total": 1,
    }


@pytest.mark.spec("JOB-14")
def test_an_idle_consumer_is_shown_with_its_process(console: Console, lake: LakeQueue):
    orders = lake.create_queue("orders")
    lake.create_queue("others")
    instant = lake.clock.now()
    process = ConsumerProcess("worker-1", 4711, instant, instant, 0, None)
    report_consumer(orders, "1", ConsumerFile("packer", [orders.key], process))
    shown = {"consumer": "packer", "in_flight": 0, "oldest_receive": None, "newest_receive": None}
    at = "2026-01-01T00:00:00Z"
    known = {"host": "worker-1", "pid": 4711, "started_at": at, "seen_at": at, "handlers": 0}
    shown |= {
        "processes": [
            known
            | {
                "oldest_handler": None,
                "dumps": False,
                "outage_since": None,
                "outage_reason": None,
                "failing_table": None,
                "ended": False,
                "stopped": False,
            }
        ],
        "silent": [],
        "returns_at": None,
        "spent": 0,
        "slow": False,
    }
    assert console.get("queues/orders/consumers") == {"consumers": [shown], "total": 1}
    assert console.get("queues/others/consumers") == {"consumers": [], "total": 0}
    workers = console.get("workers")
    assert (workers["workers"], workers["limited"]) == ([{"queue": "orders", "slow": False} | shown], False)


@pytest.mark.spec("DLQ-4")
def test_dead_letters_are_counted_by_their_errors(console: Console):
    def fail(message: Message, context: Context) -> None:
        raise {"K": KeyError, "V": ValueError}[message.body[0]](message.body)

    letters = console.lake.create_queue("letters")
    orders = console.lake.create_queue("orders", redrive_policy=RedrivePolicy("letters", 1))
    orders.send_batch([SendEntry(body) for body in ("V1", "K1", "V2")])
    at_once = {"make_failed_messages_visible_immediately": True}
    Consumer(orders, fail, concurrency=1, name="worker", wait_time=0, **at_once).run(until_empty=True)
    orders.send("killed")
    orders.receive(visibility_timeout=0)
    assert orders.receive() == []
    letters.send("no dead letter")
    found = console.get("queues/letters/errors")
    texts = {row["error"]: (row["source_queue"], row["messages"], row["text"]) for row in found["errors"]}
    assert texts.pop("ValueError") in (("orders", 2, "V1"), ("orders", 2, "V2"))
    assert texts == {"KeyError": ("orders", 1, "'K1'"), None: ("orders", 1, "")}
    assert found["errors"][0]["error"] == "ValueError" and found["tested"] is None
    previews: list[tuple[dict[str, str], int]] = [
        ({"error": "ValueError"}, 2),
        ({"error": "KeyError", "source": "orders"}, 1),
        ({"error": "ValueError", "source": "other"}, 0),
        ({"error": "ValueError", "text": "V1"}, 1),
        ({"error": "ValueError' OR '1' = '1"}, 0),
        ({"no_error": "1", "source": "orders"}, 1),
    ]
    for given, number in previews:
        assert console.get("queues/letters/redrive", **given)["messages"] == number, given
    assert console.post("queues/letters/redrive", error="ValueError", source="orders") == {"messages": 2}
    assert {*console.bodies("letters")} == {"K1", "killed", "no dead letter"}
    assert console.post("queues/letters/redrive", no_error="1", source="orders") == {"messages": 1}


def test_long_bodies_are_cut_until_they_are_asked_for(console: Console):
    queue = console.lake.create_queue("orders")
    queue.send("é" * 1000, attributes={"note": "n" * 500})
    [cut] = console.get("queues/orders/messages")["messages"]
    assert (len(cut["body"]), cut["length"], cut["cut"]) == (400, 1000, True)
    assert len(cut["attributes"]["note"]["value"]) == 400
    whole = console.get(f"queues/orders/messages/{cut['id']}")
    assert (whole["body"], whole["attributes"]["note"]["value"], whole["cut"]) == ("é" * 1000, "n" * 500, False)
    for id in ("gone", "' OR true --"):
        gone = console.http.get(f"/console/api/queues/orders/messages/{id}")
        assert (gone.status_code, gone.json()["code"]) == (404, "ResourceNotFoundException")


@pytest.mark.spec("FAI-3")
def test_the_largest_groups_of_a_queue_with_tenants_are_shown(console: Console):
    orders = console.lake.create_queue("orders", profile="sqs", group_in_flight_limit=5)
    orders.send("a")
    assert console.get("queues/orders/groups") == {"groups": None}, "no message has a group"
    jobs = console.lake.create_queue("jobs", profile="sqs")
    for group in ["noisy"] * 30 + [f"quiet {index}".replace(" ", "-") for index in range(30)]:
        jobs.send(group, group_id=group)
    found = console.get("queues/jobs/groups")
    assert (found["total"], found["noisy"], len(found["groups"])) == (31, 1, 20) and found["seconds_ago"] < 10
    [first, second, *_] = found["groups"]
    assert (first["group_id"], first["visible"], first["in_flight"], first["noisy"]) == ("noisy", 30, 0, True)
    assert (second["group_id"], second["visible"], second["noisy"]) == ("quiet-0", 1, False)
    jobs.purge()
    assert console.get("queues/jobs/groups")["total"] == 31, "kept for some seconds, and not counted at each tick"


LARGE = "\U0001f600" * 250_000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> LakeQueue:
    """A root with a queue of 20 large messages, which nobody changes."""
    lake = LakeQueue(str(tmp_path_factory.mktemp("large") / "root"))
    queue = lake.create_queue("orders", profile="sqs", shards=2)
    for _ in range(20):
        queue.send(LARGE)
    return lake


def test_a_list_holds_few_whole_bodies_at_a_time(large: LakeQueue):
    """A page of large messages took four bytes of memory for each of their characters."""
    with visited(large) as http:
        console = Console(large, http)
        for filters in ({}, {"state": "visible"}, {"order": "newest"}, {"order": "newest", "state": "visible"}):
            console.get("queues/orders/messages", **filters)  # what is loaded once is no matter
            tracemalloc.start()
            try:
                found = console.get("queues/orders/messages", **filters)
                _, most = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert [len(found["messages"]), found["next"], found["messages"][0]["length"]] == [20, None, 250_000]
            assert most < 16 * len(LARGE) * 4, "not all 20"


PAGES = """
import json, sys, tracemalloc
from concurrent.futures import ThreadPoolExecutor
import pyarrow as pa
from lakequeue import LakeQueue
from lakequeue.serve.console.api import ConsoleApi
from lakequeue.serve.console.parameters import Parameters
from lakequeue.serve.sqs.actions import Actions
api = ConsoleApi(Actions(LakeQueue(sys.argv[1])))
def page(filters):
    return len(api.messages(None, "orders", Parameters(filters, None))["messages"])
tracemalloc.start()
with ThreadPoolExecutor(8) as readers:
    lengths = [*readers.map(page, [{}, {"state": "visible"}] * 4)]
print(json.dumps([lengths, pa.default_memory_pool().max_memory(), tracemalloc.get_traced_memory()[1]]))
"""
"""Eight readers of a page at once, in a process that has read nothing else."""


def test_lists_read_at_once_share_what_is_stored(large: LakeQueue):
    """tracemalloc sees nothing of Arrow, which has the bodies as they are stored."""
    read = subprocess.run([sys.executable, "-c", PAGES, large.root], capture_output=True, check=True, timeout=120)
    lengths, in_arrow, in_python = json.loads(read.stdout)
    assert lengths == 8 * [20]
    assert in_arrow < 2 * 20 * len(LARGE.encode()), "one copy of each, not one for each reader"
    assert in_python < 8 * 8 * len(LARGE.encode()), "some bodies at a time, not 20 for each reader"


def test_a_list_ends_by_bytes(console: Console, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lakequeue.serve.console.documents.MAX_PAGE_BYTES", 1_500)
    queue = console.lake.create_queue("orders", profile="sqs")
    for _ in range(10):
        queue.send("x" * 400)
    found = console.get("queues/orders/messages", limit=10)
    assert len(found["messages"]) == 3
    assert len(console.get("queues/orders/messages", after=found["next"])["messages"]) == 3
    monkeypatch.undo()
    assert len(console.get("queues/orders/messages", after=found["next"])["messages"]) == 7
    found = console.get("queues/orders/messages", limit=10)
    assert not found["next"] and len(found["messages"]) == 10


def paged(console: Console, queue: str, **filters: Any) -> list[list[str]]:
    """The bodies of each page, following where each says that the next begins."""
    pages: list[list[str]] = []
    after: str | None = ""
    while after is not None:
        found = console.get(f"queues/{queue}", after=after, **filters)
        pages.append([message["body"] for message in found["messages"]])
        after = found["next"]
    return pages


def test_pages_follow_each_other_in_both_orders_over_shards(console: Console, clock: ManualClock):
    queue = console.lake.create_queue("orders", shards=3, rewind_range=3600)
    for number in range(23):
        queue.send(str(number), delay=600 if number % 5 == 0 else None)
        clock.advance(1)
    gone = queue.receive(4)
    queue.delete_batch([message.receipt_handle for message in gone])
    left = [str(number) for number in range(23) if str(number) not in {message.body for message in gone}]
    assert paged(console, "orders/messages", limit=4) == [left[at : at + 4] for at in range(0, 19, 4)]
    back = left[::-1]
    assert paged(console, "orders/messages", limit=4, order="newest") == [
        back[at : at + 4] for at in range(0, 19, 4)
    ]
    delayed = ["20", "15", "10", "5", "0"]
    assert paged(console, "orders/messages", limit=2, order="newest", state="delayed") == [
        delayed[:2],
        delayed[2:4],
        delayed[4:],
    ]
    past = sorted((message.body for message in gone), key=int)
    assert paged(console, "orders/history", limit=3) == [past[:3], past[3:]]
    assert paged(console, "orders/history", limit=3, order="newest") == [past[:0:-1], past[:1]]
    since = (clock.now() - timedelta(seconds=23 - int(past[2]))).isoformat()
    assert paged(console, "orders/history", order="newest", since=since) == [past[:1:-1]]


def test_a_page_stays_where_it_is_while_messages_come_and_go(console: Console, clock: ManualClock):
    queue = console.lake.create_queue("orders", shards=2)
    for number in range(8):
        queue.send(str(number))
        clock.advance(1)
    first = console.get("queues/orders/messages", limit=3)
    last = console.get("queues/orders/messages", limit=3, order="newest")
    queue.delete_batch([message.receipt_handle for message in queue.receive(2)])
    queue.set_attributes(shards=4)
    for number in range(8, 16):
        queue.send(str(number))
    assert console.bodies("orders", limit=3, after=first["next"]) == ["3", "4", "5"]
    assert console.bodies("orders", limit=3, after=last["next"], order="newest") == ["4", "3", "2"]


def test_a_rare_message_does_not_read_the_whole_queue(console: Console, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lakequeue.serve.console.api.MAX_TESTED", 30)
    queue = console.lake.create_queue("orders", shards=3)
    for _ in range(2):
        queue.send_batch([SendEntry("x") for _ in range(50)])
    queue.send("rare")
    found = console.get("queues/orders/messages", text="rare")
    assert found["messages"] == [] and found["next"] and 30 <= found["tested"] <= 60
    assert sum(paged(console, "orders/messages", text="rare"), []) == ["rare"]
    assert sum(paged(console, "orders/messages", text="rare", order="newest"), []) == ["rare"]
    [rare] = queue.peek("body = 'rare'")
    assert console.get(f"queues/orders/messages/{rare.message_id}")["body"] == "rare"


# --- actions


def test_a_message_is_sent_as_sqs_would_take_it(console: Console):
    queue = console.lake.create_queue("jobs.fifo", fifo=True)
    sent = console.post(
        "queues/jobs.fifo/send",
        MessageBody=HOSTILE,
        MessageGroupId="g",
        MessageDeduplicationId="d",
        MessageAttributes={
            "text": {"DataType": "String", "StringValue": HOSTILE},
            "key": {"DataType": "Binary", "BinaryValue": base64.b64encode(b"\x00").decode()},
        },
    )
    assert sent["SequenceNumber"]
    [message] = queue.receive()
    assert (message.message_id, message.body, message.group_id, message.dedup_id) == (
        sent["MessageId"],
        HOSTILE,
        "g",
        "d",
    )
    assert message.message_attributes["text"].value == HOSTILE
    assert message.message_attributes["key"].value == b"\x00"
    delayed = console.lake.create_queue("later")
    console.post("queues/later/send", MessageBody="a", DelaySeconds=60)
    assert delayed.counts().delayed == 1


@pytest.mark.spec("PUR-1", "PUR-2")
def test_a_queue_is_purged_once_a_minute(console: Console):
    queue = console.lake.create_queue("orders")
    queue.send("a")
    assert console.post("queues/orders/purge", name="orders") == {}
    assert queue.counts().visible == 0
    again = console.sent("queues/orders/purge", {"name": "orders"})
    assert (again.status_code, again.json()["code"]) == (403, "PurgeQueueInProgress")


@pytest.mark.spec("RWD-9", "RWD-11")
def test_a_rewind_does_what_it_said_it_would(console: Console, clock: ManualClock):
    begin = clock.now()
    queue = rewindable(console.lake, clock, 4)
    to = (begin + timedelta(seconds=2)).isoformat()
    assert console.bodies("orders", "history") == [f"order {number}" for number in range(4)]
    assert console.bodies("orders", "history", since=to, text="ORDER", where="body <> 'order 2'") == ["order 3"]
    first = console.get("queues/orders/history", limit=1)
    assert first["next"] and first["messages"][0]["state"] == "deleted"
    assert console.get(f"queues/orders/history/{first['messages'][0]['id']}")["body"] == "order 0"
    assert console.http.get("/console/api/queues/orders/history/gone").status_code == 404
    before = versions(console.lake)
    assert console.get("queues/orders/rewind", to=to) == {"messages": 2, "to": "2026-01-01T00:00:02Z"}
    assert versions(console.lake) == before
    assert console.post("queues/orders/rewind", to=to) == {"messages": 2}
    assert [message.body for message in queue.peek()] == ["order 2", "order 3"]


@pytest.mark.spec("RWD-15")
def test_a_queue_without_a_history_says_so(console: Console, clock: ManualClock):
    console.lake.create_queue("orders")
    assert console.bodies("orders", "history") == []
    response = console.sent("queues/orders/rewind", {"to": clock.now().isoformat()})
    assert (response.status_code, response.json()["code"]) == (400, "UnsupportedOperation")


@pytest.mark.spec("DLQ-8")
def test_a_redrive_does_what_it_said_it_would_and_no_more(console: Console):
    with_letters(console.lake, "mails", "orders")
    assert console.get("queues/letters/redrive") == {
        "messages": 4,
        "destinations": [{"queue": "mails", "messages": 2}, {"queue": "orders", "messages": 2}],
    }
    where = "body LIKE 'orders%'"
    assert console.get("queues/letters/redrive", where=where)["destinations"] == [
        {"queue": "orders", "messages": 2}
    ]
    assert console.get("queues/letters/redrive", text="ORDERS 1")["messages"] == 1
    assert console.get("queues/letters/redrive", text="mails", where=where)["messages"] == 0
    assert console.post("queues/letters/redrive", where=where, messages=1) == {"messages": 1}
    assert console.bodies("orders") == ["orders 0"]
    assert console.post("queues/letters/redrive", messages=2) == {"messages": 2}
    assert console.post("queues/letters/redrive") == {"messages": 1}
    assert console.bodies("letters") == []


# --- who may


ACTS: dict[str, tuple[str, dict[str, Any]]] = {
    "SendMessage": ("queues/orders/send", {"MessageBody": "a"}),
    "PurgeQueue": ("queues/orders/purge", {"name": "orders"}),
    "StartMessageMoveTask": ("queues/orders/redrive", {}),
    "Rewind": ("queues/orders/rewind", {"to": "2026-01-01T00:00:00Z"}),
    "DeleteMessage": ("queues/orders/messages/delete", {"ids": ["x"]}),
    "ChangeMessageVisibility": ("queues/orders/messages/visible", {"ids": ["x"]}),
    "SetQueueAttributes": ("queues/orders/attributes", {"Attributes": {"DelaySeconds": "5"}}),
    "TagQueue": ("queues/orders/tags", {"Tags": {"a": "b"}}),
    "UntagQueue": ("queues/orders/untag", {"TagKeys": ["kept"]}),
    "CreateQueue": ("queues", {"QueueName": "orders-2"}),
    "DeleteQueue": ("queues/orders/delete", {"name": "orders"}),
}
"""Every change, by the action that a key needs for it; the deletion comes last."""


@pytest.fixture
def changeable(lake: LakeQueue, clock: ManualClock) -> LakeQueue:
    """A root where each change succeeds."""
    rewindable(lake, clock, 1).set_tags({"kept": ""})
    lake.create_queue("sources", redrive_policy=RedrivePolicy("orders", 1))
    return lake


@pytest.mark.parametrize("action", ACTS)
def test_no_other_site_can_have_a_browser_act(changeable: LakeQueue, console: Console, action: str):
    (act, members), before = ACTS[action], versions(changeable)
    path, content, as_json = f"/console/api/{act}", json.dumps(members), {"Content-Type": "application/json"}
    for headers, status in (
        (as_json, 403),
        (ASKED, 415),
        (ASKED | {"Content-Type": "text/plain"}, 415),
        (ASKED | {"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ):
        response = console.http.post(path, content=content, headers=headers)
        assert (response.status_code, headers) == (status, headers)
        assert {*response.json()} == {"code", "message"}
    preflight = console.http.options(
        path,
        headers={
            "Origin": "http://other.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "x-lakequeue-console",
        },
    )
    assert preflight.status_code == 403 and "access-control-allow-origin" not in preflight.headers
    assert versions(changeable) == before
    assert console.http.post(path, content=content, headers=ASKED | as_json).status_code == 200
    found_nothing = action in ("StartMessageMoveTask", "DeleteMessage", "ChangeMessageVisibility")
    assert versions(changeable) != before or found_nothing


@pytest.mark.parametrize(("content", "status"), [(b"", 400), (b"{", 400), (b"[" * 9999, 400), (b" " * 5001, 413)])
def test_bodies_that_are_null_are_refused(lake: LakeQueue, content: bytes, status: int):
    lake.create_queue("orders")
    with visited(lake, max_body_bytes=5000 if status == 413 else 2**20) as http:
        headers = ASKED | {"Content-Type": "application/json"}
        response = http.post("/console/api/queues/orders/send", content=content, headers=headers)
        assert (response.status_code, {*response.json()}) == (status, {"code", "message"})


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "Basic",
        "Basic !",
        "Basic /w==",
        "Bearer QUtJQTE6cGFzczp3w7ZyZA==",
        "Basic " + base64.b64encode(b"AKIA1:pass").decode(),
        "Basic " + base64.b64encode(b"AKIA1").decode(),
    ],
)
def test_where_there_are_keys_nobody_sees_data_without_one(lake: LakeQueue, authorization: str | None):
    lake.create_queue("orders")
    with visited(lake, access=Keys(frozenset({"ListQueues"}))) as http:
        headers = {} if authorization is None else {"Authorization": authorization}
        for path in "", "console.js":  # which ask for a key
            assert http.get(f"/console/{path}", headers=headers).status_code == 200
        for path in "api/queues", "api/queues/orders", "api/nothing", "api/attention":
            response = http.get(f"/console/{path}", headers=headers)
            assert (response.status_code, {*response.json()}) == (401, {"code", "message"})
            assert response.headers["www-authenticate"] == 'Basic realm="lakequeue", charset="UTF-8"'
            assert "content-security-policy" in response.headers
        response = http.post("/console/api/queues/orders/send", json={"MessageBody": "a"}, headers=headers | ASKED)
        assert response.status_code == 401
        assert "www-authenticate" not in response.headers, "a browser would ask before the page does"
    assert lake.queue("orders").counts().visible == 0


def test_a_key_shows_no_more_than_it_may(lake: LakeQueue, clock: ManualClock):
    rewindable(lake, clock, 1).send("a")
    lake.create_queue("secret").send("b")
    one = "/console/api/queues/orders"
    with keyed(lake, "ListQueues") as http:
        assert http.get("/console/").status_code == 200
        found = http.get("/console/api/queues").json()
        assert [(row["name"], row["counts"], row["depths"]) for row in found["queues"]] == [
            ("orders", None, None),
            ("secret", None, None),
        ]
        assert found["caller"] == "reader"
        assert http.get(one).status_code == http.get(f"{one}/points").status_code == 403
    with keyed(lake, "GetQueueAttributes") as http:
        assert http.get("/console/api/queues").status_code == 403
        found = http.get(one).json()
        assert set(found["may"].values()) == {False} and found["tags"] is None and found["sources"] is None
        refused = http.get("/console/api/queues/secret")
        assert refused.status_code == 403
        assert refused.json()["message"] == "reader may not do GetQueueAttributes on secret."
        for path in (
            "groups",
            "messages",
            "messages/x",
            "history",
            "history/x",
            "rewind?to=2026-01-01T00:00:00Z",
            "redrive",
        ):
            assert (path, http.get(f"{one}/{path}").status_code) == (path, 403)
    assert lake.queue("orders").counts().visible == 1


@pytest.mark.parametrize("action", ACTS)
def test_a_key_does_what_it_may(changeable: LakeQueue, action: str):
    # a redrive moves bodies, for which it needs ReceiveMessage, too
    with keyed(changeable, action, *["ReceiveMessage"] * (action == "StartMessageMoveTask")) as http:

        def status(act: str, members: Any) -> int:
            return http.post(f"/console/api/{act}", json=members, headers=ASKED).status_code

        before = versions(changeable)
        elsewhere = json.loads(json.dumps(ACTS[action]).replace("orders", "secret"))
        refused = {other: status(*ACTS[other]) for other in ACTS if other != action}
        assert {*refused.values(), status(*elsewhere)} == {403}
        assert versions(changeable) == before
        assert status(*ACTS[action]) == 200


def test_a_redrive_asks_for_permission_to_receive_and_to_send_to_the_sources(lake: LakeQueue):
    """As a message move task does."""
    with_letters(lake, "orders")
    one, where = "/console/api/queues/letters/redrive", {"where": "body LIKE 'o%'"}
    with keyed(lake, "StartMessageMoveTask") as http:
        for members in {}, where, {"ids": ["x"]}:
            refused = http.post(one, json=members, headers=ASKED)
            assert (refused.status_code, refused.json()["code"]) == (403, "AccessDeniedException")
            assert refused.json()["message"] == "reader may not do ReceiveMessage on letters."
        assert http.get(one).status_code == http.get(one, params=where).status_code == 403
    with keyed(lake, "StartMessageMoveTask", "ReceiveMessage") as http:
        assert http.get(one).json()["messages"] == 2
        refused = http.post(one, json=where, headers=ASKED).json()
        assert refused["message"] == "reader may not do SendMessage on orders."
    with keyed(lake, "StartMessageMoveTask", "ReceiveMessage", "SendMessage") as http:
        assert http.post(one, json=where, headers=ASKED).json() == {"messages": 2}


def test_the_access_log_names_the_action_of_a_request(lake: LakeQueue):
    lake.create_queue("orders")
    told: list[tuple[str, str, str | None, str]] = []
    application = Application(lake, access=Keys(frozenset({"GetQueueAttributes"})))
    inside = application.asgi

    async def outside(scope: Any, receive: Any, send: Any) -> None:
        await inside(scope, receive, send)
        call = scope["state"]["call"]
        told.append((call.action, call.queue, call.caller, call.code))

    application.asgi = outside
    with visiting(application, httpx.BasicAuth("AKIA1", "pass:wörd")) as http:
        http.get("/console/")
        http.get("/console/api/queues/orders")
        http.post("/console/api/queues/orders/purge", json={}, headers=ASKED)
        http.get("/console/api/nothing")
    assert told == [
        ("-", "-", None, "OK"),
        ("GetQueueAttributes", "orders", "reader", "OK"),
        ("PurgeQueue", "orders", "reader", "AccessDeniedException"),
        ("-", "-", "reader", "NotFound"),
    ]


def test_answers_are_not_cached_and_failures_reveal_nothing(
    console: Console, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    console.lake.create_queue("orders")
    assert console.http.get("/console/api/queues").headers["cache-control"] == "no-store"

    def fail(self: Queue) -> None:
        raise ZeroDivisionError("the inside of the server")

    monkeypatch.setattr(Queue, "purge", fail)
    response = console.sent("queues/orders/purge", {"name": "orders"})
    assert response.status_code == 500
    assert response.json() == {"code": "InternalFailure", "message": "The server failed."}
    assert "the inside of the server" in caplog.text
