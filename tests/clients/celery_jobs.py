"""A Celery application on the SQS transport, or on that of lakequeue, for the workers that tests start.

Its environment: ``BROKER`` and ``RESULTS``, the addresses of both, ``VISIBILITY``, the timeout of its queues, and
``EARLY``, if messages are acknowledged before their tasks run.
"""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery, Task

import lakequeue.integrations.celery  # noqa: F401  # makes kombu know lakequeue://

SQS = os.environ["BROKER"].startswith("sqs")
LATE = "EARLY" not in os.environ
ONLY_SQS = {"region": "eu-west-1", "is_secure": False, "polling_interval": 0.1, "wait_time_seconds": 2}

app = Celery("jobs", broker=os.environ["BROKER"], backend=os.environ["RESULTS"])
app.conf.update(
    broker_transport_options={
        "visibility_timeout": int(os.environ["VISIBILITY"]),
        "queue_name_prefix": "celery-jobs-",
        **(ONLY_SQS if SQS else {}),
    },
    task_acks_late=LATE,
    task_reject_on_worker_lost=LATE,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    worker_enable_remote_control=not SQS,
)


class Refused(Exception):
    """What a task fails with the first times."""


@app.task
def add(first: int, second: int) -> int:
    return first + second


@app.task(bind=True, autoretry_for=(Refused,), max_retries=3, default_retry_delay=0)
def persist(self: Task[Any, Any], text: str) -> dict[str, Any]:
    if self.request.retries < 2:
        raise Refused(text)
    return {"text": text, "retries": self.request.retries}


@app.task
def when() -> float:
    return time.time()


@app.task
def note(path: str, text: str, seconds: float = 0) -> None:
    """Adds a line to a file, then takes some time."""
    with open(path, "a") as file:
        file.write(f"{text}\n")
    time.sleep(seconds)


@app.task
def die_once(sign: str) -> str:
    """Kills the process that it runs in, unless one died before."""
    try:
        os.close(os.open(sign, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return "once more"
    os._exit(1)
