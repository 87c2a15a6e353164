"""The file of keys, what its rules allow, and a server that asks for signatures, with boto3."""

from __future__ import annotations

import base64
import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from lakequeue.errors import InvalidOptions
from lakequeue.serve.auth import BasicAuthentication
from lakequeue.serve.errors import RequestError
from lakequeue.serve.keys import _UNKNOWN_KEY_SECRET, AccessRule, Key, Keys
from serve.raw_requests import FORM, JSON, wire_error
from serve.serving import Running, key_file, serving, sqs, wait_until

ADMIN, ORDERS, SENDER, MOVER = "AKIDADMIN", "AKIDORDERS", "AKIDSENDER", "AKIDMOVER"
FILE = {
    ADMIN: {"secret": "admin-secret-of-tests"},
    ORDERS: {"secret": "orders-secret-of-tests", "rules": [{"queues": ["orders*"], "actions": ["*"]}]},
    SENDER: {
        "secret": "sender-secret-of-tests",
        "rules": [
            {"queues": ["orders", "letters"], "actions": ["SendMessage", "GetQueueUrl"]},
            {"queues": ["*"], "actions": ["ListQueues"]},
        ],
    },
    MOVER: {
        "secret": "mover-secret-of-tests",
        "rules": [
            {"queues": ["*"], "actions": ["SetQueueAttributes", "StartMessageMoveTask", "CreateQueue"]},
            {"queues": ["mover-*"], "actions": ["SendMessage", "ReceiveMessage"]},
        ],
    },
}


def problems(path: Path, content: object) -> list[str]:
    with pytest.raises(InvalidOptions) as caught:
        Keys.read(key_file(path / "keys.json", content))
    assert "secret-text-of-tests" not in str(caught.value)
    return [problem.removeprefix(f"{path}/keys.json: ") for problem in caught.value.problems]


def test_every_problem_is_named_at_once(tmp_path):
    assert problems(
        tmp_path,
        {
            "a b": {"secret": ""},
            "one": {
                "secret": "secret-text-of-tests",
                "rules": [{"queues": ["q"], "actions": ["Send", "*"]}],
                "role": 1,
            },
            "two": {"rules": []},
            "three": {"secret": "secret-text-of-tests", "rules": [{"queues": "q*", "actions": [1]}, 7]},
            "four": "secret-text-of-tests",
            "five": {"secret": "\u00e9\ud800"},
            "six": {"secret": "fifteen letters", "rules": [{"queues": ["[a-z]*", "a b"], "actions": ["*"]}]},
        },
    ) == [
        "key 'a b': an id has 1 to 128 letters, digits, _, . and -",
        "key 'a b': secret must be 16 to 256 visible characters of ASCII",
        "key 'one': 'role' is not known",
        "key 'one', rule 1: 'Send' is not an action of SQS",
        "key 'two': secret must be 16 to 256 visible characters of ASCII",
        "key 'two', rules: must be a list that is not empty",
        "key 'three', rule 1, queues: must be a list that is not empty",
        "key 'three', rule 1, actions: must be texts that are not empty",
        "key 'three', rule 2: must be an object",
        "key 'three', rule 2, queues: must be a list that is not empty",
        "key 'three', rule 2, actions: must be a list that is not empty",
        "key 'four': must be an object",
        "key 'four': secret must be 16 to 256 visible characters of ASCII",
        "key 'five': secret must be 16 to 256 visible characters of ASCII",
        "key 'six': secret must be 16 to 256 visible characters of ASCII",
        "key 'six', rule 1: '[a-z]*' can match no name of a queue",
        "key 'six', rule 1: 'a b' can match no name of a queue",
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "not JSON in UTF-8"),
        ("[" * 100_000, "not JSON in UTF-8"),
        ("[]", "the file: must be an object"),
        ("{}", "the file: must have a key"),
        ('{"a": {"secret": "x"}, "a": {"secret": "y"}}', "the file: 'a' is given twice"),
        ('{"a": {"secret": "x", "secret": "y"}}', "key 'a': 'secret' is given twice"),
    ],
)
def test_what_is_no_file_of_keys(tmp_path, content, expected):
    assert expected in problems(tmp_path, content)


