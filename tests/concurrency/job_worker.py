"""A process that sends or consumes: ``job_worker.py ROOT send|consume NUMBER``.

A sender sends all numbers below NUMBER, each with its deduplication id, so one that is started again repeats what
was sent; on a queue with priorities with one instead. A consumer ends with SIGTERM.
"""

from __future__ import annotations

import signal
import sys

from concurrency.worker import QUEUE
from lakequeue import Consumer, Context, HeartbeatRenewal, LakeQueue, Message

RENEWAL = HeartbeatRenewal(visibility_timeout=3, extension_threshold=2.5, heartbeat_interval=0.2)


def main(root: str, role: str, number: str) -> None:
    queue = LakeQueue(root).queue(QUEUE)
    if role == "send":
        for n in range(int(number)):
            if queue.priorities is None:
                queue.send(str(n), dedup_id=str(n))
            else:
                queue.send(str(n), priority=n % queue.priorities)
        return

    def handle(message: Message, context: Context) -> None:
        context.sleep(0.02)

    consumer = Consumer(queue, handler=handle, concurrency=3, renewal=RENEWAL)
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    consumer.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
