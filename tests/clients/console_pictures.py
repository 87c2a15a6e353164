"""Takes the pictures of the console for README and pages, of a root with some typical problems.

python tests/clients/console_pictures.py [DIRECTORY]
"""

from __future__ import annotations

import random
import sys
import tempfile
from datetime import datetime, timedelta, timezone
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import Browser, Page, sync_playwright

from clients.browsing import ARGUMENTS, CHROMIUM
from lakequeue import Consumer, Context, LakeQueue, Message, Queue, SendEntry
from lakequeue.entry_verbs import report_consumer
from lakequeue.model.consumer_processes import ConsumerFile, ConsumerProcess
from lakequeue.testing import ManualClock
from serve.serving import serving

DOCS = Path(__file__).parents[2] / "docs"
STEPS, STEP = 60, timedelta(minutes=3)
"""Passes of a compactor, whose counts the sparklines of the list show."""
CHANCE = random.Random(7)


def send(queue: Queue, number: int, group: str | None = None) -> None:
    bodies = (f'{{"order": {1_000 + each}, "customer": "c{each % 7}"}}' for each in range(number))
    queue.send_batch(
        [SendEntry(body, group_id=group, dedup_id=group and body.strip("{}")[9:13]) for body in bodies]
    )


def report(queue: Queue, name: str, pid: int, running: timedelta | None = None) -> None:
    """Reports a consumer that runs now, with a handler that runs for a while."""
    now = queue.clock.now()
    oldest = None if running is None else now - running
    process = ConsumerProcess("worker-2", pid, now, now, int(running is not None), oldest, True)
    report_consumer(queue, str(pid), ConsumerFile(name, [queue.key], process))


def fail(message: Message, context: Context) -> None:
    if int(message.body[10:14]) < 1_030:
        raise ConnectionError("the bank does not answer")
    raise KeyError("sku")


def filled(root: str, clock: ManualClock) -> LakeQueue:
    """Returns a root that was used for four days until now."""
    lake, now = LakeQueue(root, clock=clock), clock.now() + timedelta(days=3, hours=8)
    send(lake.create_queue("thumbnails"), 214)
    clock.advance(now - STEPS * STEP - timedelta(seconds=78) - clock.now())
    failed = lake.create_queue("failed-orders")
    orders = lake.create_queue("orders", dead_letter_queue=failed.name, max_receive_count=2)
    invoices, emails, reports = (
        lake.create_queue(name, fifo=name.endswith("fifo")) for name in ("invoices.fifo", "emails", "reports")
    )
    send(orders, 41)
    Consumer(orders, fail, name="packer-1", retry_failed_at_once=True).run(until_empty=True)
    send(emails, 280)
    for step in range(STEPS):
        clock.advance(STEP)
        send(orders, CHANCE.randrange(1, 90))
        send(emails, 3 if step < 36 else 17)
        if step == 21:
            send(invoices, 9, "acme")
            invoices.receive(1, visibility_timeout=4 * 3_600, consumer="biller-1")
        if step == 45:
            send(reports, 2)
            reports.pause("the warehouse is being migrated")
        done = orders.receive(max(1, orders.counts().visible - CHANCE.randrange(10, 80)))
        orders.delete_batch([message.receipt_handle for message in done])
        lake.compact()
    clock.advance(78)
    emails.receive(10, consumer="mailer-1")
    emails.receive(1, consumer="mailer-2")
    for queue, name, pid in ((orders, "packer-1", 1201), (orders, "packer-2", 1202), (emails, "mailer-1", 1203)):
        report(queue, name, pid)
    report(emails, "mailer-2", 1204)
    report(invoices, "biller-1", 1207, 38 * STEP)
    return lake


def opened(browser: Browser, address: str, now: datetime, width: int, height: int, dark: bool = False) -> Page:
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light")
    page.clock.set_fixed_time(now)
    page.goto(f"{address}/console/")
    page.locator(".lines > li").first.wait_for()
    page.get_by_text("max 214").wait_for(state="attached")  # a phone hides it
    return page


def shoot(page: Page, place: Path) -> None:
    page.mouse.move(1, 1)
    page.evaluate("document.querySelector('#about .code').textContent = '/data/queues'")
    page.screenshot(path=place)


def take(directory: Path) -> None:
    clock = ManualClock(datetime.now(timezone.utc) - timedelta(days=3, hours=8))
    with tempfile.TemporaryDirectory() as root:
        lake = filled(f"{root}/queues", clock)
        with serving(lake) as server, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
            for name, dark in (("console", False), ("console-dark", True)):
                page = opened(browser, server.url, clock.now(), 1180, 650, dark)
                page.locator(".lines > li", has_text="invoices.fifo").get_by_text("Commands").click()
                shoot(page, directory / f"{name}.png")
            shoot(opened(browser, server.url, clock.now(), 390, 860), directory / "console-phone.png")
            browser.close()


if __name__ == "__main__":
    take(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS)