@pytest.mark.parametrize(
    ("mode", "group_reads", "taken"),
    [
        *((mode, False, False) for mode in (0o640, 0o604, 0o620, 0o610)),
        *(
            (mode, True, mode in (0o440, 0o640)) for mode in (0o440, 0o640, 0o660, 0o444)
        ),  # as of a Secret in a pod
    ],
)
def test_a_file_that_others_can_read_is_refused_but_for_the_group_on_request(tmp_path, mode, group_reads, taken):
    path = key_file(tmp_path / "keys.json", FILE)
    path.chmod(mode)
    with nullcontext() if taken else pytest.raises(InvalidOptions, match="other users may read"):
        Keys.read(path, group_reads)


def test_a_file_of_another_user_is_refused(tmp_path, monkeypatch):
    path = key_file(tmp_path / "keys.json", FILE)
    monkeypatch.setattr("os.geteuid", lambda: 1_000_000)
    if path.stat().st_uid:
        with pytest.raises(InvalidOptions, match="another user"):
            Keys.read(path)
    else:  # root may change it anyway
        Keys.read(path)
        os.chown(path, 1_000_001, -1)
        with pytest.raises(InvalidOptions, match="another user"):
            Keys.read(path)


def test_rules_allow_actions_on_queues():
    rule = AccessRule(("orders*", "a?c"), frozenset({"SendMessage", "ListQueues"}))
    assert rule.allows("SendMessage", "orders.fifo") and rule.allows("SendMessage", "abc")
    assert not rule.allows("SendMessage", "Orders") and not rule.allows("ReceiveMessage", "orders")
    assert not rule.allows("ListQueues", None)
    assert AccessRule(("*",), frozenset({"*"})).allows("ListQueues", None)
    assert Key("a", "s").may("PurgeQueue", "any") and not Key("a", "s", (rule,)).may("PurgeQueue", "orders")


def test_a_key_and_its_secret_will_do_for_the_console():
    keys = Keys({"a": Key("a", "secret"), "b": Key("b", "other")})
    assert keys.check_password("a", "secret") == Key("a", "secret")
    for wrong in (
        ("a", "secre"),
        ("a", ""),
        ("", ""),
        ("b", "secret"),
        ("c", _UNKNOWN_KEY_SECRET),
        ("A", "secret"),
        ("a", "\ud800"),
    ):
        assert keys.check_password(*wrong) is None


def test_a_key_can_allow_console_actions_that_sqs_lacks(tmp_path):
    rules = [{"queues": ["*"], "actions": ["Rewind"]}]
    keys = Keys.read(key_file(tmp_path / "keys.json", {"a": {"secret": "s" * 16, "rules": rules}}))
    caller = keys.check_password("a", "s" * 16)
    assert caller is not None and caller.may("Rewind", "orders") and not caller.may("PurgeQueue", "orders")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    access = Keys.read(key_file(folder / "keys.json", FILE))
    with serving(folder / "root", access=access) as running:
        client(running, ADMIN).create_queue(QueueName="orders")
        client(running, ADMIN).create_queue(QueueName="other")
        yield running


def client(running: Running, id: str, secret: str | None = None):
    return sqs(running.url, (id, secret or FILE[id]["secret"]))


def code(call, **given):
    with pytest.raises(ClientError) as caught:
        call(**given)
    return caught.value.response["Error"]["Code"], caught.value.response["ResponseMetadata"]["HTTPStatusCode"]


def test_rules_hold_on_the_wire(guarded):
    orders, sender = client(guarded, ORDERS), client(guarded, SENDER)
    url = orders.get_queue_url(QueueName="orders")["QueueUrl"]
    assert sender.send_message(QueueUrl=url, MessageBody="A")["MessageId"]
    assert [message["Body"] for message in orders.receive_message(QueueUrl=url)["Messages"]] == ["A"]
    assert len(sender.list_queues()["QueueUrls"]) == 2


def arn(name: str) -> str:
    return f"arn:aws:sqs:local:000000000000:{name}"


