"""Roots and queues as arguments of other processes: what travels, and what is opened there."""

from __future__ import annotations

import asyncio
import copy
import multiprocessing
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from concurrency.harness import drain
from lakequeue import LakeQueue, Queue, QueueClientError, QueueDoesNotExist, aio
from lakequeue.model.redrive_policies import QueueLocation
from lakequeue.runtime.root import Root
from lakequeue.storage.stores import Store
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, each_case, replace, shown_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spec("JOB-13")

SECRETS = {
    "AWS_ACCESS_KEY_ID": "keep1",
    "aws_secret_access_key": "keep2",
    "session_token": "keep3",
    "aws_sse_customer_key_base64": "keep4",
    "proxy_url": "http://me:keep5@proxy",
}
PUBLIC = {
    "aws_region": "eu",
    "AWS_ENDPOINT_URL": "https://store:9",
    "aws_sse_kms_key_id": "id",
    "timeout": "9s",
}


@pytest.fixture
def lq(tmp_path: Path) -> LakeQueue:
    return LakeQueue(str(tmp_path / "root"), poll_interval=0.2)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets this process open copies as another process would."""
    from lakequeue.runtime import root

    monkeypatch.setattr(root, "by_id", {})
    monkeypatch.setattr("lakequeue.runtime.pickled.by_id", {})


def through_cloudpickle(thing: Any) -> Any:
    from pyspark import cloudpickle  # as Spark, Dask and Ray send a function with what it refers to

    return cloudpickle.loads(cloudpickle.dumps(lambda: thing))()


def through_pickle(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


WAYS = [through_pickle, through_cloudpickle, copy.copy, copy.deepcopy]


@pytest.mark.parametrize("travel", WAYS)
def test_copies_are_the_same_root_and_queue(lq: LakeQueue, elsewhere: None, travel: Callable[[Any], Any]) -> None:
    orders = lq.create_queue("orders")
    root, queue = travel(lq), travel(orders)
    assert (root.root, root.region, repr(root)) == (lq.root, "local", repr(lq))
    assert (queue.name, queue.region, queue.key, queue.arn) == (orders.name, "local", orders.key, orders.arn)
    queue.send("there")
    root.queue("orders").send("too")
    assert drain(orders) == ["there", "too"]
    assert travel(queue).key == orders.key


def work(task: tuple[LakeQueue, Queue, aio.Queue, int]) -> tuple[str, int, float]:
    lake, queue, asked, number = task

    async def sent() -> str:
        [message] = await asked.receive(wait_time=5)
        await message.delete()
        await asked.send(f"{message.body} done by {number}")
        return message.body

    from lakequeue.runtime.root import by_id

    lake.queue("log").send(queue.name)
    return asyncio.run(sent()), len(by_id), lake._runtime.poll_interval


def test_processes_of_multiprocessing_take_queues_as_arguments(lq: LakeQueue) -> None:
    orders, log = lq.create_queue("orders"), lq.create_queue("log")
    for number in range(4):
        orders.send(str(number))
    asked = asyncio.run(aio.LakeQueue(lq.root, poll_interval=0.2).queue("orders"))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        done = list(pool.map(work, [(lq, orders, asked, number) for number in range(4)]))
    assert [body for body, _, _ in done] == list("0123")
    assert {roots for _, roots, _ in done} == {1} and {poll for _, _, poll in done} == {200_000}
    assert drain(log) == ["orders"] * 4
    assert drain(orders) == [f"{number} done by {number}" for number in range(4)]


def test_all_copies_in_a_process_share_one_open_root(lq: LakeQueue, elsewhere: None) -> None:
    orders = lq.create_queue("orders")
    copies = [through_pickle(orders)._runtime for _ in range(3)]
    assert len({id(each.root) for each in copies}) == len({id(each.shards) for each in copies}) == 1
    other = LakeQueue(lq.root, region="eu")
    assert through_pickle(other)._runtime is not copies[0].root
    assert through_pickle(other)._runtime.catalog is copies[0].root.catalog  # options decide over handles


def test_options_that_differ_are_opened_apart(elsewhere: None) -> None:
    roots = [LakeQueue("s3://lake/a", storage_options={"timeout": each}) for each in ("5s", "9s", "9s")]
    a, b, c = (through_pickle(each)._runtime for each in roots)
    assert a is not b and b is c and a.catalog is not b.catalog


def test_in_its_own_process_a_copy_is_opened_as_it_was(tmp_path: Path) -> None:
    lakes = [LakeQueue("s3://lake/a", storage_options=PUBLIC | {"aws_secret_access_key": each}) for each in "ab"]
    assert [through_pickle(each)._runtime for each in lakes] == [each._runtime for each in lakes]


@pytest.mark.parametrize("travel", WAYS)
def test_a_queue_that_was_created_again_is_another_one(
    lq: LakeQueue, elsewhere: None, travel: Callable[[Any], Any]
) -> None:
    sent = travel(lq.create_queue("orders"))
    lq.delete_queue("orders")
    again = lq.create_queue("orders")
    assert (repr(sent), sent.name) == ("Queue('orders', region='local')", "orders")  # asks nobody
    for _ in range(2):
        with pytest.raises(QueueDoesNotExist, match="orders in .* was deleted since it was pickled"):
            sent.send("lost")
    assert drain(again) == []


@pytest.mark.parametrize("where", ["options", "environment"])
def test_no_secret_is_in_the_bytes(where: str, monkeypatch: pytest.MonkeyPatch, elsewhere: None) -> None:
    given = SECRETS | PUBLIC
    if where == "environment":
        for name, value in {"AWS_SECRET_ACCESS_KEY": "keep6", "AWS_SESSION_TOKEN": "keep7"}.items():
            monkeypatch.setenv(name, value)
    lake = LakeQueue("s3://lake/a", storage_options=given)
    data = pickle.dumps((lake, aio.LakeQueue("s3://lake/a", storage_options=given)))
    assert b"keep" not in data
    [there, _] = pickle.loads(data)
    assert there._runtime.engine.store.options == PUBLIC


# every option of obstore that must not travel; a new one of these words has to be sorted here
HELD = """
access_key access_key_id account_key application_credentials bearer_token client_id client_secret
container_authorization_token_file container_credentials_full_uri container_credentials_relative_uri encryption_key
fabric_session_token fabric_token_service_url federated_token_file sas_key sas_token secret_access_key
service_account service_account_key session_token sse_customer_key_base64 token web_identity_token_file
"""


def test_every_option_of_a_store_is_known_as_a_secret_or_not() -> None:
    import ast

    import obstore

    stubs = Path(obstore.__file__).parent / "_store"
    names = {
        node.target.id
        for path in stubs.glob("_*.pyi")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    shown = Store("s3://lake/a", dict.fromkeys(names, "x")).public_options
    assert sorted(names - shown.keys()) == sorted([*HELD.split(), "default_headers"])


def test_a_queue_keeps_the_key_of_its_receipt_handles_at_home(lq: LakeQueue) -> None:
    queue = lq.create_queue("orders")
    assert queue._runtime.row.handle_key not in pickle.dumps(queue)


def test_a_clock_does_not_travel(tmp_path: Path) -> None:
    queue = LakeQueue(str(tmp_path / "root"), clock=ManualClock()).create_queue("orders")
    with pytest.raises(QueueClientError, match="clock of its own cannot be pickled"):
        pickle.dumps(queue)


def test_a_lease_says_what_travels_instead_and_handles_do(lq: LakeQueue, elsewhere: None) -> None:
    orders = lq.create_queue("orders")
    for each in "ab":
        orders.send(each)
    lease = orders.lease(10)
    with pytest.raises(TypeError, match="a Lease cannot be pickled.*Queue.delete_batch takes"):
        pickle.dumps(lease)
    handles = lease.arrow(["receipt_handle"])["receipt_handle"].to_pylist()
    there, handles = through_pickle((orders, handles))
    assert not there.delete_batch(handles[:1]).failed
    assert lease.release().done == 1


def test_a_message_travels_as_data(lq: LakeQueue, elsewhere: None) -> None:
    orders = lq.create_queue("orders")
    orders.send("a")
    there, [message] = through_pickle((orders, orders.receive()))
    there.delete(message)
    assert orders.counts().in_flight == 0


FORKED = """
import multiprocessing, pickle, sys
from lakequeue import LakeQueue

