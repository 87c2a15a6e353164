"""Airflow itself: its ``dag.test()``, its triggerer and its scheduler; ``.ci/schedulers`` runs it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import runpy
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from lakequeue import InvalidOptions, InvalidParameterValue, LakeQueue, Queue
from pages import blocks

pytestmark = [pytest.mark.schedulers, pytest.mark.timeout(800)]
SECRET = "hunter2-hunter2"


@attrs.frozen
class Airflow:
    """An installation of its own: settings, metadata in SQLite, and the DAGs of the page."""

    home: Path
    lake: LakeQueue

    @property
    def dags(self) -> Path:
        return self.home / "dags"

    @property
    def log(self) -> str:
        return "".join(path.read_text() for path in self.home.rglob("*.log"))

    def run(self, *command: str) -> None:
        path = self.home / "commands.log"
        with open(path, "a") as log:
            done = subprocess.run(self.program(*command), stdout=log, stderr=log, timeout=300)
        assert done.returncode == 0, path.read_text()[-3000:]

    def program(self, *command: str) -> list[str]:
        return [sys.executable, "-m", "airflow", *command]

    def rows(self, query: str) -> list[Any]:
        with closing(sqlite3.connect(self.home / "airflow.db", timeout=60)) as database:
            return database.execute(query).fetchall()

    def write(self, statement: str) -> None:
        with closing(sqlite3.connect(self.home / "airflow.db", timeout=60)) as database, database:
            database.execute(statement)

    @contextmanager
    def running(self, service: str) -> Iterator[subprocess.Popen[bytes]]:
        """A service of Airflow, killed at the end."""
        with open(self.home / f"{service}.log", "ab") as log:
            process = subprocess.Popen(
                self.program(service, "--skip-serve-logs"), stdout=log, stderr=log, start_new_session=True
            )
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until(reached: Callable[[], object], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "gave up"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    home = tmp_path_factory.mktemp("airflow")
    (home / "dags").mkdir()
    for number, block in enumerate(blocks("docs/guides/airflow.md")):
        source = re.sub(r"visibility_timeout=\d+", "visibility_timeout=5", block.source)  # tests wait for its end
        (home / "dags" / f"page_{number}.py").write_text(source)
    connection = {
        "conn_type": "lakequeue",
        "host": str(home / "queues"),
        "password": json.dumps({"AWS_SECRET_ACCESS_KEY": SECRET}),
    }
    settings = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW_CONN_LAKEQUEUE_DEFAULT": json.dumps(connection),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        # the triggers of a killed triggerer go to the next one after this time
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "3",
        "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
        "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK": "False",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        found = Airflow(home, LakeQueue(str(home / "queues")))
        found.run("db", "migrate")
        yield found


def run_of(airflow: Airflow, name: str, source: str) -> Any:
    """The run of a DAG of this source, by ``dag.test()``."""
    path = airflow.dags / f"{name}.py"
    path.write_text(source)
    return runpy.run_path(str(path))["dag"].test()


def test_airflow_finds_the_provider(airflow: Airflow) -> None:
    from airflow.providers_manager import ProvidersManager

    manager = ProvidersManager()
    assert manager.hooks["lakequeue"].connection_type == "lakequeue"  # type: ignore[union-attr]
    assert "lakequeue.integrations.airflow.LakeQueueMessageQueueProvider" in manager.queue_class_names


def test_the_page_s_dag_sends_waits_and_deletes(airflow: Airflow, capfd: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(airflow.dags / "page_0.py"), run_name="__main__")
    printed = capfd.readouterr()
    assert "packed: ['fragile', '{\"parcel\":7}']" in printed.out + printed.err
    assert SECRET not in printed.out + printed.err
    counts = airflow.lake.queue("parcels").counts()
    assert (counts.visible, counts.in_flight) == (0, 0)


WAITS = """
from airflow.sdk import DAG
from lakequeue.integrations.airflow import LakeQueueSensor

with DAG("NAME") as dag:
    LakeQueueSensor(task_id="wait", queue_name="NAME", OPTIONS)
