"""A consumer process, started by the tests in this directory.

``consumer_worker.py ROOT DIARY DIE``: consumes the queue until SIGTERM, and writes what its handler does as JSON
lines to DIARY. Who gets the message ``deadly`` first waits for the file DIE to appear, and then kills its process.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from concurrency.worker import QUEUE, Diary
from lakequeue import Consumer, Context, HeartbeatRenewal, LakeQueue, Message

RENEWAL = HeartbeatRenewal(visibility_timeout=3, extension_threshold=2.5, heartbeat_interval=0.2)


def main(root: str, path: str, die: str) -> None:
    diary = Diary(path)

    def handle(message: Message, context: Context) -> None:
        diary.write("begin", body=message.body, count=message.receive_count)
        if message.body == "deadly" and message.receive_count == 1:
            while not os.path.exists(die):
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGKILL)
        context.sleep(0.05)
        diary.write("end", body=message.body, lost=context.lost.is_set())

    consumer = Consumer(LakeQueue(root).queue(QUEUE), handler=handle, concurrency=4, renewal=RENEWAL)
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    diary.write("ready")
    consumer.run()
    diary.write("stopped")


if __name__ == "__main__":
    main(*sys.argv[1:])