def redriving(name: str) -> dict[str, dict[str, str]]:
    """Gives a queue a dead-letter queue."""
    return {"Attributes": {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn(name), "maxReceiveCount": 1})}}


def moving(*names: str) -> dict[str, str]:
    """A move task from a queue, to another one if there are two."""
    return dict(zip(("SourceArn", "DestinationArn"), map(arn, names), strict=False))


DENIED = {
    ORDERS: [
        ("list_queues", {}, "ListQueues on all queues"),
        ("send_message", {"QueueUrl": "/other", "MessageBody": "A"}, "SendMessage on other"),
        ("create_queue", {"QueueName": "new"}, "CreateQueue on new"),
        ("start_message_move_task", moving("other"), "StartMessageMoveTask on other"),
        ("start_message_move_task", moving("orders", "other"), "StartMessageMoveTask on other"),
        ("set_queue_attributes", {"QueueUrl": "/orders"} | redriving("other"), "SendMessage on other"),
        ("create_queue", {"QueueName": "orders-new"} | redriving("other"), "SendMessage on other"),
    ],
    SENDER: [
        ("receive_message", {"QueueUrl": "/orders"}, "ReceiveMessage on any queue"),
        ("send_message_batch", {"QueueUrl": "/orders", "Entries": []}, "SendMessageBatch on any queue"),
        (
            "set_queue_attributes",
            {"QueueUrl": "/orders"} | redriving("letters"),
            "SetQueueAttributes on any queue",
        ),
    ],
    # which may do all this, but neither receive from the queue nor send to it
    MOVER: [
        ("set_queue_attributes", {"QueueUrl": "/theirs"} | redriving("mover-own"), "ReceiveMessage on theirs"),
        ("start_message_move_task", moving("theirs", "mover-own"), "ReceiveMessage on theirs"),
        ("start_message_move_task", moving("theirs"), "ReceiveMessage on theirs"),
        ("start_message_move_task", moving("mover-own", "theirs"), "SendMessage on theirs"),
        ("create_queue", {"QueueName": "their-new"} | redriving("mover-own"), "ReceiveMessage on their-new"),
        ("create_queue", {"QueueName": "mover-new", "tags": {"a": "b"}}, "TagQueue on mover-new"),
    ],
}
"""What keys may not do: a call, and what its error names."""


@pytest.mark.spec("DLQ-6")
@pytest.mark.parametrize(
    ("key", "call", "given", "named"), [(key, *case) for key, cases in DENIED.items() for case in cases]
)
def test_what_no_rule_allows_is_denied(guarded, key, call, given, named):
    with pytest.raises(ClientError, match=f"{key} may not do {named}") as denied:
        getattr(client(guarded, key), call)(**given)
    assert denied.value.response["Error"]["Code"] == "AccessDenied"
    assert denied.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403


@pytest.mark.spec("DLQ-8")
def test_a_redrive_needs_the_right_to_send_to_each_source(guarded):
    """To those whose policy names the queue when it begins, and to those from which messages came before."""
    mover, admin = client(guarded, MOVER), client(guarded, ADMIN)
    urls = {name: admin.create_queue(QueueName=name)["QueueUrl"] for name in ("mover-dead", "sources", "mover-1")}
    dead, policy = moving("mover-dead"), redriving("mover-dead")
    admin.set_queue_attributes(QueueUrl=urls["sources"], **policy)
    admin.send_message(QueueUrl=urls["sources"], MessageBody="A")
    for _ in range(2):
        admin.receive_message(QueueUrl=urls["sources"], VisibilityTimeout=0)
    basic = (MOVER, FILE[MOVER]["secret"])

    def by_console() -> httpx.Response:
        url = f"{guarded.url}/console/api/queues/mover-dead/redrive"
        return httpx.post(url, json={}, auth=basic, trust_env=False)

    with pytest.raises(ClientError, match="AKIDMOVER may not do SendMessage on each source of mover-dead"):
        mover.start_message_move_task(**dead)
    assert by_console().status_code == 403
    admin.set_queue_attributes(QueueUrl=urls["sources"], Attributes={"RedrivePolicy": ""})
    admin.set_queue_attributes(QueueUrl=urls["mover-1"], **policy)
    mover.start_message_move_task(**dead)

    def ended() -> dict[str, Any]:
        (task,) = admin.list_message_move_tasks(**dead)["Results"]
        return task if task["Status"] != "RUNNING" else {}

    wait_until(ended, "the end of the task")
    assert (ended()["Status"], ended()["FailureReason"]) == ("FAILED", "AccessDenied")
    assert by_console().status_code == 403
    waiting = admin.get_queue_attributes(QueueUrl=urls["mover-dead"], AttributeNames=["All"])["Attributes"]
    assert waiting["ApproximateNumberOfMessages"] == "1"
    admin.start_message_move_task(**dead)
    wait_until(lambda: admin.receive_message(QueueUrl=urls["sources"]).get("Messages"), "the message")
    for url in urls.values():
        admin.delete_queue(QueueUrl=url)


