"""Workers that judge conditions: how they start, what they may have, and how they end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hostile import BODY_ONLY, SLOW, SLOW_BODY, rows
from lakequeue.conditions import sandbox
from lakequeue.conditions.predicate import Predicate
from lakequeue.conditions.sandbox import Crashed, Interrupted, Sandbox, Slow
from lakequeue.errors import InvalidParameterValue, QueueClientError, RequestThrottled
from lakequeue.model.clock import Interrupt

PATIENCE = 60.0
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def judging(text: str) -> dict[str, str]:
    return {"what": "judge", "text": text}


def wait_until(condition: Callable[[], object]) -> None:
    """Waits in real time for another process."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it does not come true"
        time.sleep(0.01)


def process_of(workers: Sandbox) -> int:
    """The only worker, which is idle."""
    (worker,) = workers._idle
    return worker._process.pid


@pytest.fixture
def workers() -> Iterator[Sandbox]:
    found = Sandbox()
    yield found
    found.close()


def test_a_worker_is_asked_again(workers: Sandbox):
    assert workers.ask(judging("body = 'a'"), rows("a", "b", "a")).marks == b"\1\0\1"
    first = process_of(workers)
    assert workers.ask(judging("body = 'b'"), rows("a", "b")).marks == b"\0\1"
    assert workers.ask(judging("body = 'b'"), rows()).marks == b""
    assert process_of(workers) == first


def test_a_worker_that_is_too_slow_is_ended_and_the_next_request_gets_another(workers, monkeypatch):
    monkeypatch.setattr(sandbox, "SECONDS", 2.0)
    with pytest.raises(Slow):
        workers.ask(judging(SLOW), rows(SLOW_BODY))
    assert workers.ask(judging("true"), rows("a")).marks == b"\1"


def test_a_worker_that_crashes_is_named_by_its_signal_and_the_next_request_gets_another(workers: Sandbox):
    with pytest.raises(Crashed, match="SIG"):
        workers.ask(judging("json_contains(body, '1')"), rows("[" * 500_000 + "]" * 500_000))
    assert workers.ask(judging("true"), rows("a")).marks == b"\1"


def test_an_interrupt_ends_a_request_those_that_wait_and_those_to_come(workers, monkeypatch):
    monkeypatch.setattr(sandbox, "SECONDS", PATIENCE)
    monkeypatch.setattr(sandbox, "AT_ONCE", 1)
    interrupt = Interrupt()
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(workers.ask, judging(SLOW), rows(SLOW_BODY), interrupt) for _ in range(3)]
        wait_until(lambda: workers._busy and len(interrupt._wakes) == 3)
        interrupt.set()
        for each in asked:
            with pytest.raises(Interrupted):
                each.result(PATIENCE)
    with pytest.raises(Interrupted):
        workers.ask(judging("true"), rows("a"), interrupt)
    assert workers.ask(judging("true"), rows("a")).marks == b"\1"


def test_more_requests_than_workers_take_turns_or_are_refused(workers, monkeypatch):
    monkeypatch.setattr(sandbox, "AT_ONCE", 2)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: workers.ask(judging(f"body = '{n}'"), rows("3")).marks, range(8)))
    assert answers == [b"\1" if n == 3 else b"\0" for n in range(8)]
    assert len(workers._idle) <= 2
    monkeypatch.setattr(sandbox, "AT_ONCE", 0)
    monkeypatch.setattr(sandbox, "WAIT_SECONDS", 0.01)
    with pytest.raises(RequestThrottled, match="too many conditions"):
        workers.ask(judging("true"), rows("a"))


def test_a_worker_that_needed_much_memory_is_not_asked_again(workers, monkeypatch):
    monkeypatch.setattr(sandbox, "SECONDS", PATIENCE)
    grown = "replace(" * 12 + "body" + ", 'x', 'xxxxxxxxxx')" * 12
    assert "emory" in workers.ask(judging(f"length({grown}) > 5"), rows("x" * 100)).document["refused"]
    assert workers._idle == []


def test_a_worker_that_does_not_start_says_why(workers, monkeypatch, tmp_path):
    monkeypatch.setattr(sandbox.sys, "executable", str(tmp_path / "nothing"))
    with pytest.raises(QueueClientError, match="separate process, which does not start: .*nothing"):
        workers.ask(judging("true"), rows("a"))
    monkeypatch.undo()
    monkeypatch.setattr(sandbox.sys, "path", [str(tmp_path)])
    with pytest.raises(QueueClientError, match="does not start: .*No module named"):
        workers.ask(judging("true"), rows("a"))
    monkeypatch.undo()
    assert workers.ask(judging("true"), rows("a")).marks == b"\1"


