"""Arguments of the wrong type: every argument of every public verb refuses them by name, and nothing changes.

What an argument accepts follows from its annotation.
"""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakequeue import Consumer, HeartbeatRenewal, LakeQueue, Lease, Queue, Schedules, SendEntry, aio, errors
from lakequeue.model.off_loop import OwnThreads
from lakequeue.testing import ManualClock
from wire_names import WIRE_NAMES

NOTHING = object()
WRONG = [
    None,
    "5",
    b"5",
    5,
    -1,
    1.5,
    True,
    math.nan,
    math.inf,
    Decimal("NaN"),
    [5],
    ["a"],
    {"a": NOTHING},
    NOTHING,
]
HUGE = [1e30, 10**30]

KINDS: dict[str, Callable[[Any], bool]] = {
    # what an argument of this kind accepts of the values above; the rest is refused
    "text": lambda value: isinstance(value, str),
    "text or none": lambda value: value is None or isinstance(value, str),
    "body": lambda value: isinstance(value, str),
    "whole": lambda value: type(value) is int and value >= 1,
    "whole or none": lambda value: value is None or (type(value) is int and value >= 1),
    "page": lambda value: value is None or (type(value) is int and 1 <= value <= 1_000),
    "seconds": lambda value: type(value) in (int, float) and 0 <= value <= 900,
    "seconds or none": lambda value: value is None or (type(value) in (int, float) and 0 <= value <= 900),
    "flag": lambda value: type(value) is bool,
    "values": lambda value: False,  # without a condition
    "texts": lambda value: value == ["a"],
    "texts or none": lambda value: value is None or value == ["a"],
    "mapping": lambda value: value is None,
    "anything": lambda value: True,
    "or none": lambda value: value is None,
    "object": lambda value: False,
    "version": lambda value: type(value) is int and value >= 0,
}

OF_TYPE = {
    **{
        "str": "text",
        "str | Message": "text",
        "OnBadRow": "text",
        "Changes": "text",
        "bool": "flag",
        "int": "whole",
    },
    **{"Duration": "seconds", "float": "seconds", "Any": "anything", "Sequence[Any]": "values"},
    **{"Sequence[str]": "texts", "Sequence[str | Message]": "texts"},
}
"""Kinds of arguments by annotation; ``or none`` follows what may be None, and anything else is an object."""
SPECIAL = {
    "LakeQueue.root_mode": "object",
    "LakeQueue.list_queues.limit": "page",
    **dict.fromkeys(("LakeQueue.register_views.now", "LakeQueue.register_views.as_of"), "views"),
    "LakeQueue.create_views.schema": "views",
    "LakeQueue.relay.start": "version",
    "Queue.send.body": "body",
    "Queue.sender.linger": "seconds",
    # the queue of this test is a standard one without priorities
    **dict.fromkeys((f"Queue.{verb}.priority" for verb in ("send", "send_arrow", "send_dataframe")), "or none"),
    **dict.fromkeys(("Queue.send.dedup_id", "Queue.receive.attempt_id"), "or none"),
    "Queue.send_arrow.data": "object",
    "Lease.delete_except.failed": "texts",
}
OTHER_WORDS = {
    # a wrong item is named, as SQS does
    "attributes": "message attribute",
    "system_attributes": "Message system attribute",
    "tags": "Tag",
}
CHECKS = ("roots.py", "lease_batches.py", "engines/transaction.py", "storage/catalog.py")
"""Modules of storage that check names, and those through which what is decided again is called."""
BASE: dict[str, dict[str, Any]] = {
    "Lease.append": {"rows": []},
    "LakeQueue.copy": {"to": LakeQueue("never-made")},
    "LakeQueue.relay": {"table": "none", "queue": NOTHING},  # judged last
    "Queue.send": {"body": "a"},
    "Queue.receive": {"wait_time": 0},
    "Queue.send_dataframe": {"df": type("Frame", (), {"select": print, "withColumn": print})()},
    "Queue.send_arrow": {"data": pa.table({"body": ["a"]})},
    "LakeQueue.create_queue": {"name": "new"},
    "LakeQueue.create_views": {"schema": "queues"},
    "Schedules.add": {"name": "a", "queue": "orders", "body": "a", "cron": "* * * * *"},
}
"""What else a verb is given, if an argument alone or ``NEEDED`` would not do."""
NEEDED = {
    "str": "none",
    "str | Message": "none",
    "Duration": 5,
    "datetime": datetime(2026, 1, 1, tzinfo=timezone.utc),
}
"""What arguments without a default are given, by annotation."""


