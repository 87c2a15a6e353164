"""Rows of `lakequeue serve`: a server process, and AWS JSON clients over loopback."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import attrs
import uvloop

from benchmarks.harness import BODY, LONG, Bench, Figure
from lakequeue import LakeQueue, Queue, SendEntry

CLIENTS = 1, 64, 256
EACH = 160
"""Most calls of each verb by a client. All clients together also have a maximum."""
LONGEST = 60.0
"""Seconds after which no further calls of a verb start."""
STARTING = 60.0
_MAIN = "import sys; from lakequeue.cli import main; sys.exit(main())"
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)

Parameters = dict[str, Any]


def serve(bench: Bench) -> Iterator[Figure]:
    """Calls per second over HTTP, one or ten messages each, with few and many clients."""
    with bench.scratch() as scratch, server(scratch) as port:
        own = LakeQueue(f"{scratch}/own").create_queue("own")
        for fifo, clients in itertools.product((False, True), CLIENTS):
            name = f"{'FIFO' if fifo else 'standard'} queue, {clients} clients"
            for _ in bench.track([name], name):
                load = _Load(port, clients, fifo, bench.sizes.calls)
                figures = uvloop.run(load.run())
                if not fifo and clients < CLIENTS[-1]:
                    figures += _beside_the_queue(own, load)
            yield from figures
        yield from uvloop.run(_administration(port))


def _beside_the_queue(own: Queue, load: _Load) -> Iterator[Figure]:
    """Compares sends over HTTP with sends by as many threads of this process."""
    clients = load.clients
    sends = {1: lambda: own.send(BODY), 10: lambda: own.send_batch([SendEntry(BODY)] * 10)}
    for batch, seconds in load.sent.items():
        count = len(seconds)
        with ThreadPoolExecutor(clients) as threads:
            begun = perf_counter()
            taken = list(threads.map(lambda _, send=sends[batch]: _timed(send), range(count)))
            rate = batch * count / (perf_counter() - begun)
        (half, most), own_half = _percentiles(seconds), median(taken)
        how = f"{f'in batches of {batch}' if batch > 1 else 'one by one'}, {clients} clients"
        if clients == 1:
            yield Figure(
                f"wire: what a send takes more than the queue's own, {how}",
                (half - own_half) * 1000,
                bound=2,
                remark=f"own p50 {own_half * 1000:.1f} ms",
                unit="ms",
            )
        else:
            yield Figure(
                f"wire: sent {how}, beside {clients} threads", load.rates[batch], rate, bound=0.5, unit="/s"
            )
            yield Figure(
                f"wire: p99 of sends {how}, beside p50",
                most * 1000,
                half * 1000,
                bound=5 if batch == 1 else None,
                unit="ms",
            )


def _timed(send: Callable[[], object]) -> float:
    begun = perf_counter()
    send()
    return perf_counter() - begun


async def _administration(port: int) -> list[Figure]:
    """Creates and deletes queues while eight clients send, receive and delete."""
    others = [await _Connection.to(port) for _ in range(8)]
    administrator = await _Connection.to(port)
    queue = await administrator.call("CreateQueue", {"QueueName": "busy"})
    done = asyncio.Event()
    seconds: dict[str, list[float]] = {"CreateQueue": [], "DeleteQueue": []}

    async def work(connection: _Connection) -> None:
        while not done.is_set():
            await connection.call("SendMessage", queue | {"MessageBody": BODY})
            for message in (await connection.call("ReceiveMessage", queue)).get("Messages", []):
                await connection.call("DeleteMessage", queue | {"ReceiptHandle": message["ReceiptHandle"]})

    async def administrate() -> None:
        try:
            for number in range(30):
                given: Parameters = {"QueueName": f"administration-{number}"}
                for action in seconds:
                    begun = perf_counter()
                    given = await administrator.call(action, given)
                    seconds[action].append(perf_counter() - begun)
        finally:
            done.set()

    try:
        await asyncio.gather(administrate(), *map(work, others))
    finally:
        for connection in (administrator, *others):
            connection.close()
    return [
        Figure(
            f"wire: {action} beside 8 clients",
            median(taken) * 1000,
            remark=f"p99 {_percentiles(taken)[1] * 1000:.0f} ms",
            unit="ms",
        )
        for action, taken in seconds.items()
    ]


@contextlib.contextmanager
def server(scratch: str) -> Iterator[int]:
    """Runs a server with its access log on, and discards the log."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    options = ["--root", f"{scratch}/queues", "serve", "--create-root", "--port", str(port)]
    command = [sys.executable, "-c", _MAIN, *options]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        deadline = perf_counter() + STARTING
        while not listens(port):
            if process.poll() is not None or perf_counter() > deadline:
                raise RuntimeError("the server does not start")
            time.sleep(0.02)
        yield port
        process.terminate()
        process.wait(STARTING)
    finally:
        process.kill()
        process.wait()


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@attrs.frozen
class _Connection:
    """A keep-alive connection, as SDKs use them."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def to(cls, port: int) -> _Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def call(self, action: str, parameters: Parameters) -> Parameters:
        body = json.dumps(parameters).encode()
        self.writer.write(
            b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-amz-json-1.0\r\n"
            b"X-Amz-Target: AmazonSQS.%s\r\nContent-Length: %d\r\n\r\n%s" % (action.encode(), len(body), body)
        )
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        answer = json.loads(await self.reader.readexactly(int(length[1]) if length else 0) or b"{}")
        if not head.startswith(b"HTTP/1.1 200") or answer.get("Failed"):
            raise RuntimeError(f"{action}: {answer}")
        return answer

    def close(self) -> None:
        self.writer.close()


class _Load:
    """Concurrent clients of a new queue, with one verb at a time.

    Attributes:
        rates, sent: messages a second, and seconds of each call, of sends by the size of their batches.
    """

    def __init__(self, port: int, clients: int, fifo: bool, calls: int) -> None:
        self._port = port
        self.clients = clients
        self.rates: dict[int, float] = {}
        self.sent: dict[int, list[float]] = {}
        self._fifo = fifo
        self._calls = min(calls, EACH * clients)
        self._numbers = itertools.count()
        self._connections: list[_Connection] = []
        self._queue: Parameters = {}

    async def run(self) -> list[Figure]:
        self._connections = [await _Connection.to(self._port) for _ in range(self.clients)]
        try:
            attributes = {"Attributes": {"FifoQueue": "true"}} if self._fifo else {}
            name = f"load-{self.clients}{'.fifo' if self._fifo else ''}"
            answer = await self._connections[0].call("CreateQueue", {"QueueName": name} | attributes)
            self._queue = {"QueueUrl": answer["QueueUrl"]}
            # A quarter of the batches, to stay below the in-flight limit of FIFO queues.
            return await self._verbs(1, self._calls) + await self._verbs(10, max(1, self._calls // 4))
        finally:
            for connection in self._connections:
                connection.close()

    async def _verbs(self, batch: int, calls: int) -> list[Figure]:
        def send(_: object) -> tuple[str, Parameters]:
            entries = self._entries(batch)
            return ("SendMessage", entries[0]) if batch == 1 else ("SendMessageBatch", {"Entries": entries})

        def receive(_: object) -> tuple[str, Parameters]:
            return "ReceiveMessage", {"MaxNumberOfMessages": batch, "VisibilityTimeout": LONG}

        def delete(handles: list[str]) -> tuple[str, Parameters]:
            if batch == 1:
                return "DeleteMessage", {"ReceiptHandle": handles[0]}
            entries = [{"Id": str(index), "ReceiptHandle": handle} for index, handle in enumerate(handles)]
            return "DeleteMessageBatch", {"Entries": entries}

        sent, answers = await self._all("sent", batch, send, range(calls))
        received, answers = await self._all("received", batch, receive, answers)
        handles = [[one["ReceiptHandle"] for one in answer.get("Messages", [])] for answer in answers]
        if sum(map(len, handles)) != batch * len(handles):
            raise RuntimeError("not every message that was sent was received")
        deleted, _ = await self._all("deleted", batch, delete, handles)
        return [sent, received, deleted]

    def _entries(self, batch: int) -> list[Parameters]:
        number = next(self._numbers)
        if batch == 1 and not self._fifo:
            return [{"MessageBody": BODY}]
        entries: list[Parameters] = [{"Id": str(index), "MessageBody": BODY} for index in range(batch)]
        for entry in entries:
            if self._fifo:
                entry |= {"MessageGroupId": f"g{number}", "MessageDeduplicationId": f"{number}-{entry['Id']}"}
            if batch == 1:
                del entry["Id"]
        return entries

    async def _all(
        self, verb: str, batch: int, what: Callable[[Any], tuple[str, Parameters]], arguments: Any
    ) -> tuple[Figure, list[Parameters]]:
        """Makes a call for each argument, spread over the clients. Returns the figure and the answers."""
        left, answers, seconds = iter(arguments), [], []
        started = perf_counter()

        async def client(connection: _Connection) -> None:
            for argument in left:
                begun = perf_counter()
                if begun - started > LONGEST:
                    return
                action, parameters = what(argument)
                answers.append(await connection.call(action, self._queue | parameters))
                seconds.append(perf_counter() - begun)

        await asyncio.gather(*map(client, self._connections))
        rate = batch * len(answers) / (perf_counter() - started)
        if verb == "sent":
            self.rates[batch], self.sent[batch] = rate, seconds
        half, most = _percentiles(seconds)
        bounded = self._fifo and self.clients == CLIENTS[-1]
        return Figure(
            f"wire, {'FIFO' if self._fifo else 'standard'}: messages {verb} "
            f"{f'in batches of {batch}' if batch > 1 else 'one by one'}, {self.clients} clients",
            rate,
            bound=300 * batch if bounded else None,
            remark=f"p50 {half * 1000:.1f} ms, p99 {most * 1000:.1f} ms",
            unit="/s",
        ), answers


def _percentiles(seconds: list[float]) -> tuple[float, float]:
    cuts = quantiles(seconds * 2 if len(seconds) == 1 else seconds, n=100, method="inclusive")
    return cuts[49], cuts[98]
