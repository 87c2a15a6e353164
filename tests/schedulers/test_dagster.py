"""Dagster itself: evaluations of the sensor, runs, and its daemon, killed; ``.ci/schedulers`` runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lakequeue import InvalidParameterValue, LakeQueue, Queue
from lakequeue.testing import ManualClock
from pages import agrees, blocks

pytestmark = [pytest.mark.schedulers, pytest.mark.timeout(600)]
PAGE = "docs/guides/dagster.md"


def test_the_code_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks(PAGE):
        exec(compile(block.source, PAGE, "exec", dont_inherit=True), names)
        printed = capsys.readouterr().out
        assert block.output is None or agrees(printed, block.output), printed


@pytest.fixture
def queue(lq: LakeQueue) -> Queue:
    return lq.create_queue("orders", visibility_timeout=60)


@pytest.fixture
def tick(lq: LakeQueue, queue: Queue) -> Iterator[Callable[..., Any]]:
    """Evaluates a sensor; the storage is that of ``lq``, with its clock."""
    import dagster as dg

    class Lake:
        queue = staticmethod(lq.queue)

    with dg.DagsterInstance.ephemeral() as instance:

        def evaluate(sensor: dg.SensorDefinition, cursor: str | None = None) -> Any:
            resources = {"lakequeue": dg.ResourceDefinition.hardcoded_resource(Lake())}
            with dg.build_sensor_context(instance=instance, cursor=cursor, resources=resources) as context:
                return sensor(context)

        evaluate.instance = instance  # type: ignore[attr-defined]
        yield evaluate


def sensor(run_request: Callable[[Any], Any] | None = None, **options: Any) -> Any:
    import dagster as dg

    from lakequeue.integrations.dagster import message_sensor

    request = run_request or (lambda message: dg.RunRequest(tags={"body": message.body}))
    return message_sensor("orders_sensor", "orders", request, job_name="work", **options)


def launch(tick: Any, request: Any, status: str) -> None:
    """A run of the request, as the daemon makes it."""
    import dagster as dg

    tags = {**request.tags, "dagster/run_key": request.run_key, "dagster/sensor_name": "orders_sensor"}
    tick.instance.create_run_for_job(
        dg.job(name="work")(lambda: None), tags=tags, status=dg.DagsterRunStatus[status]
    )


@pytest.mark.parametrize("status", ["STARTING", "STARTED", "FAILURE"])
def test_a_message_is_deleted_once_its_run_is_launched(tick: Any, queue: Queue, status: str) -> None:
    sent = queue.send("a book")
    first = tick(sensor())
    [request] = first.run_requests
    assert (request.run_key, request.tags["body"]) == (sent.message_id, "a book")
    assert queue.counts().in_flight == 1
    launch(tick, request, status)
    second = tick(sensor(), first.cursor)
    assert second.skip_reason and second.run_requests == [] and queue.counts().in_flight == 0


@pytest.mark.parametrize("created", [False, True])
def test_a_message_comes_again_if_its_run_is_not_launched(
    tick: Any, queue: Queue, clock: ManualClock, created: bool
) -> None:
    queue.send("a book")
    first = tick(sensor())
    if created:
        launch(tick, first.run_requests[0], "NOT_STARTED")
    second = tick(sensor(), first.cursor)
    assert second.run_requests == [] and queue.counts().in_flight == 1
    clock.advance(61)
    third = tick(sensor(), second.cursor)
    assert [request.run_key for request in third.run_requests] == [first.run_requests[0].run_key]


def test_a_message_whose_run_was_launched_by_a_killed_daemon_is_deleted(
    tick: Any, queue: Queue, clock: ManualClock
) -> None:
    queue.send("a book")
    launch(tick, tick(sensor()).run_requests[0], "STARTED")
    clock.advance(61)
    assert tick(sensor(), None).run_requests == []  # the cursor was never stored
    counts = queue.counts()
    assert counts.visible == counts.in_flight == 0


def test_a_function_that_fails_holds_up_no_other_message(tick: Any, queue: Queue) -> None:
    import dagster as dg

    def run_of(message: Any) -> Any:
        if message.body == "reason":
            return dg.SkipReason("of a sensor, not of a message")
        return dg.RunRequest(tags={"n": str(message.json()["n"])}) if message.body != "skip" else None

    for body in "no JSON", "skip", "reason", '{"n": 7}':
        queue.send(body)
    [request] = tick(sensor(run_of)).run_requests
    assert request.tags["n"] == "7"
    assert queue.counts().in_flight == 3  # that one and those that failed


def test_a_tick_waits_while_storage_is_gone(tick: Any, queue: Queue, lq: LakeQueue) -> None:
    import dagster as dg

    queue.send("a book")
    root = Path(lq.root)
    root.rename(root.with_name("elsewhere"))
    with lq:
        pass  # forgets what it has read
    skipped = tick(sensor())
    assert isinstance(skipped, dg.SkipReason) and "the messages of orders wait" in str(skipped.skip_message)
    root.with_name("elsewhere").rename(root)
    assert len(tick(sensor()).run_requests) == 1


def test_bad_arguments_fail_at_definition() -> None:
    with pytest.raises(InvalidParameterValue, match="max_messages"):
        sensor(max_messages=0)
    with pytest.raises(InvalidParameterValue, match="run_request"):
        sensor("no function")  # type: ignore[arg-type]


def test_secrets_of_a_resource_are_names_of_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dagster as dg

    from lakequeue.integrations.dagster import LakeQueueResource

    monkeypatch.setenv("QUEUES_SECRET", "hunter2-hunter2")
    options: Any = {"AWS_SECRET_ACCESS_KEY": dg.EnvVar("QUEUES_SECRET")}
    resource = LakeQueueResource(root=str(tmp_path / "queues"), storage_options=options)
    seen = []

    @dg.asset(required_resource_keys={"lakequeue"})
    def use(context) -> None:
        seen.append(context.resources.lakequeue.storage_options["AWS_SECRET_ACCESS_KEY"])

    with dg.DagsterInstance.ephemeral() as instance:
        dg.materialize([use], instance=instance, resources={"lakequeue": resource})
    assert seen == ["hunter2-hunter2"] and "hunter2" not in repr(resource)


@contextmanager
def daemon(home: Path) -> Iterator[None]:
    """Dagster's daemon with the page's definitions, killed at the end."""
    with open(home / "daemon.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dagster._daemon", "run", "-f", "page.py"],
            cwd=home,
            env=os.environ | {"DAGSTER_HOME": str(home)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_daemon_that_is_killed_loses_no_message_and_launches_no_run_twice(tmp_path: Path) -> None:
    import dagster as dg

    source = blocks(PAGE)[0].source.replace("minimum_interval_seconds=10", "minimum_interval_seconds=1")
    (tmp_path / "page.py").write_text(source)
    (tmp_path / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    queue = LakeQueue(str(tmp_path / "my-queues")).create_queue("new-files", visibility_timeout=5)
    instance = dg.DagsterInstance.from_config(str(tmp_path))
    files = [f"{number}.parquet" for number in range(4)]

    def until(reached: Callable[[], bool]) -> None:
        end = time.monotonic() + 240
        while not reached():
            assert time.monotonic() < end, (tmp_path / "daemon.log").read_text()[-4000:]
            time.sleep(0.1)

    def emptied() -> bool:
        counts = queue.counts()
        return counts.visible == counts.in_flight == 0

    for file in files[:2]:
        queue.send(json={"day": "2026-02-03", "file": file})
    with daemon(tmp_path):
        until(lambda: instance.get_runs_count() > 0)  # and is killed
    for file in files[2:]:
        queue.send(json={"day": "2026-02-04", "file": file})
    with daemon(tmp_path):
        until(emptied)
    assert sorted(run.tags["file"] for run in instance.get_runs()) == files