def verbs() -> Iterator[tuple[str, Callable[..., Any]]]:
    yield "LakeQueue", LakeQueue
    for face in (LakeQueue, Queue, Lease, Schedules):
        for name, verb in vars(face).items():
            if not name.startswith("_") and inspect.isfunction(verb):
                yield f"{face.__name__}.{name}", verb


def kind_of(verb: str, argument: inspect.Parameter) -> str:
    """What an argument accepts."""
    if argument.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        return "any number"
    annotation = str(argument.annotation)
    needed = annotation.removesuffix(" | None")
    if needed.startswith(("Mapping[", "dict[")):
        return "mapping"
    known = OF_TYPE.get(needed, "" if needed != annotation else "object")
    return SPECIAL.get(f"{verb}.{argument.name}", known + " or none" * (needed != annotation)).strip()


def needed(verb: str) -> dict[str, Any]:
    """What a verb needs beside the argument that is wrong."""
    parameters = inspect.signature(dict(verbs())[verb]).parameters.values()
    without = [each for each in parameters if each.default is each.empty and str(each.annotation) in NEEDED]
    given = {
        each.name: NEEDED[str(each.annotation)] for each in without if each.kind is each.POSITIONAL_OR_KEYWORD
    }
    return given | BASE.get(verb, {})


def wrong(kind: str) -> list[Any]:
    values = WRONG if "whole" in kind else [*WRONG, *HUGE]
    return [value for value in values if not KINDS[kind](value)]


ARGUMENTS = [
    (verb, argument.name, kind_of(verb, argument))
    for verb, function in verbs()
    for argument in list(inspect.signature(function).parameters.values())
    if argument.name != "self" and verb != "Queue.receive_async"  # which checks as receive does
]
CASES = [each for each in ARGUMENTS if each[2] in KINDS and each[2] != "anything"]


def test_what_needs_a_kind_of_its_own_exists() -> None:
    assert SPECIAL.keys() <= {f"{verb}.{argument}" for verb, argument, _ in ARGUMENTS}
    assert {kind for _, _, kind in ARGUMENTS} == {*KINDS, "views", "any number"}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> LakeQueue:
    """A root of all cases, as each leaves it as it was."""
    return LakeQueue(str(tmp_path_factory.mktemp("types") / "root"), clock=ManualClock())


@pytest.fixture(scope="module")
def targets(lake: LakeQueue) -> Mapping[str, Callable[..., Any]]:
    queue = lake.create_queue("orders", rewind_range=3_600)
    queue.send_batch([SendEntry("a"), SendEntry("b")])
    (lease,) = [queue.lease(1)]
    faces: dict[str, Any] = {"LakeQueue": lake, "Queue": queue, "Lease": lease, "Schedules": lake.schedules}
    found: dict[str, Callable[..., Any]] = {
        verb: getattr(faces[verb.partition(".")[0]], verb.partition(".")[2]) for verb, _ in verbs() if "." in verb
    }

    def keep_alive(policy: Any) -> None:
        with lease.keep_alive(policy):
            pass

    return found | {
        "LakeQueue": lambda **given: LakeQueue(**{"root": lake.root} | given),
        "Lease.keep_alive": keep_alive,
    }


def refused(call: Callable[[], Any], name: str) -> None:
    """The call is refused with one line that has the argument's name, and not by storage."""
    with pytest.raises(errors.LakeQueueError) as error:
        call()
    text = str(error.value)
    assert isinstance(error.value, errors.QueueServiceError), repr(error.value)
    assert error.value.sender_fault
    assert name in text or OTHER_WORDS.get(name, name) in text, text
    assert not WIRE_NAMES.search(text), text
    assert "\n" not in text and len(text) < 500
    frames = [frame.filename for frame in traceback.extract_tb(error.value.__traceback__)]
    assert not [frame for frame in frames if "/lakequeue/storage/" in frame and not frame.endswith(CHECKS)]


