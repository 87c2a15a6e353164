"""aiobotocore: many tasks on one event loop."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from serve.running import KEYS, ServerProcess

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
