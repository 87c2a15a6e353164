"""What the console changes: queues, and chosen messages; and how it says what is wrong with a field."""

from __future__ import annotations

import pytest

from lakequeue import LakeQueue, QueueDoesNotExist, SendEntry
from lakequeue.model.secrets import command_prefix
from lakequeue.operations.depth import Depth
from lakequeue.operations.results import QueueCounts
from lakequeue.serve.console.depth_history import throughput
from lakequeue.testing import ManualClock
from serve.consoles import ASKED, Console, keyed, rewindable, with_letters


def ids(console: Console, queue: str) -> dict[str, str]:
    return {message["body"]: message["id"] for message in console.get(f"queues/{queue}/messages")["messages"]}


# --- the way in


@pytest.mark.parametrize(
    ("method", "path", "accept", "sent_on"),
    [
        ("GET", "/", "text/html,application/xhtml+xml", True),
        ("GET", "/", "*/*", False),
        ("GET", "/", "application/json", False),
        ("GET", "/?Action=ListQueues", "text/html", False),
        ("POST", "/", "text/html", False),
        ("GET", "/000000000000/orders", "text/html", False),
    ],
)
def test_a_browser_at_the_root_is_sent_to_the_console(
    console: Console, method: str, path: str, accept: str, sent_on: bool
):
    answer = console.http.request(method, path, headers={"Accept": accept})
    assert (answer.headers.get("location"), answer.status_code == 303) == (
        ("/console/", True) if sent_on else (None, False)
    )
    if path == "/" and method == "GET" and not sent_on:
        assert (answer.status_code, answer.text) == (404, "<UnknownOperationException/>")


def test_the_root_is_shown_without_secrets(console: Console, lake: LakeQueue):
    lake.create_queue("orders")
    assert console.get("queues")["root"] == console.get("queues/orders")["root"] == lake.root
    for root, shown in (
        ("s3://AKIA1:secret@bucket/my queues?sas=secret", "'s3://bucket/my queues'"),
        ("abfss://box@account.dfs.core.windows.net/q", "abfss://box@account.dfs.core.windows.net/q"),
    ):
        assert command_prefix(root) == f"lakequeue --root {shown}"


# --- queues


def test_a_queue_is_created_changed_and_deleted(console: Console, lake: LakeQueue):
    lake.create_queue("letters")
    policy = '{"deadLetterTargetArn": "letters", "maxReceiveCount": "3"}'
    attributes = {"Profile": "lake", "VisibilityTimeout": "60", "RewindSeconds": "3600", "RedrivePolicy": policy}
    assert console.post("queues", QueueName="orders", Attributes=attributes) == {"name": "orders"}
    queue = lake.queue("orders")
    assert queue.attributes()["visibility_timeout"] == 60 and queue.attributes()["profile"] == "lake"
    assert console.get("queues/orders")["dead_letter_queue"] == "letters"
    assert console.post("queues/orders/attributes", Attributes={"DelaySeconds": "5", "RedrivePolicy": ""}) == {}
    found = console.get("queues/orders")
    assert found["attributes"]["DelaySeconds"] == "5" and found["dead_letter_queue"] is None
    assert console.post("queues/orders/delete", name="orders") == {}
    with pytest.raises(QueueDoesNotExist):
        lake.queue("orders")
    assert console.http.get("/console/api/queues/orders").json()["code"] == "QueueDoesNotExist"


@pytest.mark.parametrize("part", ["messages", "history", "redrive"])
@pytest.mark.parametrize("where", ["nonsense", "receive_count >", "body", "1/0 = length(body)", "error('x')"])
def test_the_error_of_a_bad_condition_names_its_field(console: Console, clock: ManualClock, part: str, where: str):
    rewindable(console.lake, clock, 1).send("a")
    console.lake.create_queue("sources", dead_letter_queue="orders", max_receive_count=1)
    for more in {}, {"text": "order"}:
        answer = console.http.get(f"/console/api/queues/orders/{part}", params={"where": where, **more})
        if answer.status_code == 200:
            assert where.startswith(("1/0", "error")), "some are bad only for messages that are not there"
        else:
            assert (answer.status_code, answer.json()["field"]) == (400, "where")
    answer = console.http.get(f"/console/api/queues/orders/{part}", params={"limit": "x"})
    assert answer.json().get("field") == (None if part == "redrive" else "limit")


def test_a_message_is_sent_with_a_priority(console: Console, lake: LakeQueue):
    lake.create_queue("orders", priorities=3)
    console.post("queues/orders/send", MessageBody="a", Priority=2)
    assert lake.queue("orders").peek()[0].priority == 2
    for wrong in 3, -1, "2", True:
        answer = console.sent("queues/orders/send", {"MessageBody": "b", "Priority": wrong})
        assert (answer.status_code, answer.json()["code"]) == (400, "InvalidParameterValue"), answer.text
    assert len(lake.queue("orders").peek()) == 1


# --- chosen messages


