"""Another program that optimizes all tables of a lake, beside processes that send, receive and compact (DUR-5)."""

from __future__ import annotations

from collections import Counter

import pytest

from concurrency.processes import TEN_MINUTES, WORKER, Workers, events_of, judge
from lakequeue import LakeQueue

MINUTE = 60


@pytest.mark.slow
@pytest.mark.spec("DUR-5", "RCV-15")
@pytest.mark.parametrize("how", ["compact", "z-order", "vacuum"])
@pytest.mark.parametrize(
    "seconds", [pytest.param(6, id="short"), pytest.param(MINUTE, id="a minute", marks=TEN_MINUTES)]
)
def test_every_message_is_delivered_once_while_another_program_writes(
    workers: Workers, how: str, seconds: float
) -> None:
    place, stop = workers.place, workers.stop_file
    workers.start("sender")
    for name in ("first", "second"):
        workers.begin(name, WORKER, "consume", place, name, workers.diary(name), stop)
    workers.begin("compactor", WORKER, "compact", place, stop)
    workers.begin("other", WORKER, "optimize", place, how, workers.diary("other"), stop)
    for name in ("sender", "first", "second", "other"):
        workers.wait_until_ready(name)

    def optimized() -> Counter[str]:
        return Counter(event.get("table", event["event"]) for event in events_of(workers.diary("other")))

    workers.run(seconds, 300, {"sender": 20})
    workers.wait_until(lambda: all(optimized()[table] for table in ("messages", "receipts")), "passes")
    workers.stop()
    summary = judge(workers)
    print(how, summary, optimized())
    assert min(summary.sent, summary.received, summary.deleted) > 5, summary
    assert not [finding for finding in LakeQueue(place).check() if finding.damage]
