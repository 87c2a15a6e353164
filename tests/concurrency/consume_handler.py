"""The handlers of the `lakequeue consume` processes of a test: they keep a diary, as JSON lines."""

from __future__ import annotations

import os
import random
import time

from concurrency.worker import Diary
from lakequeue import Context, Message

DIARY = Diary(f"{os.environ['DIARY']}.{os.getpid()}.jsonl")


def handle(message: Message, context: Context) -> None:
    _begin(message)
    context.sleep(random.uniform(0.01, 0.4))
    _end(message, context)


async def handle_async(message: Message, context: Context) -> None:
    _begin(message)
    await context.sleep_async(random.uniform(0.01, 0.4))
    _end(message, context)


def _begin(message: Message) -> None:
    assert message.received_at is not None and message.visible_at is not None
    receipt = {"received": message.received_at.timestamp(), "until": message.visible_at.timestamp()}
    DIARY.write("begin", body=message.body, count=message.receive_count, at=time.time(), **receipt)


def _end(message: Message, context: Context) -> None:
    DIARY.write("end", body=message.body, count=message.receive_count, lost=bool(context.lost), at=time.time())