@pytest.mark.spec("DLQ-6")
def test_a_redrive_policy_may_name_a_queue_to_which_its_key_may_send(guarded):
    orders, mover, admin = client(guarded, ORDERS), client(guarded, MOVER), client(guarded, ADMIN)
    url = orders.get_queue_url(QueueName="orders")["QueueUrl"]
    for policy in "nonsense", json.dumps({"maxReceiveCount": 1}):
        wrong = {"QueueUrl": url, "Attributes": {"RedrivePolicy": policy}}
        assert code(orders.set_queue_attributes, **wrong)[0] == "InvalidParameterValue"
    moved = mover.create_queue(QueueName="mover-moved")["QueueUrl"]
    for key, source, dead in (orders, url, "orders-dead"), (mover, moved, "mover-own"), (admin, url, "other"):
        key.create_queue(QueueName=dead)
        key.set_queue_attributes(QueueUrl=source, **redriving(dead))
    admin.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": ""})
    for name in ("mover-moved", "mover-own"):
        admin.delete_queue(QueueUrl=admin.get_queue_url(QueueName=name)["QueueUrl"])


def test_a_queue_may_not_be_reached_under_another_spelling(guarded):
    orders = client(guarded, ORDERS)
    for url in ("http://orders/000000000000/other", "orders/%6Fther", "/other#orders", "/other?orders", "/other/"):
        found = code(orders.send_message, QueueUrl=url, MessageBody="A")
        assert found[0] in ("AccessDenied", "AWS.SimpleQueueService.NonExistentQueue"), url
    assert "Messages" not in client(guarded, ADMIN).receive_message(QueueUrl=f"{guarded.url}/000000000000/other")


def test_who_does_not_sign_is_refused_in_the_own_protocol_under_any_name(guarded):
    for kind, content in ((JSON, b"{}"), (FORM, b"Action=ListQueues")):
        for host in {}, {"host": "queue.example"}:
            headers = {"content-type": kind, **host}
            answer = httpx.post(guarded.url, content=content, headers=headers, trust_env=False)
            error = wire_error(answer.status_code, answer.headers, answer.content)
            assert (error.status, error.code) == (403, "MissingAuthenticationToken")


def test_an_address_guesses_ten_secrets_a_minute():
    now = 100.0
    basic = BasicAuthentication(Keys({"a": Key("a", "right")}), lambda: now)

    def status_of(address: str, secret: str, id: str = "a") -> int:
        given = base64.b64encode(f"{id}:{secret}".encode()).decode() if id else ""
        try:
            return 200 if basic.caller(address, f"Basic {given}").name == "a" else 0
        except RequestError as error:
            return error.status

    assert [status_of("10.0.0.1", "") for _ in range(3)] == [401] * 3
    assert [status_of("10.0.0.1", "", "") for _ in range(50)] == [401] * 50, "without a key id nothing was guessed"
    assert [status_of("10.0.0.1", "wrong", str(n)) for n in range(9)] == [401] * 7 + [429] * 2
    assert status_of("10.0.0.1", "right") == 429, "else a guess would tell"
    assert status_of("10.0.0.2", "right") == 200
    now += 60
    assert status_of("10.0.0.1", "right") == 200


