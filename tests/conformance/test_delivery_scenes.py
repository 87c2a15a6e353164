"""Deliveries that are paused, killed or met by other writers at each step, on a disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from concurrency.delivery_worker import STEPS
from conformance.delivery_scenes import WRITERS, Scene, kills, meet, pauses, writers
from lakequeue.testing import ManualClock
from mutations import (
    Case,
    Mutation,
    Scenario,
    a_block_looks_like_an_append,
    a_refused_append_is_an_arrival,
    an_acknowledged_append_counts_unseen,
    each_case,
    messages_are_deleted_first,
    shown_by,
)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene.of(str(tmp_path / "root"), str(tmp_path / "table"), ManualClock())


@pytest.mark.spec("TAB-25", "TAB-26")
@pytest.mark.parametrize("is_new", [True, False], ids=["new table", "table"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("what", [pauses, kills], ids=lambda what: what.__name__)
def test_a_delivery_that_stops_at_a_step(scene: Scene, what: object, step: str, is_new: bool) -> None:
    if not is_new:
        scene.send(1)
        scene.deliver()
    what(scene, [step])  # type: ignore[operator]


@pytest.mark.spec("TAB-20", "TAB-25")
@pytest.mark.parametrize("name", WRITERS)
def test_another_writer_between_the_look_and_the_commit_of_a_delivery(scene: Scene, name: str) -> None:
    writers(scene, [name])


def a_pause_before_the_commit(scene: Scene) -> None:
    scene.send(1)
    scene.deliver()
    pauses(scene, ["before the commit"])


def a_kill_before_the_commit(scene: Scene) -> None:
    kills(scene, ["before the commit"])


def writer(name: str) -> Scenario:
    return shown_by(test_another_writer_between_the_look_and_the_commit_of_a_delivery, lambda scene: (scene, name))


def a_commit_in_the_place_of_a_removed_entry(scene: Scene) -> None:
    """The commit is acknowledged, but its entry is older than the checkpoint."""

    def remove() -> None:
        WRITERS["appends"](scene.delta())
        table = scene.delta()
        table.create_checkpoint()
        (Path(scene.table) / "_delta_log" / f"{table.version():020d}.json").unlink()

    scene.send(1)
    scene.deliver()
    scene.send(3)
    meet(scene, "before the commit", remove)
    scene.check("an entry was removed")


REFUSING = (
    *("merges", "updates", "deletes", "adds a column", "adds a constraint", "sets a property"),
    "appends and cleans its log",
)
"""Other writers after whose commits a delivery's commit is refused."""

MUTATIONS = [
    Mutation("a block looks like an append", a_block_looks_like_an_append, {a_pause_before_the_commit: "TAB-20"}),
    Mutation("messages are deleted first", messages_are_deleted_first, {a_kill_before_the_commit: "TAB-25"}),
    Mutation(
        "a refused append is an arrival",
        a_refused_append_is_an_arrival,
        {writer(name): "TAB-25" for name in REFUSING},
    ),
    Mutation(
        "an acknowledged append counts unseen",
        an_acknowledged_append_counts_unseen,
        {a_commit_in_the_place_of_a_removed_entry: "TAB-20"},
    ),
    Mutation("a block looks like an append", a_block_looks_like_an_append, {writer("compacts"): "TAB-20"}),
]


@each_case(MUTATIONS)
def test_it_holds_and_falls_with_its_safeguard(case: Case, scene: Scene) -> None:
    case.run(lambda _: (scene,))
