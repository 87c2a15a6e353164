"""A Celery worker with its tasks, and kombu alone, on the SQS transport."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection
from kombu.transport.SQS import AccessDeniedQueueException

from clients.celery_workers import application, seen_with_one_rejected, tasks_run, worker
from lakequeue import LakeQueue
from serve.serving import KEYS, PATIENCE, ServerProcess, key_file, sqs, wait_until

pytestmark = pytest.mark.clients
OPTIONS = {"region": "eu-west-1", "is_secure": False, "wait_time_seconds": 1}


def broker(server: ServerProcess) -> str:
    """The address of a server as Celery wants it."""
    key, secret = KEYS.values()
    return f"sqs://{key}:{secret}@localhost:{server.port}/"


@pytest.fixture(scope="module")
def jobs(served: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The application, for which a worker works."""
    where = tmp_path_factory.mktemp("celery")
    with application(broker(served), where, visibility=15) as jobs, worker(where):
        yield jobs


def test_tasks_run_and_are_tried_again(jobs: Any) -> None:
    tasks_run(jobs)


def test_a_task_with_a_countdown_waits(jobs: Any) -> None:
    sent = time.time()
    assert jobs.when.apply_async(countdown=2).get(PATIENCE) >= sent + 2


@pytest.mark.spec("VIS-4")
def test_a_task_whose_process_dies_comes_again(jobs: Any, tmp_path: Path) -> None:
    assert jobs.die_once.delay(str(tmp_path / "died")).get(PATIENCE) == "once more"


def test_nothing_is_left_in_the_queue(jobs: Any, served: ServerProcess) -> None:
    jobs.add.delay(1, 2).get(PATIENCE)
    [queue] = served.lake.list_queues("celery-jobs-")

    def empty() -> bool:
        counts = queue.counts()
        return counts.visible + counts.in_flight == 0

    wait_until(empty)  # a worker acknowledges after it has stored the result


@pytest.mark.parametrize("predefined", [False, True])
def test_kombu_delivers_what_is_acknowledged_once_and_what_is_rejected_again(
    served: ServerProcess, predefined: bool
) -> None:
    name = f"kombu-{predefined}".lower()
    options: dict[str, Any] = dict(OPTIONS)
    if predefined:
        url = sqs(served.url).create_queue(QueueName=name)["QueueUrl"]
        key, secret = KEYS.values()
        known = {"url": url, "access_key_id": key, "secret_access_key": secret}
        options["predefined_queues"] = {name: known}
    with Connection(broker(served), transport_options=options) as connection:
        queue = connection.SimpleQueue(name)
        seen_with_one_rejected(queue)
        queue.close()
    counts = served.lake.queue(name).counts()
    assert (counts.visible, counts.in_flight) == (0, 0)


@pytest.mark.spec("FAI-1", "FAI-2")
def test_a_quiet_tenant_of_kombu_does_not_wait_behind_a_noisy_one(served: ServerProcess) -> None:
    with Connection(broker(served), transport_options=OPTIONS) as connection:
        queue = connection.SimpleQueue("kombu-tenants")
        for number in range(30):
            queue.put({"tenant": "noisy", "number": number}, MessageGroupId="noisy")
        for number in range(3):
            queue.put({"tenant": "quiet", "number": number}, MessageGroupId="quiet")
        found = []
        for _ in range(33):
            message = queue.get(timeout=PATIENCE)
            found.append(message.payload["tenant"])
            message.ack()
        queue.close()
    # kombu receives ten at a time, whose order among each other means nothing
    assert found[:10].count("quiet") == 3


@pytest.mark.spec("FAI-1", "FAI-2")
def test_a_task_of_a_quiet_tenant_does_not_wait_behind_those_of_a_noisy_one(
    jobs: Any, served: ServerProcess
) -> None:
    jobs.add.delay(1, 2).get(PATIENCE)
    [queue] = served.lake.list_queues("celery-jobs-")
    queue.pause("until all tasks are sent")
    noisy = [jobs.add.apply_async((n, n), MessageGroupId="noisy") for n in range(60)]
    quiet = jobs.add.apply_async((1, 1), MessageGroupId="quiet")
    queue.resume()
    assert quiet.get(PATIENCE) == 2
    assert [result.get(PATIENCE) for result in noisy] == [2 * n for n in range(60)]
    assert quiet.date_done < max(result.date_done for result in noisy)


def test_kombu_says_that_it_may_not_acknowledge(tmp_path: Path) -> None:
    """It looks for the code of AWS, `AccessDenied`; another one it would pass over."""
    secret = "receiver-secret-of-tests"
    rules = [{"queues": ["orders"], "actions": ["ReceiveMessage", "SendMessage", "GetQueueAttributes"]}]
    keys = key_file(tmp_path / "keys.json", {"AKIDRECEIVER": {"secret": secret, "rules": rules}})
    queue = LakeQueue(str(tmp_path / "root")).create_queue("orders", profile="sqs")
    with ServerProcess(tmp_path / "root", "--keys", str(keys)) as server:
        known = {
            "url": f"{server.url}/000000000000/orders",
            "access_key_id": "AKIDRECEIVER",
            "secret_access_key": secret,
        }
        options = OPTIONS | {"predefined_queues": {"orders": known}}
        address = f"sqs://AKIDRECEIVER:{secret}@localhost:{server.port}/"
        with Connection(address, transport_options=options) as connection:
            orders = connection.SimpleQueue("orders")
            orders.put({"number": 1})
            message = orders.get(timeout=PATIENCE)
            with pytest.raises(AccessDeniedQueueException, match="may not do DeleteMessage"):
                message.ack()
    assert queue.counts().in_flight == 1
