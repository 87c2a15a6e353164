"""Worker processes that evaluate conditions. If a condition crashes or hangs, only its worker process ends."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import attrs
import pyarrow as pa

from lakequeue.errors import QueueClientError, RequestThrottled
from lakequeue.model.clock import Interrupt

AT_ONCE = 4
"""Maximum number of workers that evaluate at the same time. Further requests wait."""
WAIT_SECONDS = 60.0
"""Maximum seconds that a request waits for a free worker."""
START_SECONDS = 60.0
"""Maximum seconds that a worker may take to start. A slower worker is killed."""
SECONDS = 10.0
"""Maximum seconds that a worker may take for a batch of messages. Usually, hundredths of a second are enough."""
MEMORY = 768 * 2**20
"""Maximum bytes of data in a worker. A worker uses a quarter of them before its first request."""
IDLE = 60.0
"""Seconds without a request after which a worker ends."""

_PROGRAM = Path(__file__).with_name("evaluator.py")
# Isolated: imports come only from the package directories of this process, not from the working directory or
# the environment. Without NumPy, Arrow starts in half the time.
_START = (
    "import sys; sys.modules['numpy'] = None; path, *sys.path = sys.argv[1:]; "
    "exec(compile(open(path, 'rb').read(), path, 'exec'))"
)
_ENVIRONMENT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PATH", "SYSTEMROOT")
"""Names of the environment variables that a worker gets. Other variables may contain secrets."""
_END_SECONDS = 5.0
"""Maximum seconds to wait for the end of a worker that has closed its pipe."""


class Slow(Exception):
    """Raised if a worker took longer than ``SECONDS``. The worker was killed."""


class Crashed(Exception):
    """Raised if a worker ended before it replied."""


class Interrupted(QueueClientError):
    """Raised if the caller no longer needs the reply."""

    def __init__(self) -> None:
        super().__init__("the evaluation of the condition was interrupted")


@attrs.frozen
class Reply:
    """A worker's reply: a JSON document, and a byte for each evaluated row."""

    document: dict[str, Any]
    marks: bytes


class Worker:
    """A worker process, which runs the program ``evaluator``."""

    def __init__(self) -> None:
        # the working directory last, so that no file there takes the place of a package
        paths = sorted(filter(os.path.isabs, sys.path), key=lambda path: path == os.getcwd())
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        command = [sys.executable or "python3", "-I", "-S", "-c", _START, str(_PROGRAM), *paths]
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)
        except OSError as error:
            raise _not_started(str(error)) from error
        self._started = False
        self._used = monotonic()

    @property
    def usable(self) -> bool:
        """True if the worker runs and was used recently. A worker that is idle too long ends."""
        return self._process.poll() is None and monotonic() - self._used < IDLE / 2

    def start(self, nice: int) -> None:
        """Waits until the worker accepts requests. Raises QueueClientError if the worker cannot start."""
        if not self._started:
            with _killed_after(START_SECONDS, self, threading.Event()):
                self.send({"memory": MEMORY, "idle": IDLE, "nice": nice})
                self._started = self.receive() is not None
        if not self._started:
            self.wait()
            raise _not_started(self.end())

    def send(self, request: Mapping[str, Any], rows: bytes | memoryview = b"") -> None:
        """Sends a request. If the worker has ended, no error is raised here, and ``receive`` returns None."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(json.dumps({**request, "bytes": len(rows)}).encode() + b"\n")
            self._process.stdin.write(rows)
            self._process.stdin.flush()

    def receive(self) -> Reply | None:
        """Waits for the reply to a request. Returns None if the worker has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            return None
        document = json.loads(line)
        marks = self._process.stdout.read(document["bytes"])
        self._used = monotonic()
        return Reply(document, marks) if len(marks) == document["bytes"] else None

    def kill(self) -> None:
        """Kills the worker, from any thread."""
        self._process.kill()

    def wait(self) -> None:
        """Waits a few seconds for the end of a worker that no longer replies."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)

    def end(self) -> str:
        """Kills the worker. Returns the signal that ended the worker, or the last line of its errors."""
        self._process.kill()
        _, errors = self._process.communicate()
        status = self._process.returncode
        if status < 0:
            return signal.Signals(-status).name
        return (errors.decode(errors="replace").strip().splitlines() or [f"status {status}"])[-1]


class Sandbox:
    """The worker processes of this process. They start with niceness ``nice``. Thread-safe."""

    nice = 0

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._idle: list[Worker] = []
        self._busy = 0

    def ask(self, request: Mapping[str, Any], rows: pa.Table, interrupt: Interrupt | None = None) -> Reply:
        """Sends a request to a worker and returns its reply.

        Raises:
            Slow, Crashed: there is no reply, and a retry would not help.
            Interrupted: ``interrupt`` was set.
            RequestThrottled: the request waited too long for a free worker.
            QueueClientError: no worker can be started.
        """
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, rows.schema) as writer:
            writer.write_table(rows)
        interrupt = interrupt or Interrupt()
        with interrupt.waking(self._wake):
            worker = self._worker(interrupt)
        reply, ended, late = None, "", threading.Event()
        try:
            with interrupt.waking(worker.kill):
                if interrupt.is_set():
                    raise Interrupted
                worker.start(self.nice)
                with _killed_after(SECONDS, worker, late):
                    worker.send({**request, "seconds": SECONDS}, memoryview(stream.getvalue()))
                    reply = worker.receive()
                    if reply is None:
                        worker.wait()
        except QueueClientError:
            if interrupt.is_set():
                raise Interrupted from None
            raise
        finally:
            if reply is None or reply.document["last"] or late.is_set():
                ended = worker.end()
                self._give_back(None)
            else:
                self._give_back(worker)
        if reply is not None:
            return reply
        if interrupt.is_set():
            raise Interrupted
        raise Slow if late.is_set() or ended == "SIGXCPU" else Crashed(ended)

    def _give_back(self, worker: Worker | None) -> None:
        with self._changed:
            self._busy -= 1
            if worker is not None:
                self._idle.append(worker)
            self._changed.notify_all()  # a single waiter may be interrupted just now

    def close(self) -> None:
        with self._changed:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.end()

    def _worker(self, interrupt: Interrupt) -> Worker:
        with self._changed:
            free = self._changed.wait_for(lambda: self._busy < AT_ONCE or interrupt.is_set(), WAIT_SECONDS)
            if interrupt.is_set():
                raise Interrupted
            if not free:
                raise RequestThrottled("too many conditions are being evaluated; nothing was changed")
            self._busy += 1
            worker = self._idle.pop() if self._idle else None
        try:
            if worker is not None and not worker.usable:
                worker.end()
                worker = None
            return worker or Worker()
        except BaseException:
            self._give_back(None)
            raise

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


@contextmanager
def _killed_after(seconds: float, worker: Worker, late: threading.Event) -> Iterator[None]:
    """Kills the worker and sets ``late`` if the block takes longer than ``seconds``."""

    def end() -> None:
        late.set()
        worker.kill()

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _not_started(reason: str) -> QueueClientError:
    return QueueClientError(f"conditions are evaluated in a separate process, which does not start: {reason}")


shared = Sandbox()
atexit.register(shared.close)
if hasattr(os, "register_at_fork"):  # a fork must not use the workers of its parent
    os.register_at_fork(after_in_child=shared.__init__)  # type: ignore[misc]
