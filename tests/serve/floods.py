"""Many receives of one key at once, from four addresses of a network, in a process that does nothing else.

``floods.py URL KEY SECRET QUEUE NUMBER WAIT NETWORK`` goes on until its input ends. Prints how often each status
was answered, and how often a connection ended without an answer.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections import Counter
from urllib.parse import urlsplit

from serve.raw_requests import signed_head


async def main(url: str, key: str, secret: str, queue: str, number: int, wait: int, network: str) -> None:
    place, seen, over = urlsplit(url), Counter[str](), asyncio.Event()
    asked = {"QueueUrl": f"/{queue}", "MaxNumberOfMessages": 10, "VisibilityTimeout": 0, "WaitTimeSeconds": wait}
    body = json.dumps(asked).encode()

    def signed() -> bytes:
        headers = signed_head(url, key, secret, body, "ReceiveMessage")
        lines = ["POST / HTTP/1.1", f"Host: {place.netloc}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode() + body

    request = signed()

    async def sign_again() -> None:
        nonlocal request
        while True:
            await asyncio.sleep(300)  # of the 15 minutes that it may be repeated
            request = signed()

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not over.is_set():
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            left = int(head.partition("content-length: ")[2].partition("\r\n")[0])
            while left:
                left -= len(await reader.read(min(left, 2**20))) or left
            status = head.split()[1]
            seen[status] += 1
            if status != "200":
                await asyncio.sleep(int(head.partition("retry-after: ")[2].partition("\r\n")[0]))

    async def connected(source: str) -> None:
        while not over.is_set():
            writer = None
            try:
                reader, writer = await asyncio.open_connection(
                    place.hostname, place.port, local_addr=(source, 0), limit=2**20
                )
                await receive(reader, writer)
            except (OSError, EOFError):
                seen["no answer"] += not over.is_set()
            finally:
                if writer is not None:
                    writer.transport.abort()

    receiving = (connected(f"{network}.{1 + each % 4}") for each in range(number))
    clients = [asyncio.create_task(each) for each in (sign_again(), *receiving)]
    await asyncio.to_thread(sys.stdin.read)
    over.set()
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    print(json.dumps(seen))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    url, key, secret, queue, number, wait, network = sys.argv[1:]
    asyncio.run(main(url, key, secret, queue, int(number), int(wait), network))