@pytest.mark.spec("ERR-1", "ERR-8")
@pytest.mark.parametrize(("verb", "argument", "kind"), CASES, ids=[f"{v}-{a}" for v, a, _ in CASES])
def test_an_argument_of_the_wrong_type_is_refused_by_name(
    targets: Mapping[str, Callable[..., Any]], lake: LakeQueue, verb: str, argument: str, kind: str
) -> None:
    queue = lake.queue("orders")
    before = (queue.counts(), queue.attributes(), queue.tags(), len(lake.list_queues()))
    for value in wrong(kind):
        refused(lambda: targets[verb](**needed(verb) | {argument: value}), argument)  # noqa: B023
    assert (queue.counts(), queue.attributes(), queue.tags(), len(lake.list_queues())) == before


@pytest.mark.spec("ERR-1", "ERR-8")
def test_wrong_items_and_keywords_are_refused_by_name(lq: LakeQueue) -> None:
    queue = lq.create_queue("orders")
    for value in (None, 5, "a", NOTHING, {"body": "a"}):
        refused(lambda: queue.send_batch([SendEntry("a"), value]), "entries[1]")  # noqa: B023
        refused(lambda: queue.change_visibility_batch([("a", 5), value]), "changes[1]")  # noqa: B023
        refused(lambda: queue.change_visibility_batch([(value, 5, 5)]), "changes[0]")  # noqa: B023
    for value in (None, 5, NOTHING):
        refused(lambda: queue.delete_batch(["a", value]), "receipt_handles[1]")  # noqa: B023
        refused(lambda: queue.change_visibility_batch([(value, 5)]), "changes[0]")  # noqa: B023
        refused(lambda: queue.receive(attribute_names=["a", value]), "attribute_names[1]")  # noqa: B023
        refused(lambda: queue.set_tags(key=value), "Tag")  # noqa: B023
        refused(lambda: queue.remove_tags("a", value), "keys[1]")  # noqa: B023
        refused(lambda: queue.attributes([value]), "names[0]")  # noqa: B023
        refused(lambda: LakeQueue(lq.root, storage_options={"a": value}), "storage_options['a']")  # noqa: B023
    for value in (NOTHING, [5], math.nan, -1, "five"):
        refused(lambda: queue.set_attributes(visibility_timeout=value), "visibility_timeout")  # noqa: B023
        refused(lambda: lq.create_queue("new", delay=value), "delay")  # noqa: B023
    assert queue.counts().visible == 0 and queue.tags() == {}
    assert [one.name for one in lq.list_queues()] == ["orders"]


def test_a_consumer_wants_a_queue_whose_verbs_block(lq: LakeQueue) -> None:
    for value in (None, "orders", 5, lq, aio.Queue(lq.create_queue("orders"), OwnThreads(1))):
        with pytest.raises(errors.InvalidOptions, match="queue: must be a Queue"):
            Consumer(value, lambda message, context: None)


@pytest.mark.spec("BAT-4")
def test_wrong_fields_of_an_entry_fail_the_entry(lq: LakeQueue) -> None:
    queue = lq.create_queue("orders")
    entries = [
        *(SendEntry("a", delay=value) for value in ("5", NOTHING, math.nan, True)),
        *(SendEntry("a", attributes=value) for value in ("5", 5, [], NOTHING)),  # type: ignore[arg-type]
        *(SendEntry(value) for value in (5, b"a", [], NOTHING)),  # type: ignore[arg-type]
        *(SendEntry("a", group_id=value) for value in (5, [], NOTHING)),  # type: ignore[arg-type]
    ]
    result = queue.send_batch([SendEntry("good"), *entries])
    assert [one.id for one in result.successful] == ["0"]
    assert {one.code for one in result.failed} == {"InvalidParameterValue"}
    assert all(one.sender_fault for one in result.failed)


def test_a_huge_value_makes_one_short_line(lq: LakeQueue, clock: ManualClock) -> None:
    queue = lq.create_queue("orders")
    for call in (
        lambda: queue.receive(attempt_id="x\n" * 100_000),
        lambda: queue.delete(["x" * 100_000]),
        lambda: queue.send("a", delay="9" * 100_000),
        lambda: queue.peek(where=["x" * 100_000]),
    ):
        with pytest.raises(errors.InvalidParameterValue) as error:
            call()
        assert "\n" not in str(error.value) and len(str(error.value)) < 500
    assert queue.peek(limit=10**30) == []
    with pytest.raises(errors.InvalidOptions, match="visibility_timeout"):
        HeartbeatRenewal(visibility_timeout="5")  # type: ignore[arg-type]
