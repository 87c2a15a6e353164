"""Each commit of a verb fails in turn, and all after it: it is done, refused with nothing changed, or unknown."""

from __future__ import annotations

import inspect
import shutil
from pathlib import Path

import pytest

from conformance.failing import Failing
from conformance.verbs import VERBS, Given, prepared
from insides import messages_of, reopen
from lakequeue import LakeQueue, Lease, Queue
from lakequeue.runtime.calls import Steps
from lakequeue.testing import ManualClock
from mutations import Case, Mutation, each_case, replace, shown_by


def visible_state(lake: LakeQueue) -> list[object]:
    """What anybody sees of the queues, in another process, and of a copy."""
    seen: list[object] = []
    for queue in reopen(lake).list_queues():
        peeked = queue.peek(limit=100)
        states = sorted((each.message_id, each.state, each.receive_count, each.visible_at) for each in peeked)
        settings = queue.attributes(["RedrivePolicy", "VisibilityTimeout"], wire=True)
        seen += [queue.name, settings, queue.tags(), states, queue.counts().rewindable]
    copied = LakeQueue(f"{lake.root}-copy", clock=lake.clock)
    return seen + (copied.list_queues() if Path(copied.root, "queues", "_delta_log").exists() else [])


OTHERS = {
    "Queue.send_dataframe": "commits as send_arrow",
    "Queue.sender": "sends as the server does for several callers",
    "Queue.update_attributes": "is set_attributes",
    "Queue.remove_tags": "is one commit, as set_tags",
    "Queue.resume": "is set_attributes, as pause",
    "Lease.keep_alive": "extends",
    "Lease.delete_except": "is delete",
    "LakeQueue.repair": "has a test of its own below",
    "LakeQueue.relay": "has tests in test_relay and test_relay_kills",
    "Lease.append": "has tests in test_delivering and test_delivery_kills",
    "Lease.delivered": "deletes, once the table has the rows",
    "Queue.decide": "has tests in test_deliveries",
    "LakeQueue.upgrade": "has tests in test_upgrade",
    **dict.fromkeys(
        (
            *(
                "Queue.undecided",
                "Queue.rewindable",
                "Queue.attributes",
                "Queue.counts",
                "Queue.peek",
                "Queue.get",
            ),
            *(
                "Queue.priority_counts",
                "Queue.shard_counts",
                "Queue.groups",
                "Queue.redrivable",
                "Queue.dead_letter_sources",
                "Queue.tags",
            ),
            *("Lease.batches", "Lease.arrow", "LakeQueue.queue", "LakeQueue.list_queues"),
            *("LakeQueue.register_views", "LakeQueue.view_statements", "LakeQueue.create_views"),
            *("LakeQueue.arrow_views", "LakeQueue.check"),
        ),
        "reads",
    ),
}
"""Why other methods are not among them."""


def test_every_method_of_the_interface_is_named() -> None:
    methods = {
        f"{face.__name__}.{name}"
        for face in (LakeQueue, Queue, Lease)
        for name, value in vars(face).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }
    named = {verb.split(" ")[0] for verb in VERBS if "." in verb}
    assert methods == named | OTHERS.keys() and not named & OTHERS.keys()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[LakeQueue, Given, list[object]]:
    """A root, what is known of it, and what anybody sees."""
    clock = ManualClock()
    lake = LakeQueue(str(tmp_path_factory.mktemp("failing") / "base"), clock=clock, engine="point")
    given = prepared(lake, clock)
    return lake, given, visible_state(lake)


@pytest.mark.spec("ERR-8", "QUE-39")
@pytest.mark.parametrize("lasts", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("verb", VERBS)
def test_each_commit_of_a_verb_fails_in_turn(
    tmp_path: Path,
    base: tuple[LakeQueue, Given, list[object]],
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    lasts: bool,
) -> None:
    made, given, before = base
    failing = Failing(monkeypatch, lasts)
    for after in range(30):
        shutil.copytree(made.root, tmp_path / str(after))
        lake = reopen(LakeQueue(str(tmp_path / str(after)), clock=made.clock, engine="point"))
        queue = lake.queue("orders")
        error = failing.run(after, lambda lake=lake, queue=queue: VERBS[verb](lake, queue, given))  # type: ignore[misc]
        if not failing.failed:  # it makes fewer commits
            assert error is None and (after or verb == "Queue.compact"), "it made none"
            return
        assert str(error).count("disk-full.md") < 2
        refused = error is not None and not getattr(error, "outcome_unknown", False)
        if refused or verb.endswith(".compact"):
            assert visible_state(lake) == before, f"after {after} commits: {error}"
    raise AssertionError("a verb of thirty commits")


@pytest.mark.spec("ERR-8", "DUR-33")
@pytest.mark.parametrize("lasts", [False, True], ids=["once", "from then on"])
def test_each_commit_of_a_repair_fails_in_turn(
    tmp_path: Path, base: tuple[LakeQueue, Given, list[object]], monkeypatch: pytest.MonkeyPatch, lasts: bool
) -> None:
    failing = Failing(monkeypatch, lasts)
    for after in range(30):
        shutil.copytree(base[0].root, tmp_path / str(after))
        lake = reopen(LakeQueue(str(tmp_path / str(after)), clock=base[0].clock, engine="point"))
        for shard in (0, 1):
            next(Path(messages_of(lake.queue("orders"), shard)).glob("*.parquet")).unlink()
        before = lake.check()
        error = failing.run(after, lambda lake=lake: lake.repair("orders", apply=True, force=True))  # type: ignore[misc]
        if error is not None and not getattr(error, "outcome_unknown", False):
            assert lake.check() == before, f"after {after} commits: {error}"
        lake.repair("orders", apply=True, force=True)
        assert not [finding for finding in lake.check() if finding.damage]
        if not failing.failed:
            return
    raise AssertionError("a repair of thirty commits")


MUTATIONS = [
    Mutation(
        "what fails later is a refusal",
        replace(Steps, "_fail", lambda *_: None),
        {
            shown_by(
                test_each_commit_of_a_verb_fails_in_turn, lambda *given, verb=verb: (*given, verb, False)
            ): "QUE-39"
            for verb in ("Queue.redrive", "Queue.purge", "Queue.receive of a dead letter", "delete chosen")
        },
    )
]


@each_case(MUTATIONS)
def test_the_rule_falls_with_its_safeguard(
    tmp_path: Path, base: tuple[LakeQueue, Given, list[object]], case: Case
) -> None:
    case.run(lambda patch: (tmp_path, base, patch))