def test_guesses_at_the_console_and_the_metrics_count_together(tmp_path):
    access = Keys({ADMIN: Key(ADMIN, "right")})
    with serving(tmp_path / "root", access=access) as running, httpx.Client(trust_env=False) as http:

        def status_of(path: str, secret: str) -> int:
            return http.get(f"{running.url}{path}", auth=(ADMIN, secret)).status_code

        for path in ("/metrics", "/console/api/queues") * 5:
            assert status_of(path, "wrong") == 401
        for path in "/metrics", "/console/api/queues":
            assert status_of(path, "right") == 429


def response_of(guarded: Running, path: str, id: str = "", secret: str = "") -> httpx.Response:
    auth = (id, secret or FILE[id]["secret"]) if id else None
    return httpx.get(guarded.url + path, auth=auth, trust_env=False)


def test_the_root_is_shown_to_keys_that_may_do_everything(guarded):
    for id, shown in ((ADMIN, True), (SENDER, False)):
        assert (response_of(guarded, "/console/api/queues", id).json()["root"] is not None) == shown


def test_who_asks_for_a_queue_that_is_not_there_learns_nothing_of_others(guarded):
    guarded.lake.create_queue("zorders-secret")
    for path in "orders-secret", "orders-secret/messages":
        answer = response_of(guarded, f"/console/api/queues/{path}", ORDERS)
        assert answer.json() == {"code": "QueueDoesNotExist", "message": "The specified queue does not exist."}
    guarded.lake.delete_queue("zorders-secret")


def test_sends_from_the_console_name_their_key(guarded):
    auth, headers = (ADMIN, FILE[ADMIN]["secret"]), {"X-Lakequeue-Console": "1"}
    guarded.lake.create_queue("console", profile="sqs")
    sent = httpx.post(
        f"{guarded.url}/console/api/queues/console/send", json={"MessageBody": "A"}, headers=headers, auth=auth
    )
    assert sent.status_code == 200
    url = f"{guarded.url}/000000000000/console"
    received = client(guarded, ADMIN).receive_message(QueueUrl=url, MessageSystemAttributeNames=["SenderId"])
    assert received["Messages"][0]["Attributes"]["SenderId"] == ADMIN
    guarded.lake.delete_queue("console")


def test_a_trace_header_counts_only_if_it_was_signed(guarded):
    url, trace = f"{guarded.url}/000000000000/traced", "Root=1-3152b799-8954dae64eda91bc9a23a7e8"
    queue = guarded.lake.create_queue("traced", profile="sqs")
    body = json.dumps({"QueueUrl": url, "MessageBody": "A"}).encode()
    for signer in (SigV4Auth, TraceSigner):
        headers = {"Content-Type": JSON, "X-Amz-Target": "AmazonSQS.SendMessage", "X-Amzn-Trace-Id": trace}
        asked = AWSRequest("POST", guarded.url, headers, body)
        signer(Credentials(ADMIN, FILE[ADMIN]["secret"]), "sqs", "local").add_auth(asked)
        answer = httpx.post(guarded.url, content=body, headers=dict(asked.headers))
        assert answer.status_code == 200, answer.text
    assert [message.trace_header for message in queue.peek()] == [None, trace]
    guarded.lake.delete_queue("traced")


class TraceSigner(SigV4Auth):
    """Signs the trace header, which botocore leaves out because proxies change it."""

    def headers_to_sign(self, request):
        found = super().headers_to_sign(request)
        found["x-amzn-trace-id"] = request.headers["X-Amzn-Trace-Id"]
        return found


def test_metrics_are_for_keys_that_may_know_all_queues(guarded):
    answer = response_of(guarded, "/metrics")
    assert answer.status_code == 401 and answer.headers["www-authenticate"].startswith("Basic ")
    for id, secret in ((ADMIN, "guessed"), ("AKIDNOBODY", "x")):
        assert response_of(guarded, "/metrics", id, secret).status_code == 401
    assert response_of(guarded, "/metrics", ORDERS).status_code == 403
    assert 'queue="orders"' in response_of(guarded, "/metrics", SENDER).text
    assert response_of(guarded, "/health").status_code == 200
