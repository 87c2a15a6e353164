"""A consumer while storage fails: it waits, keeps what it can, says so, and gives up when it is told to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from consumer.harness import Harness, sleeper
from lakequeue import (
    ComputedRenewal,
    DamagedTable,
    HeartbeatRenewal,
    InvalidOptions,
    Outage,
    Outcome,
    QueueClientError,
    QueueDoesNotExist,
)

NO_NETWORK = QueueClientError("no network")


def records(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if message.startswith("storage of")]


def test_by_default_a_consumer_waits_for_the_end_of_an_outage(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.send("A")
    harness.fails(NO_NETWORK, until=300)
    consumer = harness.consumer(sleeper(0))
    with harness.running(consumer):
        harness.clock.advance(100)
        health = consumer.health
        assert (health.ok, health.running, health.last_error) == (False, True, "no network")
        assert health.outage_since == harness.queue.began
        harness.clock.advance(250)
        assert consumer.health.ok and consumer.health.last_error is None
    assert [body for _, body in harness.queue.deletes()] == ["A"]
    tried = [call.at for call in harness.queue.calls if call.verb == "receive"]
    assert tried[:8] == [0, 0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 61.5]  # 30 s at most
    told = records(caplog)
    assert told[0] == "storage of orders fails, the consumer waits until it is back: receiving: no network"
    assert told[-1] == "storage of orders works again after 302 s"
    between = [message.split(" for ")[1].split(":")[0] for message in told[1:-1]]
    assert between == ["62 s", "122 s", "182 s", "242 s"]
    assert not consumer.health.running


def test_handlers_that_end_do_not_hasten_the_next_try(harness: Harness) -> None:
    harness.send(*(str(number) for number in range(20)))
    harness.fails(NO_NETWORK, verbs="receive", since=0.1, until=100)
    harness.consume(harness.handler(lambda message: int(message.body) + 1), 60, concurrency=30)
    assert len(harness.queue.receives()) < 12


def test_what_was_handled_during_an_outage_is_kept_and_deleted_after_it(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.send("A")
    harness.fails(NO_NETWORK, since=1, until=60)
    consumer = harness.consumer(sleeper(20), concurrency=1)
    with harness.running(consumer):
        harness.clock.advance(25)
        assert not consumer.health.ok and consumer.health.active == 1
        harness.clock.advance(60)
        assert consumer.health.ok
    tried = [at for at, _ in harness.queue.deletes()]
    assert tried == [20, 20.5, 21.5, 23.5, 27.5, 35.5, 51.5, 81.5]
    renewals = [at for at, _ in harness.queue.changes()]
    assert renewals[:3] == [25, 26, 27] and 60 in renewals  # beyond the end of the timeout at 30
    assert harness.other.counts().visible == harness.other.counts().in_flight == 0
    assert records(caplog)[0].endswith("deleting: no network")


@pytest.mark.spec("RCP-8", "HNS-13")
@pytest.mark.parametrize("policy", [HeartbeatRenewal(), ComputedRenewal(30)])
def test_a_renewal_that_comes_late_keeps_the_message_if_nobody_took_it(harness: Harness, policy: Any) -> None:
    harness.send("A")
    harness.fails(NO_NETWORK, verbs="change", until=50)
    handler = harness.handler(100)
    with harness.running(harness.consumer(handler, concurrency=1, renewal=policy)):
        harness.clock.advance(49)
        assert harness.visible() == ["A"]
        harness.clock.advance(3)
        assert harness.visible() == []
        harness.clock.advance(50)
    assert handler.slept == [True]
    assert harness.queue.deletes() == [(100, "A")]


def test_a_receipt_lost_in_an_outage_is_not_deleted(harness: Harness) -> None:
    harness.send("A")
    harness.fails(NO_NETWORK, since=1, until=60)
    with harness.running(harness.consumer(sleeper(20), concurrency=1)):
        harness.clock.advance(45)
        [taken] = harness.other.receive(visibility_timeout=1_000)
        harness.clock.advance(100)
    assert max(at for at, _ in harness.queue.deletes()) < 60
    assert harness.other.counts().in_flight == 1
    harness.other.delete(taken.receipt_handle)


@pytest.mark.parametrize("busy", [False, True])
def test_a_consumer_gives_up_after_the_given_time(harness: Harness, busy: bool) -> None:
    harness.send("A")
    harness.fails(NO_NETWORK, since=1, until=1_000)
    handler = sleeper(1_000 if busy else 0)
    consumer = harness.consumer(handler, concurrency=1, outage=Outage(give_up_after=45), wait_time=1)
    with harness.running(consumer) as running:
        harness.clock.advance(26 + 44 if busy else 44)
        assert running.thread.is_alive()
        harness.clock.advance(100)
        assert running.join() is NO_NETWORK


def damaged(file: str = "a.parquet") -> DamagedTable:
    """The error of a receive that claimed only messages of a damaged file."""
    return DamagedTable("/root/q/key/0/messages", file, "is missing", outcome_unknown=True)


def test_damage_is_no_outage_and_is_logged_once_with_the_command_that_repairs_it(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.fails(damaged(), verbs="receive", until=200)
    consumer = harness.consumer(sleeper(0), wait_time=1)
    with harness.running(consumer):
        harness.clock.advance(60)
        assert consumer.health.ok
        harness.fails(damaged("b.parquet"), verbs="receive", until=200)
        harness.clock.advance(200)
        assert records(caplog) == []
    logged = [message for message in caplog.messages if "damaged messages" in message]
    repair = f"repair it: lakequeue --root {harness.lq.root} repair orders"
    assert [message.endswith(repair) for message in logged] == [True, True]
    assert [name in message for name, message in zip("ab", logged, strict=True)] == [True, True]


def test_a_table_that_was_replaced_is_an_outage(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    replaced = DamagedTable("/root/q/key/0/receipts", None, "was replaced during a commit", outcome_unknown=True)
    harness.fails(replaced, verbs="receive", until=200)
    consumer = harness.consumer(sleeper(0), wait_time=1)
    with harness.running(consumer):
        harness.clock.advance(60)
        assert not consumer.health.ok
        harness.clock.advance(200)
    assert "damaged messages" not in caplog.text


def test_damage_that_is_met_again_and_again_ends_a_consumer_that_gives_up(harness: Harness) -> None:
    met = damaged()

    def meets(verb: str, bodies: list[str]) -> None:
        if verb == "receive" and round(harness.now) % 30 == 0:  # others are received between
            raise met

    harness.queue.before = meets
    consumer = harness.consumer(sleeper(0), outage=Outage(give_up_after=75), wait_time=1)
    for _ in range(2):
        with harness.running(consumer) as running:
            harness.clock.advance(60)
            assert running.thread.is_alive()
            harness.clock.advance(120)
            assert running.join() is met
        harness.clock.advance(10)


def test_a_consumer_that_gave_up_waits_again_in_its_next_run(harness: Harness) -> None:
    harness.send("A")
    harness.fails(NO_NETWORK, until=45)
    consumer = harness.consumer(sleeper(0), outage=Outage(give_up_after=10))
    with harness.running(consumer) as running:
        harness.clock.advance(40)
        assert running.join() is NO_NETWORK
    with harness.running(consumer):
        harness.clock.advance(10)
    assert [body for _, body in harness.queue.deletes()] == ["A"]


def test_a_receive_ends_an_outage_if_nothing_is_left_to_write(harness: Harness) -> None:
    harness.send("A")
    harness.fails(NO_NETWORK, verbs="change", until=20)
    options: dict[str, Any] = {"renewal": HeartbeatRenewal(600, 590), "outage": Outage(give_up_after=60)}
    consumer = harness.consumer(sleeper(12, Outcome.FAILED), wait_time=1, **options)
    with harness.running(consumer) as running:
        harness.clock.advance(11)
        assert not consumer.health.ok
        harness.clock.advance(100)
        assert running.thread.is_alive() and consumer.health.ok


def test_a_paused_consumer_tries_again_before_it_gives_up(harness: Harness) -> None:
    harness.fails(NO_NETWORK, until=5)
    consumer = harness.consumer(sleeper(0), outage=Outage(give_up_after=60), wait_time=1)
    with harness.running(consumer) as running:
        harness.clock.advance(1)
        consumer.pause()
        harness.clock.advance(100)
        consumer.resume()
        harness.clock.advance(2)
        assert running.thread.is_alive() and consumer.health.ok


def denied() -> QueueClientError:
    error = QueueClientError("/data/queues: [Errno 13] Permission denied: '/data/queues/q'")
    error.__cause__ = PermissionError(13, "Permission denied")
    return error


LASTING: list[Callable[[], Exception]] = [
    denied,
    QueueDoesNotExist,
    lambda: QueueClientError("s3://b/q: access is denied (AccessDenied, GET http://s3/b/q); allow these …"),
    lambda: QueueClientError("s3://b/q: the bucket does not exist (NoSuchBucket); create it, or correct the root"),
]


@pytest.mark.spec("HBN-20")
@pytest.mark.parametrize("verb", ["receive", "change", "delete"])
@pytest.mark.parametrize("make_error", LASTING)
def test_an_error_that_waiting_cannot_fix_ends_the_consumer_at_once(
    harness: Harness, verb: str, make_error: Callable[[], Exception]
) -> None:
    harness.send("A")
    error = make_error()
    harness.fails(error, verbs=verb, until=1_000)
    with harness.running(harness.consumer(sleeper(25.5 if verb == "change" else 0), concurrency=1)) as running:
        harness.clock.advance(26)
        assert running.join() is error


def test_expired_credentials_are_waited_for_as_the_environment_may_renew_them(harness: Harness) -> None:
    harness.send("A")
    harness.fails(QueueClientError("s3://b/q: the credentials have expired (ExpiredToken); set new ones"))
    harness.consume(sleeper(0), 1)
    assert [body for _, body in harness.queue.deletes()] == ["A"]


def test_an_outage_of_writes_is_not_over_because_reads_work(harness: Harness) -> None:
    harness.send("A")
    harness.fails(NO_NETWORK, verbs="delete change", until=1_000)
    consumer = harness.consumer(sleeper(0), wait_time=1)
    with harness.running(consumer):
        harness.clock.advance(10)
        assert len(harness.queue.receives()) > 3
        assert not consumer.health.ok


def test_a_stop_ends_a_consumer_in_an_outage(harness: Harness) -> None:
    harness.fails(NO_NETWORK, until=1_000)
    consumer = harness.consumer(sleeper(0))
    with harness.running(consumer) as running:
        harness.clock.advance(100)
        consumer.stop()
        assert running.join() is None


@pytest.mark.spec("HBN-19")
def test_what_a_stop_cannot_hand_back_comes_again_at_its_timeout(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.send("A", "B")
    harness.fails(NO_NETWORK, verbs="change", until=1_000)
    consumer = harness.consumer(sleeper(1), concurrency=1, prefetch=1)
    with harness.running(consumer) as running:
        consumer.stop()
        harness.clock.advance(1)
        assert running.join() is None
    assert harness.queue.deletes() == [(1, "A")] and harness.visible() == []
    assert "handing back 1 messages failed: no network" in caplog.text
    harness.clock.advance(29)
    assert harness.visible() == ["B"]


def test_options_of_an_outage_are_checked() -> None:
    with pytest.raises(InvalidOptions) as refused:
        Outage(-1, 0, "long", True)  # type: ignore[arg-type]
    assert refused.value.problems == [
        "give_up_after: must be more than 0 seconds, not -1",
        "first_pause: must be more than 0 seconds, not 0",
        "longest_pause: must be seconds or a timedelta, not 'long'",
        "log_every: must be seconds or a timedelta, not True",
    ]
    with pytest.raises(InvalidOptions, match=r"longest_pause: must be at least first_pause \(2\), not 1"):
        Outage(first_pause=2, longest_pause=1)


# --- pausing


def test_a_pause_receives_nothing_and_lets_handlers_end(harness: Harness) -> None:
    harness.send("A")
    consumer = harness.consumer(sleeper(40), concurrency=2)
    with harness.running(consumer):
        harness.clock.advance(1)
        consumer.pause()
        assert consumer.health.paused
        harness.clock.advance(0)
        harness.send("B")
        asked = len(harness.queue.receives())
        harness.clock.advance(60)
        assert harness.queue.deletes() == [(40, "A")] and harness.queue.changes() == [(25, 30)]
        assert harness.visible() == ["B"] and len(harness.queue.receives()) == asked
        consumer.resume()
        harness.clock.advance(40)
    assert harness.queue.deletes() == [(40, "A"), (101, "B")]


@pytest.mark.spec("JOB-1")
def test_a_consumer_logs_the_pause_of_its_queue_once_and_its_end(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with harness.running(harness.consumer(sleeper(0), wait_time=5)):
        harness.clock.advance(20)
        harness.queue.pause("the bank is down")
        harness.clock.advance(20)
        harness.queue.resume()
        harness.clock.advance(20)
    paused, resumed = [each for each in caplog.messages if "paused" in each]
    assert "has been paused since " in paused and "Z: the bank is down; lakequeue resume " in paused
    assert resumed.endswith(" is no longer paused")


def test_what_comes_while_a_pause_begins_is_handed_back(harness: Harness) -> None:
    harness.send("A")
    handler = harness.handler()
    consumer = harness.consumer(handler)

    def pause(verb: str, bodies: list[str]) -> None:
        if verb == "receive":
            consumer.pause()

    harness.queue.before = pause
    with harness.running(consumer):
        harness.clock.advance(1)
        assert harness.visible() == ["A"] and not handler.begun
