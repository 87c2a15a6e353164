"""aiobotocore: many tasks on one event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lakequeue import SendEntry, aio
from serve.serving import KEYS, ServerProcess

TASKS = 100
EACH = 3

pytestmark = pytest.mark.clients


@pytest.mark.spec("RCV-15", "LPL-1")
def test_a_hundred_tasks_send_receive_and_delete_at_once(served: ServerProcess) -> None:
    """Half of them wait in long polls before there is anything."""
    from aiobotocore.config import AioConfig
    from aiobotocore.session import get_session

    async def run() -> tuple[list[str], list[str]]:
        config = AioConfig(max_pool_connections=2 * TASKS, retries={"total_max_attempts": 1})
        connect = get_session().create_client(
            "sqs", region_name="eu-west-1", endpoint_url=served.url, config=config, **KEYS
        )
        async with connect as client:
            url = (await client.create_queue(QueueName="many"))["QueueUrl"]
            sent: list[str] = []
            received: list[str] = []

            async def send() -> None:
                for number in range(EACH):
                    answer = await client.send_message(QueueUrl=url, MessageBody=str(number))
                    sent.append(answer["MessageId"])

            async def receive() -> None:
                while len(received) < TASKS * EACH:
                    answer = await client.receive_message(
                        QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=2, VisibilityTimeout=300
                    )
                    for message in answer.get("Messages", []):
                        received.append(message["MessageId"])
                        await client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

            receivers = [asyncio.create_task(receive()) for _ in range(TASKS)]
            await asyncio.gather(*(send() for _ in range(TASKS)))
            await asyncio.gather(*receivers)
            return sent, received

    sent, received = asyncio.run(asyncio.wait_for(run(), 120))
    assert len(sent) == TASKS * EACH
    assert Counter(received) == Counter(sent)
    counts = served.lake.queue("many").counts()
    assert (counts.visible, counts.in_flight) == (0, 0)


async def by_aiobotocore(client: Any, jobs: str, results: str, work: Callable[[str], str], stop: int) -> None:
    """Takes jobs and sends results, as a program for SQS does."""
    jobs_url = (await client.get_queue_url(QueueName=jobs))["QueueUrl"]
    results_url = (await client.get_queue_url(QueueName=results))["QueueUrl"]
    while True:
        answer = await client.receive_message(
            QueueUrl=jobs_url, MaxNumberOfMessages=10, WaitTimeSeconds=stop, MessageAttributeNames=["All"]
        )
        messages = answer.get("Messages", [])
        if not messages:
            return
        entries = [
            {
                "Id": str(number),
                "MessageBody": work(message["Body"]),
                "MessageAttributes": {"by": {"DataType": "String", "StringValue": "aiobotocore"}},
            }
            for number, message in enumerate(messages)
        ]
        sent = await client.send_message_batch(QueueUrl=results_url, Entries=entries)
        assert not sent.get("Failed")
        for message in messages:
            await client.delete_message(QueueUrl=jobs_url, ReceiptHandle=message["ReceiptHandle"])


async def by_lakequeue(lq: aio.LakeQueue, jobs: str, results: str, work: Callable[[str], str], stop: int) -> None:
    """The same program with lakequeue.aio."""
    jobs_queue = await lq.queue(jobs)
    results_queue = await lq.queue(results)
    while True:
        messages = await jobs_queue.receive(max_messages=10, wait_time=stop, attribute_names=["All"])
        if not messages:
            return
        entries = [SendEntry(work(message.body), attributes={"by": "lakequeue"}) for message in messages]
        (await results_queue.send_batch(entries)).raise_for_failures()
        for message in messages:
            await message.delete()


@pytest.mark.spec("RCV-15", "LPL-1")
def test_one_program_written_for_both_shares_its_work_on_one_loop(served: ServerProcess) -> None:
    """Both wait in long polls of one loop; each job is done once, whoever sent it."""
    from aiobotocore.config import AioConfig
    from aiobotocore.session import get_session

    count = 200

    async def run() -> tuple[list[str], Counter[str]]:
        config = AioConfig(max_pool_connections=20, retries={"total_max_attempts": 1})
        connect = get_session().create_client(
            "sqs", region_name="eu-west-1", endpoint_url=served.url, config=config, **KEYS
        )
        async with connect as client, aio.LakeQueue(served.lake.root) as lq:
            url = (await client.create_queue(QueueName="jobs"))["QueueUrl"]
            jobs = await lq.queue("jobs")
            results = await lq.create_queue("results")
            workers: list[Awaitable[None]] = []
            for _ in range(4):
                workers.append(by_aiobotocore(client, "jobs", "results", str.upper, 3))
                workers.append(by_lakequeue(lq, "jobs", "results", str.upper, 3))
            working = asyncio.gather(*workers)
            await asyncio.gather(
                *(client.send_message(QueueUrl=url, MessageBody=f"job {n}") for n in range(0, count, 2)),
                *(jobs.send(f"job {n}") for n in range(1, count, 2)),
            )
            await working
            done = await results.receive(max_messages=10 * count)
            counts = await jobs.counts()
            assert (counts.visible, counts.in_flight) == (0, 0)
            return [one.body for one in done], Counter(one.message_attributes["by"].value for one in done)

    done, by = asyncio.run(asyncio.wait_for(run(), 120))
    assert sorted(done) == sorted(f"JOB {n}" for n in range(count))
    assert set(by) == {"aiobotocore", "lakequeue"}, by
