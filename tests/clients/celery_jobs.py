"""A Celery application on the SQS transport, for the worker that test_celery.py starts.

Its environment: ``BROKER`` and ``RESULTS``, the addresses of both, and ``VISIBILITY``, the timeout of its queues.
"""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery, Task

app = Celery("jobs", broker=os.environ["BROKER"], backend=os.environ["RESULTS"])
app.conf.update(
    broker_transport_options={
        "region": "eu-west-1",
        "is_secure": False,
        "visibility_timeout": int(os.environ["VISIBILITY"]),
        "polling_interval": 0.1,
        "wait_time_seconds": 2,
        "queue_name_prefix": "celery-jobs-",
    },
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    worker_enable_remote_control=False,
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
def die_once(sign: str) -> str:
    """Kills the process that it runs in, unless one died before."""
    try:
        os.close(os.open(sign, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return "once more"
    os._exit(1)