"""


def test_a_sensor_that_fails_leaves_its_message_for_the_next_try(airflow: Airflow) -> None:
    queue = airflow.lake.create_queue("failing")
    queue.send("a book")
    source = "def fail(context, result):\n    raise ValueError\n" + WAITS
    run = run_of(airflow, "failing", source.replace("NAME", "failing").replace("OPTIONS", "post_execute=fail"))
    assert (run.state, queue.counts().in_flight) == ("failed", 1)


def test_a_sensor_may_leave_its_messages_to_later_tasks(airflow: Airflow) -> None:
    queue = airflow.lake.create_queue("kept")
    queue.send("a book")
    run = run_of(airflow, "kept", WAITS.replace("NAME", "kept").replace("OPTIONS", "delete=False"))
    [message] = run.get_task_instance("wait").xcom_pull("wait")
    queue.delete(message["receipt_handle"])
    assert (run.state, message["body"], queue.counts().in_flight) == ("success", "a book", 0)


def test_a_repeated_try_sends_once_to_a_fifo_queue(airflow: Airflow) -> None:
    from lakequeue.integrations.airflow import LakeQueuePublishOperator

    @attrs.frozen
    class Try:
        dag_id, task_id, run_id, map_index = "d", "t", "manual 1", -1

    queue = airflow.lake.create_queue("orders.fifo", fifo=True)
    publish = LakeQueuePublishOperator(task_id="t", queue_name="orders.fifo", messages=["a", "b"], group_id="g")
    assert publish.execute({"ti": Try()}) == publish.execute({"ti": Try()})
    assert queue.counts().visible == 2


def test_what_is_no_list_of_messages_is_refused_not_sent_by_its_keys(airflow: Airflow) -> None:
    from lakequeue.integrations.airflow import LakeQueuePublishOperator

    publish = LakeQueuePublishOperator(task_id="t", queue_name="orders", messages={"parcel": 7})  # type: ignore[arg-type]
    with pytest.raises(InvalidParameterValue, match=r"messages .*a text or a list"):
        publish.execute({})


def connection(**fields: Any) -> Any:
    from airflow.sdk import Connection

    return Connection(conn_id="lake", conn_type="lakequeue", **fields)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "connection lake: host: must be the root"),
        ({"host": "/r", "extra": '{"AWS_SECRET_ACCESS_KEY": "hunter2-hunter2"}'}, "lake: extra: must be empty"),
        ({"host": "/r", "password": SECRET}, "connection lake: password: must be the storage options"),
        ({"host": "/r", "password": '{"AWS_SECRET_ACCESS_KEY": 5}'}, "connection lake: password: must be"),
    ],
)
def test_a_wrong_connection_is_named_and_not_shown(airflow: Airflow, fields: dict[str, str], problem: str) -> None:
    from lakequeue.integrations.airflow_triggers import root_of

    with pytest.raises(InvalidOptions) as raised:
        root_of(connection(**fields))
    assert problem in str(raised.value) and SECRET not in str(raised.value)


def test_storage_options_are_masked_in_logs_and_in_the_api(airflow: Airflow) -> None:
    from airflow.api_fastapi.core_api.datamodels.connections import ConnectionResponse
    from airflow.models import Connection
    from airflow.sdk.log import redact

    from lakequeue.integrations.airflow_triggers import root_of

    options = json.dumps({"AZURE_STORAGE_ACCOUNT_KEY": "an-account-key"})
    root_of(connection(host="/r", password=options))
    assert "an-account-key" not in str(redact("signed with an-account-key"))
    stored = Connection(conn_id="lake", conn_type="lakequeue", host="/r", password=options)
    assert "an-account-key" not in ConnectionResponse.model_validate(stored).model_dump_json()


def test_bad_arguments_fail_where_the_dag_is_read(airflow: Airflow) -> None:
    from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger

    from lakequeue.integrations.airflow import LakeQueueSensor

    with pytest.raises(InvalidParameterValue, match="max_messages"):
        LakeQueueSensor(task_id="wait", queue_name="orders", max_messages=0)
    with pytest.raises(InvalidParameterValue, match="max_messages"):
        MessageQueueTrigger(scheme="lakequeue", queue_name="orders", max_messages=0).serialize()


def test_two_hundred_waits_hold_no_thread_each(airflow: Airflow, monkeypatch: pytest.MonkeyPatch) -> None:
    from lakequeue.integrations import airflow_triggers

    queue = airflow.lake.create_queue("quiet")

    async def connected(conn_id: str) -> Any:
        return connection(host=airflow.lake.root)

    monkeypatch.setattr(airflow_triggers.BaseHook, "aget_connection", connected)

    async def first(trigger: Any) -> Any:
        return await anext(trigger.run())

    async def wait_together() -> tuple[int, list[Any]]:
        before = threading.active_count()
        waits = [
            asyncio.create_task(first(airflow_triggers.LakeQueueSensorTrigger("quiet", max_messages=1)))
            for _ in range(200)
        ]
        await asyncio.sleep(2)
        assert not any(wait.done() for wait in waits)
        threads = threading.active_count() - before
        for number in range(200):
            await asyncio.to_thread(queue.send, str(number))
        return threads, [event.payload[0]["body"] for event in await asyncio.gather(*waits)]

    threads, bodies = asyncio.run(wait_together())
    assert threads <= 70
    assert sorted(bodies) == sorted(map(str, range(200)))  # each message went to one


def events(airflow: Airflow, asset: str, of_runs: bool = False) -> list[str]:
    """Bodies of the messages whose events are stored, or of those that a DAG run has."""
    runs = "JOIN dagrun_asset_event r ON r.event_id = e.id" if of_runs else ""
    found = airflow.rows(
        f"SELECT e.extra FROM asset_event e {runs} JOIN asset a ON a.id = e.asset_id "
        f"WHERE a.name = '{asset}' ORDER BY e.id"
    )
    return [json.loads(extra)["payload"]["body"] for (extra,) in found]


def emptied(queue: Queue) -> bool:
    counts = queue.counts()
    return counts.visible == counts.in_flight == 0


def test_messages_start_dags_and_are_deleted_only_after_that_is_stored(airflow: Airflow) -> None:
    arrivals, deliveries = (airflow.lake.create_queue(name) for name in ("arrivals", "deliveries"))
    # what dag.test() left there would receive messages, too
    airflow.write("DELETE FROM trigger WHERE id NOT IN (SELECT trigger_id FROM asset_watcher)")
    airflow.run("dags", "reserialize")

    # it ends after it has received a message, before Airflow can store the event
    with airflow.running("triggerer"):
        wait_until(lambda: airflow.log.count("trigger ID") == 2)
        # under a lock of the database it would end at its next heartbeat, often before the message comes
        airflow.write(
            "CREATE TRIGGER refused BEFORE INSERT ON asset_event BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )
        arrivals.send("a crate")
        wait_until(lambda: "Trigger fired event" in airflow.log and "refused" in airflow.log)
        time.sleep(2)
        assert not emptied(arrivals)
    airflow.write("DROP TRIGGER refused")
    assert events(airflow, "arrivals") == []

    # storage is gone: the watchers wait, and are not started again and again
    hidden = airflow.home / "elsewhere"
    (airflow.home / "queues").rename(hidden)
    with airflow.running("triggerer"):
        wait_until(lambda: airflow.log.count("cannot be received, next try in") >= 6)
        assert airflow.log.count("trigger ID") == 4
        hidden.rename(airflow.home / "queues")
        wait_until(lambda: events(airflow, "arrivals") == ["a crate"])
        wait_until(lambda: emptied(arrivals))

        # two events before the scheduler comes: Airflow starts one run, with the first
        for body in "a sofa", "a lamp":
            deliveries.send(body)
            wait_until(lambda body=body: body in events(airflow, "deliveries"))
        with airflow.running("scheduler"):
            wait_until(lambda: "a sofa" in events(airflow, "deliveries", of_runs=True))
            wait_until(lambda: events(airflow, "arrivals", of_runs=True) == ["a crate"])

        # they are not deleted, so their events come again, and a run has the second one, too
        wait_until(lambda: events(airflow, "deliveries").count("a lamp") > 1)
        with airflow.running("scheduler"):
            wait_until(lambda: "a lamp" in events(airflow, "deliveries", of_runs=True))
        assert not emptied(deliveries)
    assert SECRET not in airflow.log