def test_chosen_messages_are_deleted_or_made_visible_unless_somebody_has_them(console: Console, lake: LakeQueue):
    queue = lake.create_queue("orders")
    queue.send_batch([SendEntry(body) for body in "abc"] + [SendEntry("d", delay=60)])
    queue.receive(visibility_timeout=60)
    known = ids(console, "orders")
    for path, chosen, more, answer in (
        ("delete", "abd?", {}, {"messages": 1, "stayed": {"in_flight": 1, "delayed": 1}, "missing": 1}),
        ("visible", "ad?", {}, {"messages": 1, "stayed": {"in_flight": 1}, "missing": 1}),
        ("visible", "ad", {"in_flight": True}, {"messages": 1, "stayed": {"visible": 1}, "missing": 0}),
    ):
        given = [known.get(body, "gone") for body in chosen]
        assert console.post(f"queues/orders/messages/{path}", ids=given, **more) == answer
    assert console.bodies("orders", state="visible") == ["a", "c", "d"]
    as_many_as_a_page_shows = [str(number) for number in range(200)]
    answer = console.post("queues/orders/messages/delete", ids=as_many_as_a_page_shows)
    assert answer == {"messages": 0, "stayed": {}, "missing": 200}


def test_chosen_messages_are_redriven(console: Console, lake: LakeQueue):
    with_letters(lake, "orders", "mails")
    known = ids(console, "letters")
    chosen = [known["orders 1"], known["mails 0"], "x' OR true --"]
    assert console.post("queues/letters/redrive", ids=chosen) == {"messages": 2}
    assert console.bodies("orders") == ["orders 1"] and console.bodies("mails") == ["mails 0"]
    assert {*console.bodies("letters")} == {"orders 0", "mails 1"}


def test_a_redrive_policy_needs_permission_to_send_there(lake: LakeQueue):
    lake.create_queue("letters")
    lake.create_queue("orders")
    policy = {"RedrivePolicy": '{"deadLetterTargetArn": "letters", "maxReceiveCount": "3"}'}
    with keyed(lake, "CreateQueue", "SetQueueAttributes") as http:
        for path, members in (("queues", {"QueueName": "new"}), ("queues/orders/attributes", {})):
            answer = http.post(f"/console/api/{path}", json=members | {"Attributes": policy}, headers=ASKED)
            assert answer.json()["message"] == "reader may not do SendMessage on letters."


# --- rates


def test_rates_are_messages_a_minute_over_the_last_minutes(console: Console, lake: LakeQueue, clock: ManualClock):
    queue = lake.create_queue("orders", visibility_timeout=600)
    assert console.get("queues/orders")["rates"] is None
    for enough in False, True:
        queue.send_batch([SendEntry("a") for _ in range(12)])
        queue.delete_batch([message.receipt_handle for message in queue.receive(6)[:5]])
        clock.advance(60)
        found = console.get("queues/orders")["rates"]
        assert found == {
            "minutes": found["minutes"],
            "sent": pytest.approx(12),
            "received": pytest.approx(6),
            "deleted": pytest.approx(5),
            "stay": found["stay"],
        }
        assert (found["stay"] is not None) == enough, "few deletes give no average"
    clock.advance(240)
    console.get("queues/orders")
    clock.advance(240)
    assert console.get("queues/orders")["rates"] == {
        **{"minutes": 4.0, "sent": 0, "received": 0, "deleted": 0},
        "stay": None,
    }


def test_throughput_and_stay_follow_from_the_depths_of_a_minute():
    """100 messages wait, and 20 of them go each minute: by Little's law each stays for 300 seconds."""

    def at(seconds: float, sent: int, waiting: int, delayed: int = 0) -> Depth:
        return Depth(round(seconds * 1e6), QueueCounts(waiting - 10, 10, delayed, 0, 1.0), sent)

    steady = [at(60 * minute, 120 + 20 * minute, 100, delayed=50) for minute in range(3)]
    unknown = {"sent": None, "deleted": None, "stay": None}
    assert throughput(steady) == [unknown, *[{"sent": 20.0, "deleted": 20.0, "stay": 300.0}] * 2]
    commits = [at(number / 1_000, number, 10 + number) for number in range(1_000)]
    assert throughput(commits) == [unknown] * 1_000, "a send a millisecond says nothing of a minute"
    rewound = throughput([at(0, 10, 10), at(60, 10, 15)])
    assert rewound[1] == {"sent": 0.0, "deleted": 0, "stay": None}
    assert throughput([]) == []


@pytest.mark.spec("QUE-28")
def test_tags_are_set_and_removed(console: Console):
    queue = console.lake.create_queue("orders", tags={"team": "a", "stage": "test"})
    console.post("queues/orders/tags", Tags={"team": "b", "<b>": "'"})
    console.post("queues/orders/untag", TagKeys=["stage", "gone"])
    assert console.get("queues/orders")["tags"] == queue.tags() == {"team": "b", "<b>": "'"}
    assert console.sent("queues/orders/tags", {"Tags": {"": "x"}}).status_code == 400
    assert queue.tags() == {"team": "b", "<b>": "'"}