def test_a_worker_that_died_or_was_idle_for_long_is_replaced(workers: Sandbox):
    workers.ask(judging("true"), rows("a"))
    first = process_of(workers)
    workers._idle[0].kill()
    workers._idle[0].wait()
    assert workers.ask(judging("true"), rows("a")).marks == b"\1" and process_of(workers) != first
    second = process_of(workers)
    workers._idle[0]._used -= sandbox.IDLE
    assert workers.ask(judging("true"), rows("a")).marks == b"\1" and process_of(workers) != second


@linux
def test_a_worker_loads_little_and_knows_no_secrets(workers, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-text")
    workers.ask(judging("body LIKE '%a%'"), rows("a"))
    process = Path(f"/proc/{process_of(workers)}")
    libraries = (process / "maps").read_text()
    assert "duckdb" in libraries and "libarrow" in libraries
    assert "deltalake" not in libraries and "numpy" not in libraries
    assert b"secret-text" not in (process / "environ").read_bytes()
    limits = (process / "limits").read_text()
    assert f"Max data size             {sandbox.MEMORY}" in limits
    assert "Max file size             0 " in limits and "Max core file size        0 " in limits


def test_workers_of_a_server_stand_back(workers: Sandbox):
    workers.nice = 3
    workers.ask(judging("true"), rows("a"))
    assert os.getpriority(os.PRIO_PROCESS, process_of(workers)) == os.getpriority(os.PRIO_PROCESS, 0) + 3


PROGRAM = """
import os, pathlib, sys
from lakequeue.conditions import sandbox
from lakequeue.conditions.predicate import Predicate
from hostile import BODY_ONLY, SLOW, SLOW_BODY, rows
"""


def run(script: str, **more: object) -> subprocess.Popen[str]:
    tests = str(Path(__file__).parents[1])
    code = f"import sys; sys.path.append({tests!r})\n{PROGRAM}\n{script}"
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, **more)  # type: ignore


def test_what_lies_in_the_working_directory_is_not_imported(tmp_path: Path):
    (tmp_path / "duckdb.py").write_text("open('taken', 'w')")
    script = """
import pyarrow as pa
from lakequeue.conditions.predicate import Predicate
assert Predicate("true", pa.schema([("body", pa.string())])).columns == frozenset()
"""
    with subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path) as process:
        assert process.wait(PATIENCE) == 0
    assert not (tmp_path / "taken").exists()


def test_a_fork_has_workers_of_its_own():
    script = """
true = Predicate("body = 'a'", BODY_ONLY)
if (child := os.fork()) == 0:
    os._exit(0 if true.select(rows("a", "b")).tolist() == [0] else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert true.select(rows("b", "a")).tolist() == [1]
"""
    with run(script) as process:
        assert process.wait(PATIENCE) == 0


def test_workers_of_a_large_process_are_as_good_as_others():
    script = """
large = bytearray(500 * 2**20)
true = Predicate("true", BODY_ONLY)
first = sandbox.shared._idle[0]
assert true.select(rows("a")).tolist() == [0]
assert sandbox.shared._idle == [first]
"""
    with run(script) as process:
        assert process.wait(PATIENCE) == 0


@linux
@pytest.mark.parametrize("busy", [False, True])
def test_workers_end_when_their_process_is_killed(busy: bool):
    script = f"""
import threading
sandbox.SECONDS = 2.0
slow = Predicate(SLOW, BODY_ONLY)
print(sandbox.shared._idle[0]._process.pid, flush=True)
if {busy}:
    slow.select(rows(SLOW_BODY))
sys.stdin.read()
"""
    with run(script, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        worker = Path(f"/proc/{int(process.stdout.readline())}")
        if busy:
            wait_until(lambda: "R" in (worker / "stat").read_text().rpartition(")")[2].split()[0])
        process.kill()
    wait_until(lambda: not worker.exists() or "Z" in (worker / "stat").read_text().rpartition(")")[2].split()[0])


def test_a_condition_for_two_threads_is_no_danger_to_either(monkeypatch):
    """A hostile condition of one thread does not touch the other one's."""
    monkeypatch.setattr(sandbox, "SECONDS", 2.0)
    true, slow = Predicate("body = 'a'", BODY_ONLY), Predicate(SLOW, BODY_ONLY)
    ended = threading.Event()

    def hostile() -> None:
        with pytest.raises(InvalidParameterValue, match="too slow"):
            slow.select(rows(SLOW_BODY))
        ended.set()

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(hostile)
        while not ended.is_set() and not done.done():
            assert true.select(rows("b", "a")).tolist() == [1]
        done.result(PATIENCE)
