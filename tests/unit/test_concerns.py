"""Which states of a queue deserve an operator's attention, on depths as queues have them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from datetime import datetime, timezone

import attrs
import pytest

from lakequeue import RedrivePolicy
from lakequeue.model.attributes import QueueAttributes
from lakequeue.model.clock import MICROS, from_micros, to_micros
from lakequeue.model.consumer_processes import ConsumerProcess
from lakequeue.model.pauses import Pause, resumed_at, started
from lakequeue.operations.advice import KINDS, Concern, ErrorCount, Remedy
from lakequeue.operations.concerns import GROWTH_SECONDS, KILLED_SECONDS, POISON_RECEIVES, found
from lakequeue.operations.consumer_concerns import OUTAGE_SECONDS, SILENT_SECONDS, STUCK_SECONDS, UNREAD_SECONDS
from lakequeue.operations.consumers import ActiveConsumer
from lakequeue.operations.depth import Depth
from lakequeue.operations.results import QueueCounts

NOW = to_micros(datetime(2026, 1, 1, tzinfo=timezone.utc))
OLD = UNREAD_SECONDS + 1.0


def kinds(
    visible: int = 0,
    in_flight: int = 0,
    delayed: int = 0,
    age: float | None = None,
    held_for: float | None = None,
    sources: tuple[str, ...] = (),
    before: int | None = None,
    undecided: int = 0,
    **attributes: object,
) -> list[str]:
    """The kinds of the warnings about a queue."""
    depth = Depth(NOW, QueueCounts(visible, in_flight, delayed, 0, age, undecided=undecided), 0)
    received = None if held_for is None else from_micros(NOW - round(held_for * MICROS))
    busy = [] if received is None else [ActiveConsumer("host:7", 1, received, received)]
    texts = found("orders", QueueAttributes.create(**attributes), depth, busy, sources, before)
    return [concern.kind for concern in texts if not concern.notice]


def test_a_used_queue_has_no_concern() -> None:
    assert kinds() == []
    assert kinds(visible=10_000, in_flight=9, age=3 * OLD, held_for=UNREAD_SECONDS - 1, before=9_950) == []


@pytest.mark.parametrize(("age", "expected"), [(OLD, ["unread"]), (OLD - 2, [])])
def test_a_queue_counts_as_unread_if_messages_wait_and_no_message_is_in_flight(
    age: float, expected: list[str]
) -> None:
    assert kinds(visible=1, age=age) == expected
    assert kinds(visible=1, in_flight=1, age=age) == []
    assert kinds(delayed=1, age=age) == [], "a delayed message waits for its time"
    assert kinds(visible=1, in_flight=1, age=2 * OLD, held_for=age) == expected, "of a client that may be gone"


def test_a_consumer_that_runs_is_busy_with_what_it_received_long_ago() -> None:
    received = from_micros(NOW - round(2 * OLD * MICROS))
    depth = Depth(NOW, QueueCounts(3, 1, 0, 0, 3 * OLD), 0)

    def concerns(*processes: ConsumerProcess) -> list[Concern]:
        busy = ActiveConsumer("packer", 1, received, received, processes)
        return [*found("orders", QueueAttributes.create(), depth, [busy], (), None)]

    assert concerns(PROCESS) == []
    [concern] = concerns()
    assert concern.brief == "3 visible, no receive for 30m2s"
    assert "the oldest is 45m3s old, and 1 in flight for 30m2s or longer" in concern.text


@pytest.mark.parametrize(("ago", "count"), [(UNREAD_SECONDS, 0), (UNREAD_SECONDS + 1, 1)])
def test_after_a_pause_consumers_have_time_to_receive(ago: int, count: int) -> None:
    depth = Depth(NOW, QueueCounts(1, 0, 0, 0, 4 * OLD), 0)
    paused, resumed = [Pause(None, "late", None)], NOW - ago * MICROS
    since = started((), paused, resumed)
    assert resumed_at(started(paused, (), NOW, since)) is None
    since = started((), (), NOW, since)
    attributes = attrs.evolve(QueueAttributes.create(), paused_since=since)
    assert (attributes.pauses, resumed_at(since)) == ([], from_micros(resumed))
    warned = [each.kind for each in found("orders", attributes, depth, [], (), None) if not each.notice]
    assert warned == ["unread"] * count


def test_a_paused_queue_is_paused_and_not_unread_or_growing() -> None:
    assert kinds(visible=1, age=OLD, paused="the bank is down") == ["paused"]
    assert kinds(visible=900, age=1.0, before=1, paused="the bank is down") == ["paused"]
    assert kinds(visible=1, age=OLD, paused_groups={"acme": "late"}) == ["paused", "unread"]


@pytest.mark.spec("TAB-10")
def test_undecided_deliveries_are_shown_also_once_the_queue_has_no_table() -> None:
    assert kinds(undecided=2, table="/lake/orders") == kinds(undecided=2) == ["undecided"]
    assert kinds(table="/lake/orders") == []


def test_dead_letters_are_no_unread_messages() -> None:
    assert kinds(visible=30, age=OLD, sources=("pay",)) == ["dead letters"]
    assert kinds(sources=("pay",)) == []


@pytest.mark.parametrize(
    ("before", "visible", "expected"),
    [(0, 100, ["growing"]), (0, 99, []), (1_000, 1_200, ["growing"]), (1_000, 1_199, []), (None, 9_999, [])],
)
def test_a_queue_grows_by_its_messages_and_its_share(
    before: int | None, visible: int, expected: list[str]
) -> None:
    assert kinds(visible=visible, in_flight=1, age=1.0, before=before) == expected


def test_a_queue_at_one_of_its_limits_is_full() -> None:
    limit = {"max_inflight_messages": 100}
    assert kinds(in_flight=95, age=1.0, **limit) == ["full"]
    assert kinds(in_flight=94, age=1.0, **limit) == []
    assert kinds(visible=40, in_flight=40, delayed=20, age=1.0, max_stored_messages=100) == ["full"]
    assert kinds(delayed=10, age=1.0, max_delayed_messages=10) == ["full"]


def test_a_consumer_that_holds_a_message_for_long_may_hang() -> None:
    assert kinds(in_flight=1, age=OLD, held_for=STUCK_SECONDS + 1) == ["stuck"]
    day = 24 * GROWTH_SECONDS
    assert kinds(in_flight=1, age=OLD, held_for=STUCK_SECONDS + 1, visibility_timeout=day // 2) == []
    assert kinds(in_flight=1, age=OLD, held_for=day, visibility_timeout=day // 2) == ["stuck"]


PROCESS = ConsumerProcess("worker-1", 4711, from_micros(NOW), from_micros(NOW), 0, None)


@pytest.mark.parametrize(
    ("visible", "handler", "receive", "timeout", "kind"),
    [
        (3, 301, 301, 30, "notice"),
        (3, UNREAD_SECONDS, 301, 30, "notice"),
        (3, UNREAD_SECONDS + 1, UNREAD_SECONDS + 1, 30, "warning"),
        (3, 300, 300, 30, ""),
        (0, 301, 301, 30, ""),
        (3, 301, 20, 30, ""),
        (3, 20, 301, 30, ""),
        (3, 400, 400, 41, ""),
        (3, 411, 411, 41, "notice"),
    ],
)
def test_handlers_are_stuck_sooner_if_all_are_old_and_messages_wait(
    visible: int, handler: float, receive: float, timeout: float, kind: str
) -> None:
    def ago(seconds: float) -> datetime:
        return from_micros(NOW - round(seconds * MICROS))

    depth = Depth(NOW, QueueCounts(visible, 2, 0, 0, OLD), 0)
    busy = [attrs.evolve(PROCESS, handlers=1, oldest_handler=ago(seconds)) for seconds in (OLD, handler)]
    first = max(handler, receive)
    consumers = [ActiveConsumer("packer", 2, ago(first), ago(receive), [*busy, PROCESS])]

    def concerns(**attributes: object) -> list[Concern]:
        given = QueueAttributes.create(visibility_timeout=timeout, **attributes)
        return [each for each in found("orders", given, depth, consumers, (), None) if each.kind == "stuck"]

    stuck = concerns()
    assert ["notice" if each.notice else "warning" for each in stuck] == ([kind] if kind else [])
    assert all("; all handlers are slow, and 3 visible messages wait" in each.text for each in stuck)
    assert all(each.brief.endswith(", 3 wait") for each in stuck)
    assert concerns(paused="audit") == []


def test_the_process_that_hangs_and_its_machine_are_named() -> None:
    received = from_micros(NOW - 2 * STUCK_SECONDS * MICROS)
    depth = Depth(NOW, QueueCounts(0, 1, 0, 0, OLD), 0)
    hanging = ActiveConsumer("packer", 1, received, received, [PROCESS])
    [concern] = found("orders", QueueAttributes.create(), depth, [hanging], (), None)
    assert "packer has held a message of orders for 2h" in concern.text
    assert [*concern.steps] == [
        Remedy("py-spy dump --pid 4711", "on worker-1 shows where its handler hangs"),
        Remedy("kill 4711", "on worker-1 ends it"),
    ]
    assert (
        concern.hint == "its messages return at once if it stops on SIGTERM, else after their visibility timeout"
    )
    hanging = attrs.evolve(hanging, processes=[attrs.evolve(PROCESS, dumps=True)])
    [concern] = found("orders", QueueAttributes.create(), depth, [hanging], (), None)
    told = "on worker-1 has it print where its handler hangs, to its log"
    ends = "within 30s, unless --drain-timeout is longer, and hands its messages back; kill -9 if it stays"
    ended = Remedy("kill 4711", f"on worker-1 ends it {ends}")
    assert [*concern.steps] == [Remedy("kill -USR1 4711", told), ended] and concern.hint == ""


def test_an_outage_is_named_once_with_the_consumer_that_is_in_it_longest() -> None:
    def known(seconds: float, pid: int) -> ActiveConsumer:
        process = attrs.evolve(
            PROCESS, pid=pid, outage_since=from_micros(NOW - round(seconds * MICROS)), outage_reason=f"error {pid}"
        )
        return ActiveConsumer("packer", 0, None, None, [process])

    def concerns(*known: ActiveConsumer) -> list[Concern]:
        return [
            *found(
                "orders", QueueAttributes.create(), Depth(NOW, QueueCounts(0, 0, 0, 0, None), 0), known, (), None
            )
        ]

    assert [each.notice for each in concerns(known(OUTAGE_SECONDS, 1))] == [True]
    [concern] = concerns(known(OUTAGE_SECONDS + 60, 1), known(7_200, 2), known(OUTAGE_SECONDS, 3))
    assert concern.brief == "storage has failed for 2h, for 3 consumers"
    assert (concern.kind, concern.notice) == ("outage", False)
    assert concern.text.endswith("for 3 consumers of orders: packer, process 2 on worker-1, and 2 more")
    assert concern.hint.startswith("error 2; do not restart it")
    [failing] = known(7_200, 2).processes
    failing = attrs.evolve(failing, failing_table="/lake/silver")
    [concern] = concerns(ActiveConsumer("packer", 0, None, None, [failing]))
    assert concern.text.startswith("the delivery table /lake/silver has failed for 2h, since ")
    assert concern.hint.startswith("error 2; once the table is back")


def test_a_message_without_a_known_process_is_released_by_its_consumer() -> None:
    received = from_micros(NOW - 2 * STUCK_SECONDS * MICROS)
    depth = Depth(NOW, QueueCounts(0, 1, 0, 0, OLD), 0)
    [concern] = found(
        "orders", QueueAttributes.create(), depth, [ActiveConsumer(None, 1, received, received)], (), None
    )
    assert commands(concern) == ['lakequeue reschedule orders --in-flight --where "consumer IS NULL"']
    named = ActiveConsumer("o'hara 7", 1, received, received)
    [concern] = found("orders", QueueAttributes.create(), depth, [named], (), None)
    assert shlex.split(commands(concern)[0])[3:] == [
        *("--in-flight", "--where", "consumer = ?", "--parameter", "o'hara 7")
    ]


def commands(concern: Concern) -> list[str]:
    return [step.command for step in concern.steps]


def expiring(age: float, stored: int = 1, sources: tuple[str, ...] = (), **attributes: object) -> list[Concern]:
    depth = Depth(NOW, QueueCounts(stored, 1, 0, 0, age), 0)
    concerns = found("orders", QueueAttributes.create(**attributes), depth, [], sources, None)
    return [concern for concern in concerns if concern.kind == "expiring"]


DAY = 24 * 3600


@pytest.mark.parametrize(("age", "count"), [(3 * DAY, 0), (3 * DAY + 1, 1), (4 * DAY - 1, 1), (4 * DAY, 0)])
def test_a_queue_whose_oldest_message_is_deleted_soon_is_named(age: float, count: int) -> None:
    assert len(expiring(age)) == len(expiring(age, sources=("pay",))) == count
    assert expiring(age, message_retention_period=14 * DAY) == []


def test_the_time_left_and_two_commands_are_shown_before_messages_expire() -> None:
    [concern] = expiring(3.5 * DAY, 9)
    assert concern.text == (
        "the oldest of the 10 messages of orders is deleted for good in 12h, 4d after its send"
    )
    assert commands(concern) == ["lakequeue set orders --retention 8d", "lakequeue peek orders"]
    [letters] = expiring(3.5 * DAY, sources=("pay",))
    assert "lakequeue redrive orders" in commands(letters) and "2 dead letters of orders" in letters.text
    [only] = expiring(3.5 * DAY, 0)
    assert only.text.startswith("the only message of orders is deleted")
    [longest] = expiring(14 * DAY - 60, message_retention_period=14 * DAY)
    assert commands(longest) == ["lakequeue peek orders"], "no queue keeps messages longer"


@pytest.mark.parametrize(("receives", "expected"), [(POISON_RECEIVES, ["poison"]), (POISON_RECEIVES - 1, [])])
def test_a_message_that_comes_again_and_again_is_named_if_nothing_takes_it_out(
    receives: int, expected: list[str]
) -> None:
    depth = Depth(NOW, QueueCounts(0, 1, 0, 0, 60.0), 1, receives=receives)

    def concerns(name: str = "orders", sources: tuple[str, ...] = (), **attributes: object) -> list[Concern]:
        return [*found(name, QueueAttributes.create(**attributes), depth, [], sources, None)]

    assert [each.kind for each in concerns()] == expected
    policy = RedrivePolicy("arn:aws:sqs:local:000000000000:dead", 20)
    assert concerns(redrive_policy=policy) == []
    assert "poison" not in [each.kind for each in concerns(sources=("pay",))]
    for concern in concerns("a.fifo", fifo=True):
        assert commands(concern) == [
            "lakequeue create a-failed.fifo --fifo",
            "lakequeue set a.fifo --dead-letter-queue a-failed.fifo --max-receive-count 5",
        ]


def test_of_the_same_kind_the_largest_comes_first() -> None:
    found = [Concern(str(number), "dead letters", "", number=number) for number in (2, 30, 4)]
    urgent = Concern("0", "expiring", "")
    assert [each.queue for each in sorted([*found, urgent], key=lambda each: each.order)] == ["0", "30", "4", "2"]


def test_concerns_have_an_order_and_commands() -> None:
    assert KINDS[0] == "expiring" and KINDS[-2:] == ("paused", "waiting")
    depth = Depth(NOW, QueueCounts(9, 0, 0, 0, 3.5 * DAY, undecided=1), 0)
    attributes = QueueAttributes.create(paused_groups={"a b": "late"})
    concerns = [*found("orders", attributes, depth, [], (), None)]
    assert [each.kind for each in sorted(concerns, key=lambda each: each.urgency)] == [
        *("expiring", "undecided", "unread", "paused")
    ]
    assert all(step.command and step.effect for each in concerns for step in each.steps)
    assert all(each.steps for each in concerns)
    assert [each.brief for each in concerns] == [
        "group a b paused",
        "oldest deleted in 12h",
        "9 visible, no receive for 3d12h",
        "1 undecided",
    ]
    [paused] = (each for each in concerns if each.kind == "paused")
    assert (paused.group, paused.reason, *commands(paused)) == (
        "a b",
        ": late",
        "lakequeue resume orders --group 'a b'",
    )


@pytest.mark.parametrize(("days", "late"), [(4, False), (6, True)])
def test_a_pause_longer_than_the_retention_says_that_messages_have_expired(days: int, late: bool) -> None:
    since = started([Pause(None, "audit", None)], (), NOW - days * 86_400 * MICROS)
    attributes = attrs.evolve(QueueAttributes.create(paused="audit"), paused_since=since)
    [concern] = found("orders", attributes, Depth(NOW, QueueCounts(0, 0, 0, 0, None), 0), [], (), None)
    told = "; longer than the retention period of 4d: older messages have expired" if late else ""
    assert (concern.brief, concern.reason) == ("paused", f": audit{told}")
    assert concern.since == from_micros(NOW - days * 86_400 * MICROS)
    assert concern.text.endswith(f": audit{told}")


@pytest.mark.parametrize(
    ("days", "retention", "notice"),
    [(1, 4 * DAY, True), (1.001, 4 * DAY, False), (0.5, DAY / 4, False), (None, 4 * DAY, False)],
)
def test_a_pause_is_a_notice_for_a_day(days: float | None, retention: float, notice: bool) -> None:
    began = None if days is None else from_micros(NOW - round(days * 86_400 * MICROS))
    since = None if began is None else started([Pause(None, "audit", None)], (), to_micros(began))
    attributes = QueueAttributes.create(paused="audit", message_retention_period=retention)
    attributes = attrs.evolve(attributes, paused_since=since)
    [concern] = found("orders", attributes, Depth(NOW, QueueCounts(0, 0, 0, 0, None), 0), [], (), None)
    assert (concern.notice, concern.advice.notice) == (notice, notice)


def test_a_pause_says_how_many_messages_wait_and_when_the_first_expires() -> None:
    attributes = QueueAttributes.create(paused="audit")
    [concern] = found("orders", attributes, Depth(NOW, QueueCounts(9, 0, 0, 0, DAY), 0), [], (), None)
    assert concern.text == "orders is paused: audit; 9 visible messages wait, the first expires in 3d"
    [concern] = found("orders", attributes, Depth(NOW, QueueCounts(0, 1, 0, 0, DAY), 0), [], (), None)
    assert concern.text == "orders is paused: audit"


def test_a_pause_without_a_reason_shows_no_reason() -> None:
    assert Pause(None, "paused", None).of("orders") == "orders is paused"
    assert Pause(None, "late", None).of("orders") == "orders is paused: late"


def test_consumers_that_run_and_receive_nothing_are_named_by_their_process() -> None:
    depth = Depth(NOW, QueueCounts(5, 0, 0, 0, OLD), 0)
    idle = ActiveConsumer("packer", 0, None, None, [PROCESS])
    [concern] = found("orders", QueueAttributes.create(), depth, [idle], (), None)
    assert concern.kind == "unread" and "though 1 consumer of it runs" in concern.text
    assert "process 4711 on worker-1" in concern.hint and "start" not in concern.hint
    [concern] = found("orders", QueueAttributes.create(), depth, [], (), None)
    assert "start its consumers" in concern.hint


def test_consumers_that_were_killed_are_named_with_their_last_report() -> None:
    later = attrs.evolve(PROCESS, pid=4712, seen_at=from_micros(NOW - 60 * MICROS))
    killed = attrs.evolve(PROCESS, seen_at=from_micros(NOW - 3_600 * MICROS))
    depth = Depth(NOW, QueueCounts(5, 0, 0, 0, OLD), 0)
    known = [ActiveConsumer(name, 0, None, None, (), [each]) for name, each in (("a", killed), ("b", later))]
    [concern] = found("orders", QueueAttributes.create(), depth, known, (), None)
    assert concern.hint == (
        "start its consumers, which were killed, are stopped or frozen, or cannot write to the root: "
        "b, process 4712 on worker-1, not seen since 2025-12-31 23:59:00Z; "
        "a, process 4711 on worker-1, not seen since 2025-12-31 23:00:00Z"
    )
    assert concern.brief == "5 visible, no receive for 15m1s, 2 consumers without a report"
    gone = attrs.evolve(known[0], silent=[attrs.evolve(killed, ended=True)])
    [concern] = found("orders", QueueAttributes.create(), depth, [gone], (), None)
    assert concern.hint == (
        "start its consumers, which were killed: "
        "a, process 4711 on worker-1, killed, last seen 2025-12-31 23:00:00Z"
    )


@pytest.mark.parametrize(("receives", "runs", "told"), [(3, False, True), (2, False, False), (3, True, False)])
def test_messages_of_killed_consumers_that_the_next_receive_would_move_get_more_receives_first(
    receives: int, runs: bool, told: bool
) -> None:
    policy = RedrivePolicy("arn:aws:sqs:local:000000000000:dead", 3)
    depth = Depth(NOW, QueueCounts(5, 0, 0, 0, OLD), 0, receives=receives)
    known = [ActiveConsumer("packer", 0, None, None, [PROCESS])] if runs else []
    [concern] = found("orders", QueueAttributes.create(redrive_policy=policy), depth, known, (), None)
    oldest = "; but the oldest message was received 3 times, so it goes to dead at the next receive"
    assert (oldest in concern.hint) is told
    first = "lakequeue set orders --dead-letter-queue dead --max-receive-count 8"
    assert (commands(concern)[0] == first) is told


@pytest.mark.parametrize(
    ("age", "seen", "runs", "expected"),
    [
        (KILLED_SECONDS + 1, 200, False, ["unread"]),
        (KILLED_SECONDS, 200, False, []),
        (KILLED_SECONDS + 1, SILENT_SECONDS + 1, False, []),
        (KILLED_SECONDS + 1, 200, True, []),
    ],
)
def test_a_queue_whose_consumers_were_killed_counts_as_unread_sooner(
    age: float, seen: int, runs: bool, expected: list[str]
) -> None:
    killed = attrs.evolve(PROCESS, seen_at=from_micros(NOW - seen * MICROS))
    known = [ActiveConsumer("a", 0, None, None, (), [killed])]
    known += [ActiveConsumer("b", 0, None, None, [PROCESS])] * runs
    depth = Depth(NOW, QueueCounts(5, 0, 0, 0, age), 0)
    assert loud(found("orders", QueueAttributes.create(), depth, known, (), None)) == expected
    held = [*known, ActiveConsumer(None, 1, *[from_micros(NOW - MICROS)] * 2)]
    depth = Depth(NOW, QueueCounts(5, 1, 0, 0, age), 0)
    assert loud(found("orders", QueueAttributes.create(), depth, held, (), None)) == [], "an SQS client receives"


def loud(concerns: Iterable[Concern]) -> list[str]:
    return [each.kind for each in concerns if not each.notice and each.kind != "silent"]


def test_what_a_killed_process_holds_is_freed_and_not_looked_into() -> None:
    received = from_micros(NOW - 2 * STUCK_SECONDS * MICROS)
    packer = ActiveConsumer("packer", 1, received, received, (), [attrs.evolve(PROCESS, seen_at=received)])
    depth = Depth(NOW, QueueCounts(0, 1, 0, 0, OLD), 0)
    [concern] = found("orders", QueueAttributes.create(), depth, [packer], (), None)
    assert concern.text.endswith("for 2h; process 4711 on worker-1, not seen since 2025-12-31 22:00:00Z")
    assert concern.consumer == "packer" and commands(concern)[0].startswith("lakequeue reschedule orders")
    gone = attrs.evolve(packer, silent=[attrs.evolve(PROCESS, ended=True)])
    [concern] = found("orders", QueueAttributes.create(), depth, [gone], (), None)
    last = "packer, process 4711 on worker-1, killed, last seen 2026-01-01 00:00:00Z"
    assert concern.text == f"a killed process has held 1 message of orders for 2h: {last}"
    assert concern.consumer == "packer" and commands(concern)[0].startswith("lakequeue reschedule orders")
    both = attrs.evolve(gone, processes=[attrs.evolve(PROCESS, pid=4712)])
    [concern] = found("orders", QueueAttributes.create(), depth, [both], (), None)
    assert "killed" not in concern.text and commands(concern)[-1] == "kill 4712"


@pytest.mark.parametrize(
    ("timeout", "seconds", "notice"),
    [(30, 1, True), (300, 1, True), (301, 1, False), (21_600, 1, False), (30, STUCK_SECONDS + 1, False)],
)
def test_what_a_killed_process_holds_is_named_at_once(timeout: int, seconds: int, notice: bool) -> None:
    received = from_micros(NOW - seconds * MICROS)
    returns_at = from_micros(NOW + timeout * MICROS)
    gone = attrs.evolve(GONE, oldest_receive=received, newest_receive=received, returns_at=returns_at)
    assert not gone.is_active
    [concern] = held_by(gone)
    assert (concern.kind, concern.notice) == ("abandoned", notice)
    assert concern.text.startswith("a killed process has held 5 messages of orders for ")


GONE = ActiveConsumer(
    *("packer", 5, from_micros(NOW), from_micros(NOW), (), [attrs.evolve(PROCESS, ended=True)]),
    returns_at=from_micros(NOW + 20_400 * MICROS),
)


def held_by(gone: ActiveConsumer, **attributes: object) -> list[Concern]:
    depth = Depth(NOW, QueueCounts(0, gone.in_flight, 0, 0, 9.0), 0)
    return [*found("orders", QueueAttributes.create(**attributes), depth, [gone], (), None)]


def test_what_a_killed_process_holds_comes_back_at_the_end_of_the_timeout_that_it_asked_for() -> None:
    [concern] = held_by(GONE)
    assert concern.hint == "they come back by themselves at 2026-01-01 05:40Z, in 5h40m"
    [one] = held_by(attrs.evolve(GONE, in_flight=1))
    assert one.hint == "it comes back by itself at 2026-01-01 05:40Z, in 5h40m"


def test_what_a_killed_process_holds_on_the_last_receive_does_not_come_back() -> None:
    policy = {"redrive_policy": RedrivePolicy("arn:aws:sqs:local:000000000000:dead", 3)}
    when = "at 2026-01-01 05:40Z, in 5h40m, as each death of a consumer counts as a receive"
    [every] = held_by(attrs.evolve(GONE, spent=5), **policy)
    assert every.hint == f"all go to dead at the next receive, {when}"
    [some] = held_by(attrs.evolve(GONE, spent=2), **policy)
    assert some.hint == f"2 of them go to dead at the next receive, {when}; the others come back then"
    [one] = held_by(attrs.evolve(GONE, in_flight=1, spent=1, returns_at=from_micros(NOW + MICROS)), **policy)
    assert (
        one.hint.startswith("it goes to dead at the next receive, at 2026-01-01 00:00Z, in 1s") and not one.notice
    )
    for concern in (every, some, one):
        assert commands(concern)[-1] == "lakequeue redrive dead" and len(commands(concern)) == 2


@pytest.mark.parametrize(("age", "runs", "count"), [(61, False, 1), (60, False, 0), (61, True, 0)])
def test_messages_without_a_known_consumer_are_a_notice_after_a_minute(age: int, runs: bool, count: int) -> None:
    depth = Depth(NOW, QueueCounts(3, 0, 0, 0, float(age)), 0)
    known = [ActiveConsumer("packer", 0, None, None, [PROCESS])] * runs
    notices = [*found("orders", QueueAttributes.create(), depth, known, (), None)]
    assert [(each.kind, each.notice) for each in notices] == [("waiting", True)] * count
    text = "3 messages of orders can be received, and no consumer of it is known to run"
    assert all(each.text == text for each in notices)


def test_dead_letters_of_several_errors_have_a_redrive_for_each_frequent_error() -> None:
    depth = Depth(NOW, QueueCounts(36, 0, 0, 0, 60.0), 0)
    [concern] = found("pay-dead", QueueAttributes.create(), depth, [], ("pay",), None)
    assert commands(concern) == ["lakequeue peek pay-dead", "lakequeue redrive pay-dead"]
    assert commands(concern.with_errors({"ValueError": ErrorCount(36, "")})) == commands(concern), (
        "one error: all of them"
    )
    several = concern.with_errors(
        {
            "ValueError": ErrorCount(20, "bad amount"),
            "my.Error": ErrorCount(9, ""),
            "a b": ErrorCount(4, ""),
            "KeyError": ErrorCount(3, "'id'"),
        }
    )
    assert [*map(str, several.steps)] == [
        "lakequeue peek pay-dead shows why",
        "lakequeue redrive pay-dead --error ValueError sends 20 of them back",
        "lakequeue redrive pay-dead --error my.Error sends 9 of them back",
        "lakequeue redrive pay-dead --error 'a b' sends 4 of them back",
        "lakequeue redrive pay-dead sends all back, once the causes are fixed",
    ]
    assert "failed with 20 ValueError, 9 my.Error, 4 a b, 3 KeyError" in several.advice.text
    assert several.advice.details == ["ValueError: bad amount", "KeyError: 'id'"]
    assert "ValueError: bad amount; KeyError: 'id'; a redrive runs handlers of pay again" in str(several.advice)
    killed = concern.with_errors({"": ErrorCount(32, ""), "ValueError": ErrorCount(4, "bad")})
    ends = ", failed with 4 ValueError, 32 without an error: a consumer was killed, or its timeout passed"
    assert killed.advice.text.endswith(ends)
    assert commands(killed)[1] == 'lakequeue redrive pay-dead --where "dead_letter_reason IS NULL"'


def test_a_limit_is_doubled_as_far_as_the_profile_allows() -> None:
    def full(limit: int, **attributes: object) -> Concern:
        depth = Depth(NOW, QueueCounts(0, limit, 0, 0, 1.0), 0)
        given = QueueAttributes.create(max_inflight_messages=limit, **attributes)
        [concern] = found("orders", given, depth, [], (), None)
        return concern

    assert commands(full(100)) == ["lakequeue set orders -a max_inflight_messages=200"]
