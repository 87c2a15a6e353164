"""A process that sends, receives and deletes until the power is cut; its diary has what was acknowledged."""

from __future__ import annotations

import os
import sys
import time

from lakequeue import LakeQueue, QueueClientError
from lakequeue.storage.engines import commit, log_trimming


def main(root: str, diary: str, rate: float, short: bool) -> None:
    if short:  # checkpoints and trimming within seconds, as in minutes of a longer run
        commit.TRIM_EVERY, log_trimming.LOG_ENTRIES, log_trimming.READING = 10, 10, 0.0
    book = os.open(diary, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    queue = LakeQueue(root).queue("orders")
    number = 0
    while True:
        body = f"{os.getpid()}-{number}"
        try:
            queue.send(body)
            os.write(book, f"sent {body}\n".encode())
            if number % 5 == 4:
                messages = queue.receive(max_messages=3, visibility_timeout=60)
                for message in messages:
                    os.write(book, f"deleting {message.body}\n".encode())
                done = queue.delete_batch([message.receipt_handle for message in messages])
                for message in messages if not done.failed else ():
                    os.write(book, f"deleted {message.body}\n".encode())
        except (QueueClientError, OSError):
            return  # the power was cut
        number += 1
        time.sleep(1 / rate)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4] == "short")
