"""The console in a browser: Debian's Chromium, through Playwright."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from clients.browsing import PATIENCE
from conformance.damage import live
from insides import messages_of
from lakequeue import Consumer, Context, LakeQueue, Message, Queue, SendEntry, __version__
from lakequeue.entry_verbs import report_consumer
from lakequeue.model.consumer_processes import ConsumerFile, ConsumerProcess
from lakequeue.serve import keys as file_keys
from lakequeue.serve.auth import AnonymousCaller, Caller, NoAuthentication
from lakequeue.serve.console import attention
from lakequeue.serve.console.routes import STATIC
from lakequeue.storage import layout
from lakequeue.testing import ManualClock
from serve.serving import serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.clients

UNITS = ("hours", "minutes", "seconds")
MARKUP = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>&amp;"


@pytest.fixture(scope="module", autouse=True)
def _looks_at_each_question() -> Iterator[None]:
    """The server looks anew for what needs attention; it would answer for half a minute what it saw before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "KEPT_SECONDS", 0)
        yield


def ask_often_for_all(route: Route) -> None:
    """Pages ask with each refresh for what needs attention, and show all of it, as other tests leave queues.

    They would ask each quarter of a minute, and show eight queues.
    """
    source = (STATIC / "attention.js").read_text(encoding="utf-8")
    for usual, here in (
        ("const INTERVAL = 15_000;", "const INTERVAL = 0;"),
        ("const SHOWN = 8;", "const SHOWN = 800;"),
    ):
        assert usual in source
        source = source.replace(usual, here)
    route.fulfill(body=source, content_type="text/javascript")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> LakeQueue:
    return LakeQueue(str(tmp_path_factory.mktemp("console") / "root"))


@pytest.fixture(scope="module")
def address(lake: LakeQueue) -> Iterator[str]:
    with serving(lake) as server:
        yield server.url


@attrs.define
class Visit:
    """A page that was opened, with what it complained about and whom it asked."""

    page: Page
    address: str
    complaints: list[str] = attrs.field(factory=list)
    asked: set[str] = attrs.field(factory=set)

    def open(self, place: str = "") -> Page:
        self.page.goto(f"{self.address}/console/{place}")
        return self.page

    def button(self, label: str) -> Any:
        return self.page.get_by_role("button", name=label)

    def row(self, text: str) -> Any:
        return self.page.locator("tbody tr:not(.details)", has_text=text)


def choose(box: Any) -> None:
    """Ticks a box by its key. A page that is still filling moves a box away from a click."""
    shows(box).to_be_enabled()
    box.press("Space")
    shows(box).to_be_checked()


Visiting = Callable[..., AbstractContextManager[Visit]]


@pytest.fixture
def visiting(browser: Browser, address: str) -> Visiting:
    """How to visit the console; whoever leaves has asked nobody but the server, and saw no script fail."""

    @contextmanager
    def visiting(at: str = address, **options: Any) -> Iterator[Visit]:
        context = browser.new_context(**options)
        context.set_default_timeout(PATIENCE * 1_000)
        context.route("**/attention.js", ask_often_for_all)
        visit = Visit(context.new_page(), at)
        visit.page.on("request", lambda request: visit.asked.add("/".join(request.url.split("/")[:3])))
        visit.page.on("pageerror", lambda error: visit.complaints.append(str(error)))
        visit.page.on("console", lambda message: visit.complaints.append(message.text))
        try:
            yield visit
        finally:
            context.close()
        assert visit.asked == {at}
        # the browser reports answers that are refusals by itself
        assert not [text for text in visit.complaints if not text.startswith("Failed to load resource")]

    return visiting


@pytest.fixture
def visit(visiting: Visiting) -> Iterator[Visit]:
    with visiting() as visit:
        yield visit


def shows(locator: Any) -> Any:
    from playwright.sync_api import expect

    return expect(locator)


def with_history(lake: LakeQueue, name: str, count: int) -> Queue:
    """A queue whose messages were deleted and can be rewound."""
    queue = lake.create_queue(name, rewind_range=3600)
    queue.send_batch([SendEntry(f"done {number}") for number in range(count)])
    queue.delete_batch([message.receipt_handle for message in queue.receive(count)])
    return queue


def with_letters(lake: LakeQueue, name: str, *entries: SendEntry) -> Queue:
    """A queue whose messages are dead letters: of ``some-orders`` in ``some-letters``."""
    letters = lake.create_queue(f"{name.rpartition('-')[0]}-letters")
    source = lake.create_queue(name, visibility_timeout=0, dead_letter_queue=letters.name, max_receive_count=1)
    source.send_batch(entries)
    for _ in range(2):
        source.receive(10)
    return source


def test_the_list_keeps_itself_up_to_date_and_what_is_typed(lake: LakeQueue, visit: Visit):
    queue = lake.create_queue("list-orders")
    lake.create_queue("list-jobs.fifo", fifo=True)
    queue.send_batch([SendEntry("a"), SendEntry("b", delay=600)])
    page = visit.open()
    search = page.get_by_role("searchbox")
    search.type("list-")
    row = visit.row("list-orders")
    shows(row.locator("td").first).to_have_text("1")
    shows(row.locator("[data-label=Delayed]")).to_have_text("1")
    shows(visit.row("list-jobs.fifo").locator(".badge")).to_have_text("FIFO")
    shows(row.locator("svg")).to_have_attribute("aria-label", re.compile(r"visible over \d+m: at most 1, now 1"))
    shows(visit.row("")).to_have_count(2)
    queue.send("c")
    shows(row.locator("td").first).to_have_text("2")
    assert search.input_value() == "list-"
    assert search.evaluate("node => node === document.activeElement")
    visit.button("Visible").click()
    shows(page.locator("tbody tr th")).to_have_text([re.compile("list-orders"), re.compile("list-jobs.fifo")])
    page.wait_for_url(re.compile(r"#/\?text=list-&sort=visible&down=1$"))  # a list that can be sent to others
    page.goto("about:blank")
    visit.open("#/?text=list-jobs&sort=visible")
    shows(visit.row("")).to_have_count(1)
    assert search.input_value() == "list-jobs"
    search.fill("list-nothing")
    shows(page.get_by_text("No queue has “list-nothing” in its name.")).to_be_visible()


