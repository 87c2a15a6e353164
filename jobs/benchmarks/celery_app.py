"""The Celery application of the benchmark. Its broker, options and directory are in the environment."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery, signals

import lakequeue.integrations.celery  # noqa: F401  # makes kombu know lakequeue://

WHERE = Path(os.environ["WHERE"])

app = Celery("celery_app", broker=os.environ["BROKER"])
app.conf.update(
    broker_transport_options=json.loads(os.environ["OPTIONS"]),
    broker_connection_retry_on_startup=True,
    task_acks_late=True,
    task_ignore_result=True,
)


@app.task(name="mark")
def mark() -> None:
    """Waits for the start, then adds a byte to a file that all workers write."""
    while not (WHERE / "go").exists():
        time.sleep(0.01)
    with (WHERE / "done").open("ab", buffering=0) as done:
        done.write(b".")


@signals.worker_ready.connect
def ready(**_: Any) -> None:
    (WHERE / f"ready-{os.getpid()}").touch()