def work(queue):
    try:
        return queue.send("child").message_id and "sent"
    except Exception as error:
        return f"{type(error).__name__}: {error} {queue!r}"

if __name__ == "__main__":
    queue = pickle.loads(bytes.fromhex(sys.argv[1]))
    if sys.argv[2] == "used":
        queue.counts()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        print(pool.apply_async(work, [queue]).get(30))
"""


@pytest.mark.parametrize("before", ["fresh", "used"])
def test_a_forked_child_opens_it_unless_its_parent_used_storage(lq: LakeQueue, before: str) -> None:
    data = pickle.dumps(lq.create_queue("orders")).hex()
    done = subprocess.run([sys.executable, "-c", FORKED, data, before], capture_output=True, text=True, timeout=60)
    wanted = "sent" if before == "fresh" else "QueueClientError: lakequeue cannot be used after fork()"
    assert done.stdout.startswith(wanted), done
    assert (done.stdout == "sent\n") or "Queue('orders'" in done.stdout


@pytest.mark.spark
def test_tasks_of_spark_send_and_settle(tmp_path: Path, spark: SparkSession) -> None:
    lq = LakeQueue(str(tmp_path / "root"), spark=spark)
    orders, results = lq.create_queue("orders"), lq.create_queue("results", shards=2)
    orders.send_dataframe(spark.range(40).selectExpr("string(id) AS body"))
    lease = orders.lease(100, 300)

    def handle(rows: Any) -> None:
        done = []
        for row in rows:
            results.send(f"{row.body} done")
            done.append(row.receipt_handle)
        assert not orders.delete_batch(done).failed
        assert lq.spark is None

    lease.messages.repartition(3).foreachPartition(handle)
    assert sorted(drain(results)) == sorted(f"{number} done" for number in range(40))
    assert orders.counts().visible == orders.counts().in_flight == 0


def take_any_queue_of_the_name(patch: pytest.MonkeyPatch) -> None:
    living = Root.living
    patch.setattr(
        Root, "living", lambda self, key: self.living_at(QueueLocation(self.region, "orders")) or living(self, key)
    )


def open_the_same_way_as_here(root: str) -> tuple[LakeQueue, None, Callable[[Any], Any]]:
    return LakeQueue(root), None, through_pickle


MUTATIONS = [
    Mutation(
        "take any queue of the name",
        take_any_queue_of_the_name,
        {shown_by(test_a_queue_that_was_created_again_is_another_one, open_the_same_way_as_here): "JOB-13"},
    ),
    Mutation(
        "ship all options",
        replace(Store, "public_options", Store.portable_options),
        {shown_by(test_every_option_of_a_store_is_known_as_a_secret_or_not, lambda root: ()): "JOB-13"},
    ),
]


@each_case(MUTATIONS)
def test_safeguards_are_missed(case: Case, tmp_path: Path, elsewhere: None) -> None:
    case.run(lambda _: (str(tmp_path / "root"),), (pytest.fail.Exception,))
