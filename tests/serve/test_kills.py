"""A server under load is killed with SIGKILL and started again, and keeps what it said (see the README)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lakequeue.serve.sqs.actions import Actions
from mutations import Mutation, Patch, replace
from serve.load import VISIBILITY, Load, Receipt, Story
from serve.serving import PROGRAM, ServerProcess, sqs, wait_until

PATCHED = "import pytest; from serve import test_kills as kills; kills.MUTATIONS[{}].apply(pytest.MonkeyPatch()); "


def queue_of(server: ServerProcess, fifo: bool = False) -> str:
    attributes = {"VisibilityTimeout": str(VISIBILITY)} | ({"FifoQueue": "true"} if fifo else {})
    name = "load.fifo" if fifo else "load"
    url: str = sqs(server.url).create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    return url


def survive(root: Path, kills: int, fifo: bool) -> Load:
    with ServerProcess(root) as server:
        load = Load(server, queue_of(server, fifo), fifo)
        with load.running():
            for _ in range(kills):
                load.until_more(20)
                server.kill()
                server.start()
            load.until_more(20)
    return load


def check(load: Load) -> None:
    story = load.story
    assert [*story.faults()] == []
    assert any(not isinstance(failure, ClientError) for failure in story.failures)  # it was killed in the middle
    if load.fifo:
        in_order: dict[str, list[int]] = {}
        for receipt in sorted(story.receipts, key=lambda receipt: receipt.answered):
            group, _, number = receipt.body.partition(":")
            seen = in_order.setdefault(group, [])
            if int(number) not in seen:
                seen.append(int(number))
        for group, numbers in in_order.items():
            assert numbers == [*range(len(numbers))], group


@pytest.mark.spec("SND-17", "DEL-2", "RCV-3", "RCV-6")
@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(4, marks=pytest.mark.slow),
        pytest.param(30, marks=[pytest.mark.long, pytest.mark.timeout(1_200)]),
    ],
)
def test_a_killed_server_has_lost_nothing_and_redelivers_only_what_is_due(
    tmp_path: Path, fifo: bool, kills: int
) -> None:
    check(survive(tmp_path / "root", kills, fifo))


def kinds(load: Load) -> set[str]:
    return {fault.partition(":")[0] for fault in load.story.faults()}


def sends_elsewhere(patch: Patch) -> None:
    send = Actions._send_each

    def sends(self: Actions, name: str, sends: list[Any]) -> list[Any]:
        return [send(self, "elsewhere" if sent.body.endswith("7") else name, [sent])[0] for sent in sends]

    patch.setattr(Actions, "_send_each", sends)


def receives_for_no_time(patch: Patch) -> None:
    receive = Actions.receive

    def at_once(self: Actions, queue: Any, given: Any, *rest: Any) -> Any:
        return receive(self, queue, given | {"VisibilityTimeout": 0}, *rest)

    patch.setattr(Actions, "receive", at_once)


MUTATIONS = [
    Mutation("lost", sends_elsewhere, {survive: "SND-17"}),
    Mutation(
        "back",
        replace(Actions, "_settle_each", lambda self, name, wanted: [None] * len(wanted)),
        {survive: "DEL-2"},
    ),
    Mutation("early", receives_for_no_time, {survive: "RCV-3 RCV-6"}),
]
"""By the kind of the fault that must be found. The server's process applies them to itself."""


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(at, id=each.name) for at, each in enumerate(MUTATIONS)])
def test_a_server_that_breaks_a_promise_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    fault = MUTATIONS[number].name
    server = ServerProcess(tmp_path / "root", program=PATCHED.format(number) + PROGRAM)
    try:
        server.start()
        sqs(server.url).create_queue(QueueName="elsewhere")
        load = Load(server, queue_of(server))
        with load.running(until_empty=fault != "back"):  # which that never is
            load.until_more(60)
            if fault != "lost":  # which is known only at the end
                wait_until(lambda: fault in kinds(load))
    finally:
        server.kill()
    assert fault in kinds(load)


def receipt(asked: float, deleted: float | None = None, id: str = "i", body: str = "a") -> Receipt:
    return Receipt(body, id, f"handle of {asked}", asked, asked + 0.1, deleted)


@pytest.mark.parametrize(
    ("receipts", "faults"),
    [
        ([receipt(0)], []),
        ([], ["lost"]),
        ([receipt(0), receipt(VISIBILITY)], []),
        ([receipt(0), receipt(VISIBILITY - 0.2)], ["early"]),
        ([receipt(0, 1.0)], []),
        ([receipt(0, 1.0), receipt(VISIBILITY + 1)], ["back"]),
        ([receipt(0, VISIBILITY + 0.5), receipt(VISIBILITY + 1)], []),  # deleted too late to be sure
        ([receipt(0), receipt(VISIBILITY, id="j")], ["doubled"]),
        ([receipt(0), receipt(0, body="b")], ["invented"]),
    ],
)
def test_the_judge_reports_impossible_results(receipts: list[Receipt], faults: list[str]) -> None:
    story = Story({"a"}, {"a": "i"}, receipts)
    assert [told.partition(":")[0] for told in story.faults()] == faults