def test_lines_have_one_scale_rates_are_listed_and_columns_of_zeros_give_way(lake: LakeQueue, visit: Visit):
    for name, count in (("scale-large", 20), ("scale-small", 5)):
        lake.create_queue(name).send_batch([SendEntry("a") for _ in range(count)])
    page = visit.page

    def aged(route: Any) -> None:
        answer = route.fetch()
        large, small = (told := answer.json())["queues"]
        large["depths"] = [None] * 30 + [750] * 29 + [1_500]
        small["depths"] = [None] * 58 + [5, 5]
        large["rates"] = {"minutes": 5.0, "sent": 12.34, "received": 0, "deleted": 0}
        route.fulfill(response=answer, json=told)

    visit.open("#/?text=scale-")
    shows(visit.row("scale-large").locator("td").first).to_have_text("20")
    for label in ("Delayed", "Held", "Undecided", "Sent/min", "Deleted/min"):
        shows(page.get_by_role("columnheader", name=label)).to_have_count(0)
    page.route("**/api/queues?**", aged)
    # from edge to edge over the hours that are known of any queue; the height of each is of its own largest value
    shows(page.get_by_role("columnheader", name="Visible, last 1h30m")).to_be_visible()
    shows(visit.row("scale-large").locator(".top")).to_have_text("max 1,500")
    tops = [visit.row(name).locator(".top") for name in ("scale-large", "scale-small")]
    for width in (700, 900, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        assert all(top.evaluate("each => each.scrollWidth <= each.clientWidth") for top in tops)
        assert len({top.bounding_box()["x"] for top in tops}) == 1, "the lines have one axis of time"
    shows(visit.row("scale-small").locator(".top")).to_have_text("max 5")
    line = visit.row("scale-large").locator("svg .line")
    shows(line).to_have_attribute("d", re.compile(r"^M0\.0 12\.0.*L200\.0 2\.0$"))
    line = visit.row("scale-small").locator("svg .line")
    shows(line).to_have_attribute("d", re.compile(r"^M186\.7 2\.0.*L200\.0 2\.0$"))
    shows(visit.row("scale-large").locator("[data-label='Sent/min']")).to_have_text("12")
    shows(visit.row("scale-small").locator("[data-label='Sent/min']")).to_have_text("–")
    shows(page.get_by_role("columnheader", name="Deleted/min")).to_have_count(0)


def test_pages_of_messages_are_in_the_address(lake: LakeQueue, visit: Visit):
    queue = lake.create_queue("paged", shards=2)
    queue.send_batch([SendEntry(f"{number:03d}", delay=600 if number < 3 else None) for number in range(120)])
    page = visit.open("#/q/paged")
    bodies = page.locator("td.at-body")
    shows(bodies).to_have_count(50)
    first, newest = bodies.first.text_content(), page.get_by_label("Order")
    shows(page.get_by_text("The oldest 50 messages; there are more.")).to_be_visible()
    shows(visit.button("Previous")).to_be_disabled()
    visit.button("Next page").click()
    page.wait_for_url(re.compile(r"#/q/paged\?after=\d+\.\d+$"))
    shows(bodies.first).not_to_have_text(first or "")
    visit.button("Next page").click()
    shows(bodies).to_have_count(20)
    shows(visit.button("Next page")).to_be_disabled()
    place = page.url
    page.reload()
    shows(bodies).to_have_count(20)
    visit.button("Previous").click()
    shows(bodies).to_have_count(50)
    page.go_forward()
    shows(bodies).to_have_count(20)
    visit.button("First page").click()
    shows(bodies.first).to_have_text(first or "")
    newest.focus()
    page.keyboard.press("End")  # the last choice, by keyboard
    shows(page.get_by_text("The newest 50 messages; there are more.")).to_be_visible()
    page.get_by_label("State").select_option("delayed")
    shows(bodies).to_have_text(["002", "001", "000"])
    assert page.url.endswith("#/q/paged?state=delayed&order=newest")
    page.get_by_label("Text in body, id or group").fill("001")
    page.keyboard.press("Enter")
    shows(bodies).to_have_text(["001"])
    page.go_back()
    shows(bodies).to_have_count(3)
    shows(page.get_by_label("Text in body, id or group")).to_have_value("")
    page.goto("about:blank")
    page.goto(place)  # a page that was sent: the pages before it are not known
    shows(bodies).to_have_count(20)
    shows(visit.button("Previous")).to_be_disabled()
    shows(visit.button("First page")).to_be_enabled()


def test_the_list_of_queues_is_sorted_over_its_pages(lake: LakeQueue, visit: Visit):
    for number in range(60):
        lake.create_queue(f"many-{number:02d}")
    lake.queue("many-07").send("a")
    page = visit.open("#/?text=many-")
    rows = page.locator("tbody th a")
    shows(rows).to_have_count(50)
    shows(page.locator(".summary")).to_contain_text("60 queues, 50 on this page")
    visit.button("Next page").click()
    shows(rows).to_have_count(10)
    visit.button("Visible").click()
    shows(rows.first).to_have_text("many-07")
    shows(page.locator(".summary")).to_contain_text("sorted by counts of the last 2 minutes")
    assert page.url.endswith("#/?text=many-&sort=visible&down=1")
    page.go_back()
    shows(rows).to_have_count(10)
    rows.first.click()
    page.locator("#pages a", has_text="Queues").click()
    shows(rows).to_have_count(10)  # the user returns to the same list


def test_messages_are_filtered_without_being_touched(lake: LakeQueue, visit: Visit):
    queue = lake.create_queue("filtered")
    queue.send_batch([SendEntry("apple"), SendEntry("banana"), SendEntry("cherry", delay=600)])
    queue.receive(1, visibility_timeout=600)
    page = visit.open()
    page.get_by_role("link", name="filtered").click()
    bodies = page.locator("td.at-body")
    shows(bodies).to_have_text(["apple", "banana", "cherry"])
    page.get_by_label("State").select_option("in_flight")
    visit.button("Apply").click()
    shows(bodies).to_have_text(["apple"])
    visit.button("Clear").click()
    shows(bodies).to_have_count(3)
    page.get_by_label("Text in body, id or group").fill("NAN")
    page.keyboard.press("Enter")
    shows(bodies).to_have_text(["banana"])
    visit.button("Clear").click()
    condition = page.get_by_label("SQL condition")
    condition.fill("length(body) = 6 AND nonsense")
    page.keyboard.press("Enter")
    fault = page.get_by_role("alert")
    shows(fault).to_contain_text("There is no column nonsense")
    shows(condition).to_have_attribute("aria-invalid", "true")
    shows(bodies).to_have_count(0)
    condition.fill("length(body) = 6 AND state <> 'delayed'")
    page.keyboard.press("Enter")
    shows(bodies).to_have_text(["banana"])
    shows(fault).to_be_hidden()
    shows(condition).not_to_have_attribute("aria-invalid", "true")
    queue.send("orange")
    shows(bodies).to_have_text(["banana", "orange"])
    assert condition.input_value() == "length(body) = 6 AND state <> 'delayed'"
    assert [message.receive_count for message in queue.peek()] == [1, 0, 0, 0]


@pytest.mark.parametrize("part", ["messages", "history"])
def test_markup_stays_text_and_long_bodies_are_shown_on_demand(lake: LakeQueue, visit: Visit, part: str):
    queue = lake.create_queue(f"markup-{part}", tags={MARKUP: MARKUP}, rewind_range=3600)
    body = MARKUP + "x" * 2_000
    queue.send(body, attributes={"markup": MARKUP}, group_id="a'b")
    if part == "history":
        queue.delete(queue.receive()[0].receipt_handle)
    page = visit.open(f"#/q/markup-{part}/{part}")
    shows(page.locator("td.at-body")).to_have_text(body[:300])
    page.locator("tr.message").click()
    shown = page.locator(".details pre")
    shows(shown).to_have_text(body[:400])
    shows(page.locator(".details .pairs tbody td").last).to_have_text(MARKUP)
    visit.button(f"Show all {len(body):,} characters").click()
    shows(shown).to_have_text(body)
    page.get_by_role("link", name="Attributes").click()
    shows(page.get_by_role("heading", name="Tags")).to_be_visible()
    shows(page.get_by_role("cell", name=MARKUP)).to_be_visible()
    assert page.locator("main img, main script").count() == 0
    assert page.title() == f"markup-{part} · lakequeue"


def test_a_message_is_sent(lake: LakeQueue, visit: Visit):
    queue = lake.create_queue("sent.fifo", fifo=True)
    page = visit.open("#/q/sent.fifo")
    visit.button("Send…").click()
    dialog = page.get_by_role("dialog", name="Send a message to sent.fifo")
    dialog.get_by_label("Body").fill(MARKUP)
    dialog.get_by_label("Group id").fill("g")
    dialog.get_by_label("Deduplication id").fill("d d")
    visit.button("Add attribute").click()
    dialog.get_by_label("Name of the attribute").fill("n")
    dialog.get_by_label("Type of the attribute").select_option("Number")
    dialog.get_by_label("Value of the attribute").fill("1.5")
    dialog.get_by_role("button", name="Send", exact=True).click()
    shows(dialog.get_by_role("alert")).to_contain_text("MessageDeduplicationId")
    dialog.get_by_label("Deduplication id").fill("d")
    dialog.get_by_role("button", name="Send", exact=True).click()
    shows(page.locator(".toast")).to_contain_text("Sent ")
    shows(dialog).to_have_count(0)
    shows(page.locator("td.at-body")).to_have_text(MARKUP)
    [message] = queue.receive()
    assert (message.body, message.group_id, message.dedup_id) == (MARKUP, "g", "d")
    assert message.message_attributes["n"] == ("Number", "1.5")


@pytest.mark.spec("PUR-1")
@pytest.mark.parametrize("view", ["messages", "history"])
def test_a_wrong_condition_is_an_error_on_an_empty_queue_too(lake: LakeQueue, visit: Visit, view: str):
    name = f"empty-{view}"
    lake.create_queue(name, rewind_range=60)
    page = visit.open(f"#/q/{name}/{view}")
    note, fault = page.locator("p.note").last, page.locator("#wrong")
    condition = page.get_by_label("SQL condition")
    shows(note).to_be_visible()
    condition.fill("nosuch > 2")
    visit.button("Apply").click()
    shows(fault).to_contain_text("There is no column nosuch")
    shows(note).to_be_hidden()
    visit.button("Clear").click()
    shows(note).to_have_text("The queue is empty." if view == "messages" else "No deleted message can be rewound.")
    held: list[Any] = []
    page.route(f"**/{view}?*nosuch*", lambda route: held.append(route))
    with page.expect_request(re.compile("nosuch")):
        condition.fill("nosuch > 2")
        page.keyboard.press("Enter")
    shows(note).to_have_text("Searching…")
    held.pop().continue_()
    page.unroute(f"**/{view}?*nosuch*")
    shows(fault).to_contain_text("There is no column nosuch")
    page.reload()
    shows(fault).to_contain_text("There is no column nosuch")
    shows(note).to_be_hidden()


def test_a_purge_says_how_much_goes_and_wants_the_name(lake: LakeQueue, visit: Visit):
    queue = lake.create_queue("purged")
    queue.send_batch([SendEntry("a"), SendEntry("b"), SendEntry("c", delay=600)])
    page = visit.open("#/q/purged")
    visit.button("Purge…").click()
    dialog = page.get_by_role("dialog", name="Purge purged?")
    shows(dialog).to_contain_text("3 messages of purged (2 visible, 1 delayed) will be removed for good")
    confirm = dialog.get_by_role("button", name="Purge 3 messages")
    shows(confirm).to_be_disabled()
    typed = dialog.get_by_label("Type the name of the queue to continue")
    typed.fill("purge")
    shows(confirm).to_be_disabled()
    page.keyboard.press("Enter")
    assert queue.counts().visible == 2
    typed.fill("purged")
    confirm.click()
    shows(page.locator(".toast")).to_contain_text("purged is purged. A compaction frees its space")
    copies = page.locator(".toast").get_by_role("button", name="Copy")
    ink, paper = copies.evaluate(
        "(node) => [getComputedStyle(node).color, getComputedStyle(node).backgroundColor]"
    )
    assert paper == "rgba(0, 0, 0, 0)" and ink != page.locator(".toast").first.evaluate(
        "(node) => getComputedStyle(node).backgroundColor"
    ), "the button can be read"
    for _ in range(2):
        copies.click()
    shows(page.locator(".toast.copied")).to_have_count(1)
    shows(page.locator(".toast code")).to_have_text("lakequeue compact --now 0")
    shows(page.get_by_text("The queue is empty.")).to_be_visible()
    assert queue.counts().visible == queue.counts().delayed == 0


@pytest.mark.spec("RWD-9")
def test_a_rewind_says_what_comes_back(lake: LakeQueue, visit: Visit):
    queue = with_history(lake, "rewound", 3)
    page = visit.open("#/q/rewound/history")
    shows(page.locator("td.at-body")).to_have_text(["done 0", "done 1", "done 2"])
    shows(page.locator("p.note").first).to_contain_text("3 deleted messages can be made visible again")
    visit.button("Rewind…").click()
    dialog = page.get_by_role("dialog", name="Rewind rewound?")
    instant = dialog.get_by_label("Make deleted messages visible again")
    instant.fill("2001-01-01T00:00:00")
    shows(dialog.get_by_role("alert")).to_contain_text("for parameter to is invalid")
    shows(instant).to_have_attribute("aria-invalid", "true")
    visit.button("As far as possible").click()
    shows(dialog.locator(".what")).to_contain_text("3 deleted messages of rewound sent at ")
    shows(dialog.locator(".what")).to_contain_text("will be visible in rewound again")
    dialog.get_by_role("button", name="Rewind 3 messages").click()
    shows(page.locator(".toast")).to_have_text("3 messages of rewound visible again.")
    shows(page.get_by_text("No deleted message can be rewound.")).to_be_visible()
    assert queue.counts().visible == 3


@pytest.mark.spec("DLQ-8")
def test_a_redrive_says_how_much_goes_where(lake: LakeQueue, visit: Visit):
    for name in ("redriven-mails", "redriven-orders"):
        with_letters(lake, name, *(SendEntry(f"{name} {number}") for number in range(2)))
    page = visit.open("#/q/redriven-orders/dead-letters")
    page.get_by_role("link", name="redriven-letters", exact=True).click()
    shows(page.locator("td.at-body")).to_have_count(4)
    visit.button("Redrive…").click()
    dialog = page.get_by_role("dialog", name="Redrive redriven-letters?")
    what = dialog.locator(".what")
    shows(what).to_contain_text("4 messages of redriven-letters will be moved")
    shows(what).to_contain_text("2 messages to redriven-mails, 2 messages to redriven-orders")
    dialog.get_by_label("Only messages for which").fill("nonsense")
    visit.button("Count").click()
    shows(dialog.get_by_role("alert")).to_contain_text("There is no column nonsense")
    dialog.get_by_label("Only messages for which").fill("body LIKE '%orders 1'")
    visit.button("Count").click()
    shows(what).to_contain_text("1 message of redriven-letters will be moved to redriven-orders.")
    dialog.get_by_role("button", name="Move 1 message").click()
    shows(page.locator(".toast")).to_have_text("1 message of redriven-letters moved to redriven-orders.")
    shows(page.locator("td.at-body")).to_have_count(3)
    assert [message.body for message in lake.queue("redriven-orders").peek()] == ["redriven-orders 1"]
    page.get_by_role("link", name="Dead letters", exact=True).click()
    shows(page.locator(".plain a")).to_have_text(["redriven-mails", "redriven-orders"])


def test_everything_can_be_reached_by_keyboard(lake: LakeQueue, visit: Visit):
    lake.create_queue("keyboard").send("a")
    page = visit.open()
    shows(visit.row("keyboard")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("keyboard")
    shows(visit.row("")).to_have_count(1)
    for _ in range(6):  # past the button and the headers, to the first row
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    shows(page.locator("tr.message")).to_have_count(1)
    toggle = visit.button("Details of")
    toggle.focus()
    page.keyboard.press("Enter")
    shows(toggle).to_have_attribute("aria-expanded", "true")
    visit.button("Purge…").focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    shows(dialog).to_be_visible()
    assert dialog.evaluate("node => node.contains(document.activeElement)")
    page.keyboard.press("Escape")
    shows(dialog).to_have_count(0)
    shows(toggle).to_have_attribute("aria-expanded", "true")
    assert lake.queue("keyboard").counts().visible == 1


@pytest.mark.parametrize("width", [1280, 375])
def test_dark_and_light_wide_and_narrow(lake: LakeQueue, visiting: Visiting, tmp_path: Path, width: int):
    name = f"look-{width}-" + "long" * 15
    with_history(lake, name, 2).send_batch([SendEntry("word " * 200), SendEntry("w" * 500, group_id="g" * 100)])
    brightness = {}
    for scheme in ("dark", "light"):
        with visiting(color_scheme=scheme, viewport={"width": width, "height": 800}) as visit:
            for part in ("", "messages", "history", "dead-letters", "attributes"):
                page = visit.open(part and f"#/q/{name}/{part}")
                shows(page.locator("main tr:visible, main .card:visible").first).to_be_visible()
                if part in ("messages", "history"):
                    page.locator("tr.message").last.click()
                    choose(page.get_by_label("Choose all messages shown"))
                page.screenshot(path=tmp_path / f"{scheme}-{part or 'list'}.png")
                assert page.evaluate("document.documentElement.scrollWidth") <= width, part
            colours = page.evaluate(
                "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
            )
            brightness[scheme] = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours]
    (dark, dark_ink), (light, light_ink) = brightness["dark"], brightness["light"]
    assert dark < 200 < 500 < dark_ink and light_ink < 200 < 500 < light


def test_what_goes_wrong_is_one_line_and_ends_by_itself(lake: LakeQueue, visiting: Visiting):
    queue = lake.create_queue("wrong")
    with serving(lake) as server, visiting(server.url) as visit:
        page = visit.open("#/q/wrong")
        shows(page.get_by_text("The queue is empty.")).to_be_visible()
        lake.delete_queue("wrong")
        fault = page.locator("#fault")
        shows(page.get_by_role("alert")).to_contain_text("There is no queue named wrong.")
        shows(page.get_by_role("heading", name="wrong")).to_be_hidden()
        lake.create_queue("wrong")
        shows(page.get_by_role("alert")).to_have_count(0)
        shows(page.get_by_text("The queue is empty.")).to_be_visible()
        page.route("**/api/**", lambda route: route.abort())
        shows(fault).to_have_text("The server does not answer.")
        page.unroute("**/api/**")
        shows(fault).to_be_hidden()
    assert queue.created_at <= lake.queue("wrong").created_at - timedelta(0)


def test_while_the_server_is_away_nothing_can_be_done_and_the_page_says_how_old_it_is(
    lake: LakeQueue, visiting: Visiting
):
    lake.create_queue("away").send("a")
    with serving(lake) as server, visiting(server.url) as visit:
        page = visit.open("#/q/away")
        shows(visit.button("Purge…")).to_be_enabled()
        page.route("**/api/**", lambda route: route.abort())
        shows(visit.button("Purge…")).to_be_disabled()
        shows(page.locator(".tiles")).to_have_css("opacity", "0.45")
        shows(page.get_by_text(re.compile(r"^updated \d+ s ago$"))).to_be_visible()
        page.unroute("**/api/**")
        shows(visit.button("Purge…")).to_be_enabled()
        shows(page.locator("#age")).to_be_hidden()


def test_a_dead_letter_queue_says_what_it_is_and_comes_first(visiting: Visiting, tmp_path: Path):
    def fail(message: Message, context: Context) -> None:
        raise ValueError(f"no {message.body}")

    lake = LakeQueue(str(tmp_path / "root"))
    letters = lake.create_queue("z-letters")
    source = lake.create_queue("a-source", dead_letter_queue="z-letters", max_receive_count=1)
    source.send_batch([SendEntry("pen"), SendEntry("ink")])
    Consumer(source, fail, wait_time=0, make_failed_messages_visible_immediately=True).run(until_empty=True)
    assert source.receive() == [] and letters.counts().visible == 2
    with serving(lake) as server, visiting(server.url) as visit:
        page = visit.open()
        shows(page.locator("tbody tr").first).to_contain_text("z-letters2 dead letters")
        shows(page.locator(".summary")).to_have_text("2 queues · 0 visible · 2 dead letters · 0 in flight")
        concerns = page.get_by_role("region", name="What needs attention")
        concerns.get_by_role("link", name="2 ValueError").click()
        shows(page.locator("tr.message")).to_have_count(2)
        visit.open("#/q/z-letters/dead-letters")
        shows(page.get_by_text("This is a dead-letter queue: 2 dead letters by error")).to_be_visible()
        page.get_by_role("link", name="ValueError", exact=True).click()
        shows(page.locator("tr.message")).to_have_count(2)
        shows(page.locator("tr.message").first).to_contain_text("ValueError: no")
        visit.open("#/q/a-source")
        page.get_by_role("link", name="2 of its messages are in z-letters").click()
        shows(page.locator("h1")).to_have_text("z-letters")
        shows(page.locator("tr.message")).to_have_count(2)


def test_a_queue_says_into_which_table_it_delivers(visiting: Visiting, tmp_path: Path):
    lake, table = LakeQueue(str(tmp_path / "root")), f"s3://lake/{'silver/' * 9}orders"
    queue = lake.create_queue("delivering", table=table)
    with serving(lake) as server, visiting(server.url) as visit:
        visit.open("#/q/delivering")
        chip = visit.page.locator(".head .badge", has_text="delivers into")
        shows(chip).to_have_text(f"delivers into …{table[-47:]}")
        shows(chip).to_have_attribute("title", table)
        queue.set_attributes(table="silver.orders")
        shows(chip).to_have_text("delivers into silver.orders")


def test_the_dead_letters_of_one_error_are_redriven_without_a_condition(visiting: Visiting, tmp_path: Path):
    def fail(message: Message, context: Context) -> None:
        raise {"v": ValueError, "t": TimeoutError}[message.body](message.body)

    lake = LakeQueue(str(tmp_path / "root"))
    letters = lake.create_queue("letters")
    orders = lake.create_queue("orders", dead_letter_queue="letters", max_receive_count=1)
    orders.send_batch([SendEntry(body) for body in "vvt"])
    Consumer(orders, fail, wait_time=0, make_failed_messages_visible_immediately=True).run(until_empty=True)
    with serving(lake) as server, visiting(server.url) as visit:
        page = visit.open("#/q/letters/dead-letters")
        concerns = page.get_by_role("region", name="What needs attention")
        shows(concerns).to_contain_text("2 ValueError: v, 1 TimeoutError: t")
        visit.button("Redrive 2 of ValueError").click()
        dialog = page.get_by_role("dialog")
        kinds = dialog.get_by_label("Only error")
        shows(kinds.locator("option")).to_have_text(["all", "ValueError (2)", "TimeoutError (1)"])
        shows(dialog).to_contain_text("No consumer of orders is known to run.")
        shows(dialog).to_contain_text(
            "runs handlers of orders again: what a failed attempt has done happens twice"
        )
        dialog.get_by_role("button", name="Move 2 messages").click()
        shows(page.locator(".toast")).to_have_text("2 messages of letters moved to orders.")
        shows(page.locator(".toast").get_by_role("link", name="orders")).to_have_attribute("href", "#/q/orders")
        shows(concerns).not_to_contain_text("ValueError")
        assert [message.body for message in letters.peek()] == ["t"]
        report_idle(orders, "packer")
        visit.button("Redrive…").click()
        kinds.select_option("TimeoutError (1)")
        shows(dialog).to_contain_text(
            "Consumers of orders are running: if the cause is not fixed, the messages come"
        )
        dialog.get_by_role("button", name="Move 1 message").click()
        shows(concerns).to_be_hidden()
        assert letters.counts().visible == 0


def test_an_empty_root_says_how_to_begin(visiting: Visiting, tmp_path: Path):
    with serving(LakeQueue(str(tmp_path / "new"))) as server, visiting(server.url) as visit:
        page = visit.open()
        shows(page.get_by_text(f"lakequeue --root {tmp_path / 'new'} create orders")).to_be_visible()
        shows(page.get_by_text(server.url, exact=True)).to_be_visible()
        shows(page.get_by_role("heading", name="Nothing needs attention")).to_be_visible()
        shows(page.locator(".attention.calm code")).to_have_text("lakequeue check")


class Keys(NoAuthentication):
    """Knows one key."""

    def check_password(self, key_id: str, secret: str) -> Caller | None:
        return AnonymousCaller("Ada") if (key_id, secret) == ("AKIA1", "secret") else None


def test_a_server_with_keys_lets_in_who_has_one(lake: LakeQueue, visiting: Visiting):
    lake.create_queue("guarded")
    with serving(lake, access=Keys()) as server, visiting(server.url) as visit:
        page = visit.open("#/q/guarded")
        shows(page.get_by_role("heading", name="Sign in")).to_be_visible()
        page.get_by_label("Access key id").fill("AKIA1")
        page.get_by_label("Secret").fill("guessed")
        visit.button("Sign in").click()
        shows(page.get_by_role("alert").last).to_have_text("The server does not know this key.")
        page.get_by_label("Secret").fill("secret")
        visit.button("Sign in").click()
        shows(page.get_by_role("heading", name="guarded")).to_be_visible()
        shows(page.locator("#about")).to_have_text(f"{lake.root}localAdalakequeue {__version__}")
        visit.button("Send…").click()
        page.get_by_label("Body", exact=True).fill("a")
        page.get_by_role("button", name="Send", exact=True).click()
        shows(page.locator("td.at-body")).to_have_text("a")
        page.reload()
        shows(page.locator("td.at-body")).to_have_text("a")
        visit.button("Sign out").click()
        shows(page.get_by_role("heading", name="Sign in")).to_be_visible()
        shows(page.get_by_text("guarded")).to_have_count(0)
        assert page.evaluate("sessionStorage.length") == 0


def test_a_key_of_some_queues_opens_them_by_name_and_signs_out(lake: LakeQueue, visiting: Visiting):
    for name in "orders", "secret":
        lake.create_queue(name).send("a")
        lake.queue(name).receive(consumer="packer", visibility_timeout=3_600)
        lake.schedules.add(f"kept-{name}", name, "report", cron="0 2 * * *")
    rule = file_keys.AccessRule(("orders",), frozenset({"GetQueueAttributes", "ReceiveMessage"}))
    keys = file_keys.Keys({"viewer": file_keys.Key("viewer", "0123456789abcdef", (rule,))})
    with serving(lake, access=keys) as server, visiting(server.url) as visit:
        page = visit.open()
        page.get_by_label("Access key id").fill("viewer")
        page.get_by_label("Secret").fill("0123456789abcdef")
        visit.button("Sign in").click()
        shows(page.get_by_text("This key may not list queues.")).to_be_visible()
        shows(page.locator("#about")).to_have_text("viewer")
        for absent in "#fault", ".attention", "#search":
            shows(page.locator(absent)).to_be_hidden()
        assert not page.evaluate("document.body.classList.contains('away')")
        page.get_by_label("Name of the queue").fill("orders")
        page.keyboard.press("Enter")
        shows(page.locator("td.at-body")).to_have_text("a")
        shows(page.locator("#about")).to_contain_text("viewer")
        for name in "Schedules", "Workers":
            page.get_by_role("link", name=name).click()
            shows(page.get_by_role("heading", name=name)).to_be_visible()
            shows(page.get_by_text(f"{name.lower()} of other queues are hidden")).to_be_visible()
            shows(page.get_by_role("row").nth(1)).to_contain_text("orders")
            shows(page.get_by_role("row")).to_have_count(2)
            shows(page.locator("#fault")).to_be_hidden()
        page.get_by_role("link", name="Queues").click()
        shows(page.get_by_label("Name of the queue")).to_be_visible()
        visit.button("Sign out").click()
        shows(page.get_by_role("heading", name="Sign in")).to_be_visible()
    for name in "orders", "secret":
        lake.schedules.remove(f"kept-{name}")
        lake.delete_queue(name)


def test_the_address_of_the_server_leads_to_the_console_which_shows_the_root(lake: LakeQueue, visit: Visit):
    page = visit.page
    page.goto(visit.address)
    shows(page.get_by_role("heading", name="Queues")).to_be_visible()
    assert page.url == f"{visit.address}/console/"
    shows(page.locator("#about")).to_contain_text(lake.root)


def test_a_queue_is_created_changed_and_deleted(lake: LakeQueue, visit: Visit):
    lake.create_queue("made-letters")
    page = visit.open()
    visit.button("Create queue…").click()
    dialog = page.get_by_role("dialog", name="Create a queue")
    name = dialog.get_by_label("Name", exact=True)
    name.fill("made orders")
    page.keyboard.press("Enter")
    shows(dialog.get_by_role("alert")).to_contain_text("Can only include alphanumeric characters")
    shows(name).to_have_attribute("aria-invalid", "true")
    assert name.evaluate("node => node === document.activeElement")
    name.fill("made-orders")
    dialog.get_by_label("FIFO").check()
    shows(name).to_have_value("made-orders.fifo")
    dialog.get_by_label("FIFO").uncheck()
    dialog.get_by_label("Visibility timeout").fill("43201")
    page.keyboard.press("Enter")
    shows(dialog.get_by_label("Visibility timeout")).to_have_attribute("aria-invalid", "true")
    shows(name).not_to_have_attribute("aria-invalid", "true")
    shows(dialog.get_by_role("alert")).to_contain_text("0 to 43,200")
    dialog.get_by_label("Visibility timeout").fill("1m")
    shows(dialog.locator("#known-queues option[value=made-letters]")).to_have_count(0)
    dialog.get_by_label("Dead-letter queue").focus()
    shows(dialog.locator("#known-queues option[value=made-letters]")).to_have_count(1)
    dialog.get_by_label("Dead-letter queue").fill("made-letters")
    dialog.get_by_role("button", name="Create", exact=True).click()
    shows(page.get_by_role("heading", name="made-orders")).to_be_visible()
    queue = lake.queue("made-orders")
    assert queue.attributes()["visibility_timeout"] == 60 and queue.attributes()["profile"] == "lake"
    page.get_by_role("link", name="Attributes").click()
    shows(page.locator(".shards tbody tr")).to_have_text("00000020")
    visit.button("Change attributes…").click()
    dialog = page.get_by_role("dialog", name="Change made-orders")
    shows(dialog.get_by_label("Visibility timeout")).to_have_value("1m")
    dialog.get_by_label("Rewind range").fill("3600")
    dialog.get_by_label("Dead-letter queue").fill("")
    dialog.get_by_role("button", name="Change", exact=True).click()
    shows(page.locator(".toast").last).to_have_text("2 attributes of made-orders changed.")
    changed = lake.queue("made-orders")
    assert changed.attributes()["rewind_range"] == 3600 and changed.dead_letter_queue is None
    for typed, told, shown in (
        ("team=post\n\nkept=a=b", "2 tags of made-orders set, 0 removed.", "post"),
        ("kept=a=b\nstage=new", "1 tag of made-orders set, 1 removed.", "new"),
    ):
        visit.button("Change tags…").click()
        dialog = page.get_by_role("dialog", name="Change the tags of made-orders")
        dialog.get_by_label("Tags").fill(typed)
        dialog.get_by_role("button", name="Change", exact=True).click()
        shows(page.locator(".toast").last).to_have_text(told)
        shows(page.get_by_role("cell", name=shown, exact=True)).to_be_visible()
    assert lake.queue("made-orders").tags() == {"kept": "a=b", "stage": "new"}
    visit.button("Delete…").click()
    dialog = page.get_by_role("dialog", name="Delete the queue made-orders?")
    confirm = dialog.get_by_role("button", name="Delete queue")
    shows(dialog).to_contain_text("0 messages of made-orders will be gone for good")
    shows(confirm).to_be_disabled()
    dialog.get_by_label("Type the name").fill("made-orders")
    confirm.click()
    shows(page.get_by_role("heading", name="Queues")).to_be_visible()
    shows(visit.row("made-letters")).to_be_visible()
    shows(visit.row("made-orders")).to_have_count(0)


def test_messages_are_chosen_and_deleted_made_visible_and_copied(lake: LakeQueue, visiting: Visiting):
    queue = lake.create_queue("chosen")
    entries = [SendEntry("in flight"), *(SendEntry(body) for body in "ab"), SendEntry('{"c": 1}', delay=600)]
    queue.send_batch(entries)
    [taken] = queue.receive(1, visibility_timeout=600)
    with visiting(permissions=["clipboard-read", "clipboard-write"]) as visit:
        page = visit.open("#/q/chosen")
        bodies = page.locator("td.at-body")
        shows(bodies).to_have_count(4)
        bar = page.get_by_role("group", name="Chosen messages")
        shows(bar).to_be_hidden()
        every = page.get_by_label("Choose all messages shown")
        every.focus()
        page.keyboard.press("Space")
        shows(bar).to_contain_text("4 messages chosen")
        shows(bar.get_by_role("button", name="Redrive…")).to_be_hidden()
        bar.get_by_role("button", name="Copy body").click()
        shows(page.locator(".toast")).to_have_text("Body of 4 messages copied.")
        assert page.evaluate("navigator.clipboard.readText()") == 'in flight\na\nb\n{"c": 1}'
        bar.get_by_role("button", name="Delete…").click()
        dialog = page.get_by_role("dialog", name="Delete 4 messages of chosen?")
        shows(dialog).to_contain_text("2 visible messages will be deleted for good")
        shows(dialog).to_contain_text("2 other messages will stay")
        dialog.get_by_role("button", name="Delete 2 messages").click()
        told = "2 messages deleted; 1 stays in flight; 1 stays delayed."
        shows(page.locator(".toast", has_text="deleted")).to_have_text(told)
        shows(bodies).to_have_text(["in flight", '{"c": 1}'])
        shows(bar).to_be_hidden()
        choose(every)
        bar.get_by_role("button", name="Make visible…").click()
        dialog = page.get_by_role("dialog")
        shows(dialog).to_contain_text("1 delayed message will be visible at once")
        dialog.get_by_role("button", name="Make visible").click()
        told = "1 message made visible; 1 stays in flight."
        shows(page.locator(".toast", has_text="visible")).to_have_text(told)
        shows(visit.row("in flight").locator(".state")).to_have_text("in flight")
        choose(visit.row("in flight").get_by_role("checkbox"))
        bar.get_by_role("button", name="Copy JSON").click()
        shows(page.locator(".toast", has_text="JSON of 1 message copied.")).to_be_visible()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert '"body": "in flight"' in copied and taken.message_id in copied
        bar.get_by_role("button", name="Make visible…").click()
        shows(dialog).to_contain_text("1 message in flight will be visible at once")
        shows(dialog.get_by_role("checkbox")).to_have_count(0)
        dialog.get_by_role("button", name="Make visible").click()
        shows(visit.row("in flight").locator(".state")).to_have_text("visible")
    assert queue.counts().visible == 2 and queue.counts().in_flight == 0


def test_chosen_dead_letters_go_back(lake: LakeQueue, visit: Visit):
    with_letters(lake, "picked-orders", SendEntry("letter 1"), SendEntry("letter 2"))
    page = visit.open("#/q/picked-letters")
    choose(visit.row("letter 2").get_by_role("checkbox"))
    bar = page.get_by_role("group", name="Chosen messages")
    bar.get_by_role("button", name="Redrive…").click()
    dialog = page.get_by_role("dialog", name="Redrive 1 message of picked-letters?")
    shows(dialog).to_contain_text("1 visible dead letter will go back to picked-orders")
    dialog.get_by_role("button", name="Move 1 message").click()
    shows(page.locator(".toast")).to_have_text("1 message of picked-letters moved to picked-orders.")
    shows(page.locator("td.at-body")).to_have_text(["letter 1"])
    assert [message.body for message in lake.queue("picked-orders").peek()] == ["letter 2"]


def test_a_dead_letter_is_edited_and_sent_again(lake: LakeQueue, visit: Visit):
    body = "\npen, " + "x" * 1_000
    attributes = {"n": ("Number.int", "1"), "raw": ("Binary", b"\0\xff")}
    entries = SendEntry(body, attributes=attributes, group_id="a'b"), SendEntry("other")
    source, letters = with_letters(lake, "edited-orders", *entries), lake.queue("edited-letters")
    page = visit.open("#/q/edited-letters")
    choose(page.get_by_label("Choose all messages shown"))
    bar = page.get_by_role("group", name="Chosen messages")
    edit = bar.get_by_role("button", name="Edit and resend…")
    shows(bar.get_by_role("button", name="Redrive…")).to_be_visible()
    shows(edit).to_be_hidden()
    visit.row("other").get_by_role("checkbox").uncheck()
    edit.click()
    dialog = page.get_by_role("dialog", name="Edit and resend to edited-orders")
    field = dialog.get_by_label("Body", exact=True)
    shows(field).to_have_value(body)
    field.fill(body.replace("pen", "ink"))
    dialog.get_by_role("button", name="Send", exact=True).click()
    shows(page.locator(".toast")).to_contain_text("to edited-orders, and deleted from edited-letters.")
    shows(page.locator("td.at-body")).to_have_text(["other"])
    [message] = source.receive()
    assert (message.body, message.group_id, message.receive_count) == (body.replace("pen", "ink"), "a'b", 1)
    assert message.message_attributes == attributes and letters.counts().visible == 1


def test_nothing_can_be_chosen_before_there_is_a_message(lake: LakeQueue, visit: Visit):
    """A click on an enabled box would choose nothing, and look as if it was lost."""
    lake.create_queue("slow-letters").send("a")
    visit.page.route("**/messages", lambda route: route.abort())
    every = visit.open("#/q/slow-letters").get_by_label("Choose all messages shown")
    shows(visit.page.get_by_role("alert").first).to_be_visible()
    shows(every).to_be_disabled()
    visit.page.unroute("**/messages")
    choose(every)
    shows(visit.page.get_by_role("group", name="Chosen messages")).to_contain_text("1 message chosen")


def test_a_resend_says_that_the_dead_letter_stays_if_its_delete_fails(lake: LakeQueue, visit: Visit):
    source = with_letters(lake, "kept-orders", SendEntry("pen"))
    page = visit.open("#/q/kept-letters")
    choose(page.get_by_label("Choose all messages shown"))
    visit.button("Edit and resend…").click()
    page.route("**/messages/delete", lambda route: route.abort())
    page.get_by_role("dialog").get_by_role("button", name="Send", exact=True).click()
    told = "the dead letter stays in kept-letters: The server does not answer."
    shows(page.locator(".toast")).to_contain_text(told)
    assert source.counts().visible == lake.queue("kept-letters").counts().visible == 1


def test_a_narrow_page_shows_messages_first_and_each_tab_has_the_chart(lake: LakeQueue, visiting: Visiting):
    lake.create_queue("narrow", visibility_timeout=300).send("a")
    with visiting(viewport={"width": 390, "height": 800}) as visit:
        page = visit.open("#/q/narrow")
        shows(page.locator("td.at-body")).to_be_visible()
        heights = [page.locator(part).bounding_box()["y"] for part in ("td.at-body", ".depths")]
        assert heights[0] < 500 < heights[1] + 200 and heights == sorted(heights)
        shows(page.get_by_label("SQL condition")).to_be_hidden()
        page.get_by_text("Filters", exact=True).click()
        shows(page.get_by_label("SQL condition")).to_be_visible()
        page.get_by_role("link", name="Attributes").click()
        row = page.locator("tr", has_text="VisibilityTimeout")
        shows(row).to_have_text("VisibilityTimeout300 s (5m)")
        row = page.locator("tr", has_text="MaximumMessageSize")
        shows(row).to_have_text("MaximumMessageSize1,048,576 bytes (1 MiB)")
        shows(page.locator(".chart .line.visible")).to_have_attribute("d", re.compile("L"))


def test_what_a_finger_touches_is_32_pixels_high(lake: LakeQueue, visiting: Visiting):
    with_letters(lake, "finger-orders", SendEntry("a"))
    lake.queue("finger-orders").pause("the bank is down")
    with visiting(viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True) as visit:
        for place in "#/?text=finger-", "#/q/finger-letters/dead-letters", "#/q/finger-orders":
            page = visit.open(place)
            shows(page.locator(".attention .lines li").first).to_be_visible()
            shows(page.locator(".queues tr, .tabs").last).to_be_visible()
            heights = page.locator("button, summary, .tabs a, #pages a, .named a, .lines p a").evaluate_all(
                "found => found.map(each => [each.textContent, each.getBoundingClientRect().height])"
            )
            assert [each for each in heights if 0 < each[1] < 32] == [] and len(heights) > 10, place


def test_the_first_page_says_that_it_loads(lake: LakeQueue, visit: Visit):
    page = visit.page

    def late(route: Any) -> None:
        shows(page.locator("main .empty")).to_have_text("Loading…")
        route.continue_()

    page.route("**/api/queues?**", late)
    visit.open("#/?text=no-such-queue")
    shows(page.locator("main .empty")).to_contain_text("No queue has")


def test_only_what_can_have_an_effect_is_offered(lake: LakeQueue, visit: Visit):
    lake.create_queue("plain").send("a")
    page = visit.open("#/q/plain")
    shows(visit.button("Send…")).to_be_visible()
    shows(visit.button("Purge…")).to_be_enabled()
    for label in "Redrive…", "Rewind…":
        shows(visit.button(label)).to_be_hidden()
    lake.queue("plain").purge()
    shows(visit.button("Purge…")).to_be_disabled()
    page.get_by_role("link", name="Dead letters").click()
    shows(page.get_by_text("This is not the dead-letter queue of any queue")).to_be_visible()
    shows(visit.button("Count what a redrive would move")).to_be_hidden()


class Readers(NoAuthentication):
    """Knows one key, which may only look."""

    def check_password(self, key_id: str, secret: str) -> Caller | None:
        return Reader()


@attrs.frozen
class Reader(AnonymousCaller):
    def may(self, action: str, queue: str | None) -> bool:
        return action in ("ListQueues", "GetQueueAttributes", "ReceiveMessage")

    def may_on_any_queue(self, action: str) -> bool:
        return self.may(action, None)


def test_a_key_that_may_only_look_sees_no_action(lake: LakeQueue, visiting: Visiting):
    with_history(lake, "looked-at", 1).send_batch([SendEntry("a"), SendEntry("b", delay=600)])
    with serving(lake, access=Readers()) as server, visiting(server.url) as visit:
        page = visit.open()
        shows(visit.row("looked-at")).to_be_visible()
        shows(visit.button("Create queue…")).to_be_hidden()
        page.get_by_role("link", name="looked-at").click()
        shows(page.locator("td.at-body")).not_to_have_count(0)  # until then there is none to choose
        choose(page.get_by_label("Choose all messages shown"))
        buttons = page.get_by_role("button", name="…")
        shows(page.get_by_role("button", name="Copy body")).to_be_visible()
        assert [text for text in buttons.all_inner_texts() if text.endswith("…")] == []
        page.get_by_role("link", name="Attributes").click()
        shows(page.get_by_role("cell", name="lake", exact=True)).to_be_visible()
        assert [text for text in buttons.all_inner_texts() if text.endswith("…")] == []


def test_priorities_rates_and_unique_sends_are_offered(lake: LakeQueue, visit: Visit):
    page = visit.open()
    visit.button("Create queue…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="Name", exact=True).fill("offered")
    dialog.get_by_text("Shards, priorities, rates, unique sends").click()
    for label, value in (("Shards", "2"), ("Rate limit", "50/s"), ("Unique within", "5m")):
        dialog.get_by_label(label).fill(value)
    visit.button("Create").last.click()
    visit.button("Send…").click()
    dialog.get_by_label("Body", exact=True).fill("a")
    dialog.get_by_label("Deduplication id").fill("once")
    shows(dialog.get_by_label("Priority")).to_have_count(0)
    dialog.get_by_role("button", name="Send", exact=True).click()
    shows(page.locator("td.at-body")).to_have_text("a")
    queue = lake.queue("offered")
    [message] = queue.peek()
    assert message.dedup_id == "once"
    attributes = queue.attributes()
    assert [attributes[name] for name in ("shards", "rate_limit", "deduplication_interval")] == [2, "50/s", 300]
    visit.open("#/q/offered/attributes")
    visit.button("Change attributes…").click()
    dialog.get_by_text("Shards, priorities, rates, unique sends").click()
    shows(dialog.get_by_label("Priorities")).to_have_count(0)
    dialog.get_by_label("Rate limit").fill("")
    dialog.get_by_role("button", name="Change", exact=True).click()
    shows(page.locator(".toast").last).to_have_text("1 attribute of offered changed.")
    assert queue.attributes()["rate_limit"] is None
    lake.create_queue("offered-urgent", priorities=3)
    visit.open("#/q/offered-urgent")
    visit.button("Send…").click()
    dialog.get_by_label("Body", exact=True).fill("b")
    dialog.get_by_label("Priority").fill("2")
    shows(dialog.get_by_label("Deduplication id")).to_have_count(0)
    dialog.get_by_role("button", name="Send", exact=True).click()
    shows(page.locator("td.at-body")).to_have_text("b")
    assert lake.queue("offered-urgent").peek()[0].priority == 2


def test_schedules_and_workers_of_all_queues_have_pages(lake: LakeQueue, visit: Visit):
    for name in "planned-orders", "planned-mails":
        lake.create_queue(name)
    lake.queue("planned-orders").send("a")
    lake.queue("planned-orders").receive(visibility_timeout=600, consumer="host:7")
    lake.schedules.add("nightly", "planned-mails", "report", cron="0 2 * * *", tz="Europe/Berlin")
    page = visit.open("#/schedules")
    row = visit.row("nightly")
    shows(row).to_contain_text("0 2 * * * Europe/Berlin")
    visit.button("Send the message of nightly now").click()
    shows(page.locator(".toast").last).to_have_text("The message of nightly is sent.")
    assert [message.body for message in lake.queue("planned-mails").peek()] == ["report"]
    visit.button("Pause nightly").click()
    shows(row.locator(".badge")).to_have_text("paused")
    assert lake.schedules.list()[0].paused
    visit.button("Resume nightly").click()
    shows(row).to_contain_text("waits")
    page.get_by_role("link", name="Workers").click()
    shows(visit.row("host:7")).to_contain_text("planned-orders")
    lake.schedules.remove("nightly")


@pytest.mark.spec("JOB-7")
def test_a_schedule_that_fails_is_overdue_and_needs_attention(lake: LakeQueue, visit: Visit):
    lake.create_queue("failing-mails")
    lake.schedules.add("failing", "failing-mails", "x", at=lake.clock.now() - timedelta(minutes=6))
    lake.delete_queue("failing-mails")
    lake.schedules.run_due()
    row = visit.open("#/schedules").locator("tr", has_text="failing-mails")
    shows(row).to_contain_text("overdue, due 6m")
    shows(row).to_contain_text("does not exist")
    fault = row.locator("button.trouble")
    fault.click()
    shows(fault).to_have_attribute("aria-expanded", "true")
    shows(fault.locator(".clamped")).to_have_css("-webkit-line-clamp", "3")
    shows(fault.locator(".clamped")).to_have_css("display", "block")
    for width in 1280, 390:
        page = visit.open("#/schedules")
        page.set_viewport_size({"width": width, "height": 800})
        shows(row.locator("button.trouble")).to_be_visible()
        shows(row.get_by_role("link", name="failing-mails")).to_have_count(0)
        for button in row.get_by_role("button").all():
            box = button.bounding_box()
            assert box is not None and box["x"] + box["width"] < width, "no button is cut"
    reason = row.locator("button.trouble .clamped")
    assert reason.evaluate("each => each.scrollHeight <= each.clientHeight"), "the reason is whole"
    page.set_viewport_size({"width": 1280, "height": 800})
    page = visit.open()
    line = page.locator(".attention .lines > li", has_text="schedule failing fails")
    shows(line.locator(".named-queue")).to_have_text("Schedules")
    line.get_by_text("Commands").click()
    shows(line).to_contain_text("lakequeue schedule pause failing")
    page.get_by_role("link", name="schedule failing fails").click()
    shows(page.get_by_role("heading", name="Schedules")).to_be_visible()
    lake.schedules.remove("failing")


def test_a_deletion_counts_what_a_rewind_could_restore(lake: LakeQueue, visit: Visit):
    with_history(lake, "deleted-history", 2).send_batch([SendEntry("a"), SendEntry("b"), SendEntry("c")])
    page = visit.open("#/q/deleted-history/attributes")
    visit.button("Delete…").click()
    dialog = page.get_by_role("dialog", name="Delete the queue deleted-history?")
    told = "3 messages of deleted-history will be gone for good, with its attributes, tags and history. "
    shows(dialog).to_contain_text(told + "A rewind can no longer bring back the 2 deleted messages, either.")


def report_idle(
    queue: Queue,
    name: str,
    number: int = 4711,
    running: int = 0,
    ago: timedelta = timedelta(0),
    host: str = "worker-1",
) -> None:
    """Reports a consumer as its process does each minute."""
    now = queue.clock.now() - ago
    oldest = now - timedelta(minutes=5) if running else None
    process = ConsumerProcess(host, number, now, now, running, oldest)
    report_consumer(queue, str(number), ConsumerFile(name, [queue.key], process))


@pytest.mark.spec("JOB-14")
def test_idle_and_killed_consumers_are_listed_with_process_handlers_and_age(lake: LakeQueue, visit: Visit):
    queue = lake.create_queue("worked")
    for number, running in (4711, 0), (4712, 2):
        report_idle(queue, "packer", number, running)
    page = visit.open("#/q/worked/consumers")
    row = visit.row("packer")
    for text in "4711 on worker-1", "4712 on worker-1", "idle", "2, the oldest for 5m when seen":
        shows(row).to_contain_text(text)
    shows(row.locator("time.ago")).to_have_count(2)
    report_idle(queue, "killed", 4713, ago=timedelta(minutes=4))
    shows(visit.row("killed").locator(".badge.warn")).to_have_text(re.compile(r"^not seen since \d\d:\d\d$"))
    shows(visit.row("killed")).to_contain_text("4713 on worker-1")
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    report_idle(queue, "gone", child.pid, host=socket.gethostname())
    shows(visit.row("gone").locator(".badge.warn")).to_have_text(re.compile(r"^killed, last seen \d\d:\d\d$"))
    page.get_by_role("link", name="Workers").click()
    shows(visit.row("packer")).to_contain_text("worked")
    shows(visit.row("4713 on worker-1").locator(".badge.warn")).to_be_visible()
    visit.open("#/?text=worked")
    shows(visit.row("worked").locator(".at-consumers")).to_have_text("1")


def test_a_redrive_takes_the_filters_of_the_list(lake: LakeQueue, visit: Visit):
    with_letters(lake, "filtered-orders", *(SendEntry(f"{body} 1") for body in ("card", "card", "cash")))
    page = visit.open("#/q/filtered-letters?text=card&where=receive_count%20%3D%201")
    shows(page.locator("td.at-body")).to_have_count(2)
    visit.button("Redrive…").click()
    dialog = page.get_by_role("dialog")
    shows(dialog.get_by_label("with this text")).to_have_value("card")
    shows(dialog.get_by_label("Only messages for which")).to_have_value("receive_count = 1")
    shows(dialog.get_by_label("Only error")).to_be_focused()
    visit.button("Move 2 messages").click()
    shows(page.locator(".toast")).to_have_text("2 messages of filtered-letters moved to filtered-orders.")
    assert [message.body for message in lake.queue("filtered-letters").peek()] == ["cash 1"]


def test_a_queue_is_paused_and_resumed_and_the_list_says_what_needs_attention(lake: LakeQueue, visit: Visit):
    lake.create_queue("attended").send("a", group_id="acme")
    visit.page.clock.install()
    page = visit.open("#/q/attended")
    visit.button("Pause…").click()
    dialog = page.get_by_role("dialog", name="Pause attended?")
    dialog.get_by_label("Reason").fill("the bank is down")
    dialog.get_by_role("button", name="Pause").click()
    shows(page.locator(".badge.paused")).to_have_text(re.compile(r"^paused \d+s ago: the bank is down$"))
    standard = page.locator(".badge", has_text="standard").bounding_box()
    assert standard is not None and standard["height"] < 20, "a badge is no higher than its line"
    shows(visit.button("Pause…")).to_be_hidden()
    shows(page.locator(".tools button.first")).to_have_text("Resume")
    assert lake.queue("attended").receive() == []
    visit.open("#/?text=attended")
    concerns = page.get_by_role("region", name="What needs attention")
    paused = concerns.locator(".lines > li", has_text=re.compile(r"attended: paused \d+s ago: the bank is down"))
    shows(paused).to_have_count(1)
    ages = page.locator(".lines > li, tbody tr", has_text="attended").locator("time.ago")
    shows(ages.nth(1)).to_be_visible()  # else the list that is on its way takes five minutes, too long
    page.clock.fast_forward(300_000)
    for number in range(2):  # no two durations contradict each other
        shows(ages.nth(number)).to_have_text(re.compile(r"^5m(\d+s)? ago$"))
    paused = concerns.locator(".lines > li", has_text="attended: paused")
    shows(paused.get_by_role("listitem").first).to_be_hidden()
    paused.get_by_text("Commands").click()
    shows(paused.get_by_role("listitem").first).to_contain_text("attended has been paused since")
    visit.button("Resume attended").click()
    shows(page.locator(".toast").last).to_have_text(
        "attended is resumed: 1 message can be received, and no consumer of it is known to run: start one."
    )
    shows(page.locator(".badge.paused")).to_have_count(0)
    assert [message.body for message in lake.queue("attended").receive()] == ["a"]
    visit.open("#/q/attended/consumers")
    shows(page.get_by_role("cell", name="without a name")).to_be_visible()
    shows(page.locator("time.ago").first).to_have_text(re.compile(r"^5m(\d+s)? ago$"))


def test_what_needs_attention_has_its_cure_next_to_it(lake: LakeQueue, visiting: Visiting):
    with_letters(lake, "cured-orders", SendEntry("a"))
    lake.create_queue("cured").send("b", group_id="a&b")
    lake.queue("cured").pause("late", "a&b")
    with visiting(permissions=["clipboard-read", "clipboard-write"]) as visit:
        page = visit.open("#/?text=cured")
        concerns = page.get_by_role("region", name="What needs attention")
        paused = concerns.locator(".lines > li", has_text="cured: group a&b paused")
        paused.get_by_text("Commands").click()
        shows(paused.locator("code")).to_have_text("lakequeue resume cured --group 'a&b'")
        paused.get_by_role("button", name="Copy").click()
        shows(page.locator(".toast")).to_contain_text("Copied: lakequeue --root")
        whole = f"lakequeue --root {lake.root} resume cured --group 'a&b'"
        assert page.evaluate("navigator.clipboard.readText()") == whole
        paused.get_by_role("button", name="Resume a&b").click()
        shows(paused).to_have_count(0)
        letters = concerns.locator(".lines > li", has_text="cured-letters: 1 dead letter")
        shows(letters.locator("code")).to_have_text(
            ["lakequeue peek cured-letters", "lakequeue redrive cured-letters"]
        )
        letters.get_by_role("button", name="Redrive…").click()
        page.get_by_role("dialog").get_by_role("button", name="Move 1 message").click()
        shows(page.locator(".toast", has_text="moved")).to_have_text(
            "1 message of cured-letters moved to cured-orders."
        )
        shows(page.locator(".toast a")).to_have_css("text-decoration-line", "underline")
    assert lake.queue("cured").receive()[0].body == "b"


def test_more_than_eight_queues_need_attention_if_the_user_asks_for_them(lake: LakeQueue, visit: Visit):
    for number in range(9):
        lake.create_queue(f"more-{number}").pause("late")
    visit.page.route("**/attention.js", lambda route: route.continue_())
    page = visit.open("#/?text=more-")
    lines = page.locator(".attention .lines > li")
    shows(lines).to_have_count(8)
    page.locator(".attention").get_by_role("button", name=re.compile(r"^Show all \d+ queues$")).click()
    shows(lines.filter(has_text=re.compile(r"^more-\d: paused"))).to_have_count(9)
    shows(page.get_by_role("button", name="Show all")).to_have_count(0)
    for number in range(9):
        lake.queue(f"more-{number}").resume()


def test_what_needs_attention_changes_under_no_press_and_takes_no_focus(lake: LakeQueue, visit: Visit):
    for name in "pressed", "left":
        lake.create_queue(name).send("a")
        lake.queue(name).pause("late")
    page, asked, first = visit.page, list[Any](), dict[str, Any]()

    def changed(route: Route) -> None:
        asked.append(route)
        told = route.fetch().json()
        of_queue = {each["queue"]: each for each in told["concerns"] if each["queue"] in ("pressed", "left")}
        if "pressed" in of_queue:
            of_queue["pressed"]["text"] += f" {len(asked)}"
        of_queue["left"] = first.setdefault("left", of_queue["left"])  # its age would change
        route.fulfill(json=told | {"concerns": [*of_queue.values()]})

    def refresh() -> None:
        with page.expect_response("**/api/queues?**"):  # which is asked for after what needs attention is drawn
            page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    page.route("**/api/attention*", changed)
    visit.open("#/?text=pressed")
    pressed, left = (
        page.locator(".attention .lines > li", has_text=f"{name}: paused") for name in ("pressed", "left")
    )
    left.locator("summary").focus()
    text = pressed.locator("details li").first.text_content()
    refresh()
    shows(pressed.locator("details li").first).not_to_have_text(text)
    shows(left.locator("summary")).to_be_focused()
    pressed.get_by_role("button", name="Resume").hover()
    page.mouse.down()
    refresh()
    page.mouse.up()
    shows(pressed).to_have_count(0)
    assert lake.queue("pressed").receive()[0].body == "a"
    lake.queue("left").resume()


def test_the_error_of_a_damaged_queue_says_how_to_repair_it(lake: LakeQueue, visit: Visit):
    queue = LakeQueue(lake.root).create_queue("torn")
    queue.send("a")
    queue.send("b")
    live(Path(messages_of(queue)))[1].unlink()
    page = visit.open("#/q/torn")
    concerns = page.get_by_role("region", name="What needs attention")
    copying = f"cp -a {lake.root}/q/{queue._runtime.key} COPY"
    shows(concerns.locator("code")).to_have_text(["lakequeue check torn", copying, "lakequeue repair torn"])
    shows(page.locator(".rates")).to_be_empty()
    shows(page.locator(".queue > .trouble")).to_have_text(
        "Not shown until the damage above is repaired: messages, chart. Runbook"
    )
    shows(page.locator(".tiles dd").first).to_have_text("2")
    shows(page.locator(".chart").first).to_be_hidden()
    shows(page.locator("table.messages")).to_be_hidden()
    shows(visit.button("Next page")).to_be_hidden()
    shows(visit.button("Send…")).to_be_enabled()


@pytest.mark.parametrize(
    ("prefix", "place"),
    [
        (None, ""),
        ("lakequeue --root /srv/lakequeue", ""),
        ("docker compose exec server lakequeue", "docker compose exec server "),
        ("runuser -u lakequeue -- /opt/lakequeue/bin/lakequeue --root /srv/queues", "runuser -u lakequeue -- "),
    ],
)
def test_a_copy_of_damaged_tables_is_made_where_the_commands_run(
    lake: LakeQueue, visiting: Visiting, prefix: str | None, place: str
):
    queue = LakeQueue(lake.root).create_queue("torn-there")
    queue.send("a")
    live(Path(messages_of(queue)))[0].unlink()
    allowed = ["clipboard-read", "clipboard-write"]
    with serving(lake, command_prefix=prefix) as server, visiting(server.url, permissions=allowed) as visit:
        page = visit.open("#/q/torn-there")
        copying = page.get_by_role("region", name="What needs attention").locator("li", has_text="cp -a").last
        copying.get_by_role("button", name="Copy").click()
        whole = f"{place}cp -a {lake.root}/q/{queue._runtime.key} COPY"
        shows(page.locator(".toast")).to_contain_text(f"Copied: {whole}")
        assert page.evaluate("navigator.clipboard.readText()") == whole
    lake.delete_queue("torn-there")


def test_the_page_of_a_queue_that_cannot_be_read_is_what_helps(lake: LakeQueue, visiting: Visiting):
    queue = LakeQueue(lake.root).create_queue("torn-whole")
    queue.send("a")
    log = Path(messages_of(queue)).parent / "receipts" / "_delta_log"
    max(log.glob("*.json")).write_text("{")
    with visiting(permissions=["clipboard-read", "clipboard-write"]) as visit:
        page = visit.open("#/q/torn-whole")
        shows(page.get_by_role("heading", name="torn-whole")).to_be_visible()
        concerns = page.get_by_role("region", name="What needs attention")
        shows(concerns.get_by_role("heading")).to_have_text("Needs attention: 1 urgent")
        shows(concerns.locator("code").last).to_have_text("lakequeue repair torn-whole")
        shows(concerns.get_by_role("link", name="Runbook")).to_have_attribute("href", "runbooks/damage")
        for hidden in ".tiles", ".tabs", ".depths", ".tools", "[role=alert]":
            shows(page.locator(f".queue > {hidden}, .head > {hidden}").first).to_be_hidden()
        concerns.get_by_role("button", name="Copy").first.click()
        shows(page.locator(".toast")).to_contain_text("Copied: ")
        whole = f"lakequeue --root {lake.root} check torn-whole"
        assert page.evaluate("navigator.clipboard.readText()") == whole
        visit.open("#/?text=torn-whole")
        row = visit.row("torn-whole")
        shows(row.locator(".badge.bad")).to_have_text("damaged")
        shows(row.locator(".trouble")).to_have_count(0)  # it is said above, with commands to copy


def test_a_queue_that_cannot_be_read_at_all_says_why(lake: LakeQueue, visit: Visit):
    page = visit.page
    page.route(
        re.compile("/api/queues/gone-wrong"),
        lambda route: route.fulfill(
            status=503, json={"code": "ServiceUnavailable", "message": "Run `lakequeue doctor`."}
        ),
    )
    visit.open("#/q/gone-wrong")
    why = page.get_by_role("alert").filter(has_text="Run lakequeue doctor")
    shows(why).to_contain_text("All queues")
    shows(why.get_by_role("button", name="Copy")).to_be_visible()
    shows(page.locator(".chart").first).to_be_hidden()


def test_a_full_disk_is_red_with_its_commands_and_links_to_the_largest_queues(lake: LakeQueue, visiting: Visiting):
    full = {
        "text": "The root's disk is full.",
        "details": ["Bytes: 0.1 MiB of 32 MiB are free.", "Inodes: 3 of 1,500 are free."],
        "hint": "",
        "steps": [{"command": "lakequeue purge old", "effect": "drops it"}],
        "largest": {"old": 2**21, "new": 2**20},
        "runbook": "disk-full",
    }
    with visiting() as visit:
        page = visit.page
        answer = {"root": [full], "concerns": [], "total": 0, "urgent": True, "low": True, "full": True}
        page.route("**/api/attention", lambda route: route.fulfill(json=answer))
        visit.open()
        concerns = page.get_by_role("region", name="What needs attention")
        shows(concerns.get_by_role("heading", name="Needs attention")).to_have_text("Needs attention: 1 urgent")
        shows(concerns.get_by_role("heading", name="The disk is full")).to_have_css("color", "rgb(180, 35, 24)")
        shows(concerns.get_by_role("listitem").first).to_have_css("color", "rgb(180, 35, 24)")
        shows(concerns.locator("code")).to_have_text("lakequeue purge old")
        shows(concerns.get_by_role("button", name="Copy")).to_have_count(1)
        shows(concerns.get_by_role("link")).to_have_text(["old", "new", "Runbook"])
        shows(concerns).to_contain_text("Bytes: 0.1 MiB of 32 MiB are free. Inodes: 3 of 1,500 are free. ")
        shows(concerns).to_contain_text("The largest queues: old 2 MiB, new 1 MiB")
        letters = {"queue": "dead", "kind": "dead letters", "text": "It has 2.", "brief": "2 dead letters"}
        letters |= {"hint": "", "steps": [], "errors": {"OSError": 2}, "examples": {"OSError": "/tmp/" + 95 * "a"}}
        answer |= {"concerns": [letters], "total": 1}
        page.set_viewport_size({"width": 390, "height": 860})
        visit.open("#/")
        page.reload()
        shows(concerns.locator(".example")).to_have_text("/tmp/" + 95 * "a")
        assert page.evaluate("document.documentElement.scrollWidth") == 390, "nothing is cut"
        lake.create_queue("disk-letters").pause("the disk")
        page.route(
            "**/api/attention?*",
            lambda route: route.fulfill(json=route.fetch().json() | {"low": True, "full": True, "urgent": False}),
        )
        visit.open("#/q/disk-letters")
        shows(concerns.get_by_role("heading", name="Needs attention")).to_have_text("Needs attention: 1 notice")


def test_a_queue_has_its_concerns_at_its_head_whatever_the_tab(lake: LakeQueue, visit: Visit):
    with_letters(lake, "head-orders", SendEntry("a"))
    page = visit.open("#/q/head-letters/no-such-tab")
    shows(page.get_by_role("link", name="Messages")).to_have_attribute("aria-current", "page")
    concerns = page.get_by_role("region", name="What needs attention")
    shows(concerns.locator(".lines > li")).to_have_count(1)
    shows(concerns.locator("code").first).to_be_hidden()  # the page has a button for it
    concerns.get_by_text("Commands").click()
    shows(concerns.locator("code")).to_have_text(["lakequeue peek head-letters", "lakequeue redrive head-letters"])
    concerns.get_by_role("link", name="Runbook").click()
    shows(page.get_by_role("heading", name="LakequeueDeadLetters")).to_be_in_viewport()
    page.go_back()
    shows(concerns).to_be_visible()  # so that it can be gone below
    visit.button("Redrive…").click()
    page.get_by_role("dialog").get_by_role("button", name="Move 1 message").click()
    shows(concerns).to_be_hidden()
    assert [message.body for message in lake.queue("head-orders").peek()] == ["a"]


def test_what_is_deleted_soon_can_be_kept_longer(lake: LakeQueue, visit: Visit):
    lake.create_queue("kept", message_retention_period=4 * 24 * 3600).send("a")
    concern = {"queue": "kept", "kind": "expiring", "text": "Soon.", "hint": "", "may": ["keep"], "brief": "soon"}
    answer = {"root": [], "concerns": [concern | {"steps": []}], "total": 1}
    visit.page.route("**/api/attention", lambda route: route.fulfill(json=answer))
    page = visit.open("#/?text=kept")
    visit.button("Keep longer…").click()
    retention = page.get_by_role("dialog").get_by_label("Retention period")
    shows(retention).to_be_focused()
    shows(retention).to_have_value("8d")
    page.get_by_role("dialog").get_by_role("button", name="Change").click()
    shows(page.locator(".toast")).to_have_text("1 attribute of kept changed.")
    assert lake.queue("kept").attributes()["message_retention_period"] == 8 * 24 * 3600


def test_the_list_marks_a_queue_whose_messages_died(lake: LakeQueue, visit: Visit):
    with_letters(lake, "died-orders", SendEntry("a"))
    visit.open("#/?text=died-")  # both queues: what a list does not show is counted once a minute
    shows(visit.row("died-orders").locator(".badge.warn")).to_have_text("1 message in died-letters")


def test_a_queue_without_dead_letters_of_its_own_is_not_marked_by_a_shared_dead_letter_queue(
    visiting: Visiting, tmp_path: Path
):
    lake = LakeQueue(str(tmp_path / "root"), clock=ManualClock())
    with_letters(lake, "shop-orders", SendEntry("a"))
    lake.create_queue("late", dead_letter_queue="shop-letters", max_receive_count=1)
    with serving(lake) as server, visiting(server.url) as visit:
        page = visit.open()
        needs = page.get_by_role("region", name="What needs attention")
        shows(needs).to_contain_text("1 dead letter")
        page = visit.open("#/q/late")
        shows(page.locator(".badge").first).to_be_visible()
        shows(page.locator(".badge.warn")).to_have_count(0)
        page = visit.open("#/q/shop-orders")
        shows(page.locator(".badge.warn")).to_have_text("1 of its messages is in shop-letters")
        page = visit.open()
        shows(visit.row("shop-orders").locator(".badge.warn")).to_have_text("1 message in shop-letters")
        shows(visit.row("late").locator(".badge")).to_have_count(0)


def test_what_a_consumer_holds_is_listed_with_the_command_that_frees_it(lake: LakeQueue, visit: Visit):
    queue = lake.create_queue("holding")
    queue.send("a")
    queue.send("b")
    [held] = queue.receive(1, consumer="packer's:7")
    page = visit.open("#/q/holding/consumers")
    visit.row("packer's:7").get_by_role("link", name="1", exact=True).click()
    row = visit.row("packer's:7")
    shows(page.locator("tr.message")).to_have_count(1)
    row.click()
    command = f"lakequeue reschedule holding {held.message_id} --in-flight"
    details = page.locator("tr.details")
    shows(details.locator("p code")).to_have_text(command)
    details.get_by_role("button", name="Free…").click()
    page.get_by_role("dialog").get_by_role("button", name="Make visible").click()
    shows(page.locator(".toast")).to_have_text("1 message made visible.")
    assert queue.counts().visible == 2


def test_messages_of_a_consumer_that_is_gone_are_freed_where_it_needs_attention(
    visiting: Visiting, tmp_path: Path
):
    clock = ManualClock()
    lake = LakeQueue(str(tmp_path / "root"), clock=clock)
    queue = lake.create_queue("orders", visibility_timeout=3_600)
    queue.send_batch([SendEntry("a"), SendEntry("b"), SendEntry("c")])
    queue.receive(2, consumer="packer's:7", visibility_timeout=12 * 3_600)
    clock.advance(2 * 3_600)
    queue.receive(1, consumer="well:8")
    with serving(lake) as server, visiting(server.url) as visit:
        page = visit.open()
        visit.button("Free its messages…").click()
        dialog = page.get_by_role("dialog")
        shows(dialog).to_contain_text("packer's:7 has held them.")
        dialog.get_by_role("button", name="Make visible").click()
        shows(page.locator(".toast")).to_have_text("2 messages made visible.")
        shows(page.get_by_role("region", name="What needs attention")).not_to_contain_text("packer's:7")
    assert (queue.counts().visible, queue.counts().in_flight) == (2, 1)


def test_a_damaged_list_of_queues_is_said_once(visiting: Visiting, tmp_path: Path):
    lake = LakeQueue(str(tmp_path / "root"), clock=ManualClock())
    lake.create_queue("orders")
    with serving(lake) as server, visiting(server.url) as visit:
        for file in Path(layout.queues_path(lake.root)).glob("*.parquet"):
            file.write_bytes(b"")
        lake.clock.advance(60)
        refused = {
            "code": "ServiceUnavailable",
            "message": "The root is damaged: `lakequeue repair --all` mends it.",
        }
        visit.page.route("**/api/queues?*", lambda route: route.fulfill(status=503, json=refused))
        page = visit.open()
        needs = page.get_by_role("region", name="What needs attention")
        shows(needs).to_contain_text("The list of queues is damaged")
        shows(page.get_by_text("The list of queues cannot be read.")).to_be_visible()
        shows(page.get_by_text("Loading…")).to_have_count(0)
        shows(page.locator("#fault")).to_be_hidden()


def test_a_newer_notice_replaces_the_older_of_the_same_action(lake: LakeQueue, visit: Visit):
    lake.create_queue("flapping")
    page = visit.open("#/q/flapping")
    for _ in range(2):
        visit.button("Pause…").click()
        page.get_by_role("dialog").get_by_role("button", name="Pause").click()
        shows(page.locator(".toast")).to_have_text("flapping is paused.")
        page.locator(".tools").get_by_role("button", name="Resume").click()
        shows(page.locator(".toast")).to_have_text("flapping is resumed.")


def test_the_dialog_says_what_becomes_of_messages_of_a_killed_process(visiting: Visiting, tmp_path: Path):
    clock = ManualClock()
    lake = LakeQueue(str(tmp_path / "root"), clock=clock)
    lake.create_queue("dead")
    queue = lake.create_queue("orders", dead_letter_queue="dead", max_receive_count=2)
    queue.send_batch([SendEntry("a"), SendEntry("b")])
    queue.receive(1, consumer="packer", visibility_timeout=60)
    clock.advance(61)
    queue.receive(2, consumer="packer", visibility_timeout=12 * 3_600)
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    now = clock.now()
    process = ConsumerProcess(socket.gethostname(), child.pid, now, now, 0, None)
    report_consumer(queue, "1", ConsumerFile("packer", [queue.key], process))
    with serving(lake) as server, visiting(server.url) as visit:
        page = visit.open()
        visit.button("Free its messages…").click()
        dialog = page.get_by_role("dialog")
        shows(dialog).to_contain_text("Its process was killed, so nothing runs their handlers any more.")
        shows(dialog).to_contain_text(
            "Otherwise 1 of them goes to dead at the next receive, at 2026-01-01 12:01Z, in 12h, as each death of "
            "a consumer counts as a receive; the others come back then."
        )
        shows(dialog).not_to_contain_text("not told")


@pytest.mark.parametrize("tab", ["dead-letters", "attributes"])
def test_a_phone_stacks_the_tables_of_a_queue(lake: LakeQueue, visiting: Visiting, tab: str):
    with_letters(lake, f"stacked-{tab}-orders", SendEntry("a"))
    with visiting(viewport={"width": 390, "height": 800}) as visit:
        page = visit.open(f"#/q/stacked-{tab}-letters/{tab}")
        table = page.locator("table.wide-cells").first
        shows(table.locator("tbody tr").first).to_have_css("display", "grid")
        shows(table.locator("thead")).to_be_hidden()
        wide = "document.querySelector('.overflow').scrollWidth > document.querySelector('.overflow').clientWidth"
        assert not page.evaluate(wide), "nothing is cut"
        buttons = page.locator(".tools button:not([hidden])").all()
        rows = Counter(box["y"] for button in buttons if (box := button.bounding_box()) is not None)
        assert len(buttons) == 5 and min(rows.values()) > 1, "no button is alone in its row"


def test_a_message_that_an_unknown_process_holds_leads_to_its_release(lake: LakeQueue, visit: Visit):
    queue = lake.create_queue("hung")
    queue.send("a")
    queue.receive()
    page = visit.page

    def hung(route: Any) -> None:
        answer = route.fetch()
        concern = {
            "queue": "hung",
            "kind": "stuck",
            "text": "It hangs",
            "hint": "",
            "steps": [],
            "may": [],
            "brief": "It hangs",
        }
        route.fulfill(response=answer, json={"root": [], "concerns": [concern], "total": 1})

    page.route("**/api/attention", hung)
    visit.open("#/?text=hung")
    page.get_by_role("link", name="It hangs").click()
    page.wait_for_url(re.compile(r"#/q/hung/messages\?state=in_flight$"))
    shows(page.get_by_text("1 message that passes the filters.")).to_be_visible()
    choose(page.get_by_role("checkbox", name="Choose all"))
    visit.button("Make visible…").click()
    page.get_by_role("dialog").get_by_role("button", name="Make visible").click()
    shows(page.locator(".toast")).to_have_text("1 message made visible.")
    assert queue.counts().visible == 1


@pytest.mark.parametrize("width", [1280, 390])
def test_tiles_of_nothing_are_hidden_and_the_age_stays_in_the_first_row(
    lake: LakeQueue, visiting: Visiting, width: int
):
    queue = with_history(lake, f"tiles-{width}", 1)
    queue.send("a")
    with visiting(viewport={"width": width, "height": 800}) as visit:
        page = visit.open(f"#/q/{queue.name}")
        tiles = page.locator(".tiles > div:visible dt")
        shows(tiles).to_have_text(["Visible", "In flight", "Delayed", "Oldest", "Rewindable"])
        tops = [tile.bounding_box()["y"] for tile in tiles.all()]
        assert len(set(tops[:4])) == 1 and (tops[4] == tops[0]) == (width == 1280)
        for link in page.get_by_role("navigation", name="Parts of the queue").get_by_role("link").all():
            box = link.bounding_box()
            assert box is not None and box["x"] + box["width"] <= width, "no tab is cut"
        messages, chart = page.locator("table.messages"), page.locator(".depths")
        below = messages.bounding_box()["y"] > chart.bounding_box()["y"]
        assert below == (width == 1280), "on a phone the messages come first"


def test_an_opened_message_keeps_the_table_and_has_buttons_of_its_own(lake: LakeQueue, visit: Visit):
    with_letters(lake, "opened-orders", SendEntry("a"), SendEntry("b"))
    page = visit.open("#/q/opened-letters")
    shows(page.locator("tr.message")).to_have_count(2)
    body = page.locator("td.at-body").first

    def place() -> tuple[float, float]:
        box = body.bounding_box()
        return box["x"], box["width"]  # what needs attention comes later, and moves the table down

    before = place()
    page.locator("tr.message").first.click()
    details = page.locator("tr.details").first
    shows(details.locator("pre")).to_have_text("a")
    assert place() == before, "the columns stay where they are"
    details.get_by_role("button", name="Retry…").click()
    visit.button("Move 1 message").click()
    shows(page.locator("tr.message")).to_have_count(1)
    page.locator("tr.message").click()
    details.get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete 1 message").click()
    shows(page.get_by_text("The queue is empty")).to_be_visible()
    assert [message.body for message in lake.queue("opened-orders").peek()] == ["a"]


def test_failures_of_a_dead_letter_keep_their_lines_and_are_shown_once(lake: LakeQueue, visit: Visit):
    lake.create_queue("failed-letters")
    orders = lake.create_queue("failed-orders", dead_letter_queue="failed-letters", max_receive_count=3)
    orders.send("a")

    def fail(message: Message, context: Context) -> None:
        raise ValueError("first line\nsecond line")

    Consumer(orders, fail, name="packer", retry_failed_at_once=True).run(until_empty=True)
    page = visit.open("#/q/failed-letters")
    page.locator("tr.message").click()
    failures = page.locator(".failure")
    shows(failures.locator("pre")).to_have_text("ValueError: first line\nsecond line")
    shows(failures.locator("pre")).to_have_css("white-space-collapse", "preserve")
    shows(failures.get_by_text("packer: the same")).to_have_count(3)


def test_the_legend_shows_the_counts_of_the_tiles(lake: LakeQueue, visit: Visit):
    queue = lake.create_queue("legend")
    queue.send("a")
    page = visit.open("#/q/legend")
    shows(page.locator(".key.visible b")).to_have_text("1")
    queue.send("b")
    shows(page.locator(".tiles dd").first).to_have_text("2")
    shows(page.locator(".key.visible b")).to_have_text("2")


def test_a_chart_says_that_it_loads_and_marks_what_nobody_counted(lake: LakeQueue, visit: Visit):
    lake.create_queue("loading").send("a")
    page = visit.page
    begin = 1_767_225_600_000

    def late(route: Any) -> None:
        shows(page.locator(".chart").first).to_contain_text("Loading…")
        answer = route.fetch()
        told = answer.json() | {"unknown": [[begin, begin + 1_000_000]]}
        told["points"] = [told["points"][-1] | {"at": begin + at} for at in (0, 1_000_000, 2_000_000)]
        route.fulfill(response=answer, json=told)

    page.route("**/points?**", late)
    visit.open("#/q/loading")
    shows(page.locator(".depths .plot").first.locator(".unknown")).to_have_count(1)
    shows(page.locator(".chart").first).not_to_contain_text("Loading…")


def test_a_phone_shows_the_whole_way_and_two_lines_for_a_queue(lake: LakeQueue, visiting: Visiting):
    name = "phone-" + "x" * 60
    lake.create_queue(name).send("a")
    with visiting(viewport={"width": 390, "height": 800}) as visit:
        page = visit.open(f"#/q/{name}")
        shows(page.locator("#crumbs")).to_have_text(name)
        for link in page.locator("#pages a").all():
            box = link.bounding_box()
            assert box is not None and box["x"] + box["width"] < 390 and box["width"] > 40, "no link is cut"
        visit.open("#/?text=phone-")
        shows(visit.row(name)).to_be_visible()
        box = visit.row(name).bounding_box()
        assert box is not None and box["height"] < 75, "two lines"
        lake.queue(name).pause("the reason is longer than " + "the line of a phone " * 4)
        box = visit.button(f"Resume {name}").last.bounding_box()
        assert box is not None and box["x"] + box["width"] < 380, "the button is not cut"
        report_idle(lake.queue(name), "packer-" + "x" * 60)
        lake.schedules.add("phone", name, "y" * 300, cron="0 2 * * *", tz="America/Argentina/Buenos_Aires")
        for place in "#/schedules", f"#/q/{name}/consumers":
            visit.open(place)
            row = page.locator(".wide-cells tbody tr").first
            shows(row).to_be_visible()
            boxes = [cell.bounding_box() for cell in row.locator("td > *, td").all()]
            assert all(box is None or box["x"] + box["width"] < 380 for box in boxes), "nothing is cut"
        lake.schedules.remove("phone")


def test_the_axis_of_a_young_queue_fits_its_data_and_times_have_a_zone(lake: LakeQueue, visiting: Visiting):
    lake.create_queue("young").send("a")
    with visiting(timezone_id="Asia/Kolkata") as visit:
        page = visit.open("#/q/young")
        ticks = page.locator(".plot").first.locator(".tick")
        shows(page.locator(".chart .line.visible")).to_have_attribute("d", re.compile("L"))
        shown = [text for text in ticks.all_text_contents() if re.fullmatch(r"\d\d:\d\d:\d\d", text)]
        times = [timedelta(**dict(zip(UNITS, map(int, text.split(":")), strict=True))) for text in shown]
        assert timedelta(0) < (times[-1] - times[0]) % timedelta(days=1) < timedelta(minutes=10)
        [step] = {(after - before) % timedelta(days=1) for before, after in pairwise(times)}
        assert all(not time % step for time in times), "round times, at equal distances"
        shows(page.locator("td.at-sent")).to_have_attribute("title", re.compile(r"UTC\+05:30"))
        shows(page.locator("td.at-sent")).to_have_text(re.compile(r"^\d+s ago$"))
        page.locator("tr.message").click()
        shows(page.locator(".facts time")).to_contain_text("UTC+05:30")


def test_rates_are_shown_once_they_are_known(lake: LakeQueue, visit: Visit):
    lake.create_queue("rated").send("a")
    page = visit.page

    def rated(route: Any) -> None:
        answer = route.fetch()
        told = answer.json() | {
            "rates": {"minutes": 5.0, "sent": 12.34, "received": 6, "deleted": 0, "stay": 90.0}
        }
        route.fulfill(response=answer, json=told)

    def charted(route: Any) -> None:
        answer = route.fetch()
        points = [point | {"sent": 1, "deleted": 2} for point in answer.json()["points"]]
        route.fulfill(response=answer, json=answer.json() | {"points": points})

    visit.open("#/q/rated")
    shows(page.locator(".rates")).to_contain_text("Rates are known after")
    page.route("**/points?**", charted)
    page.reload()
    shows(page.locator(".key.deleted")).to_be_visible()
    assert page.locator(".rates").text_content() == "", "the chart has them"
    page.route("**/api/queues/rated", rated)
    shows(page.locator(".rates")).to_contain_text("Per minute: 12 sent")
    shows(page.locator(".rates")).to_contain_text("6 received here  0 deleted  over the last 5 minutes")
    shows(page.locator(".rates")).to_contain_text("A message stays 1m30s on average.")
