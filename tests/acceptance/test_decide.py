"""`lakequeue decide`: an operator decides deliveries whose outcome nobody knows."""

from __future__ import annotations

import json

import pytest

from acceptance.commands import Run
from lakequeue import LakeQueue
from lakequeue.model.deliveries import new_nonce
from lakequeue.shard.commands import Claim


@pytest.fixture
def undecided(root: str) -> str:
    """The application id of an undecided delivery of two messages of ``orders``."""
    queue = LakeQueue(root).create_queue("orders", table=f"{root}-orders", visibility_timeout=0)
    for body in ("a", "b", "c"):
        queue.send(body)
    queue._runtime.command(queue._runtime.shards[0], Claim(2, None, "lease", delivery=new_nonce()))
    [found] = queue.undecided()
    return f"{found.application_id} with version {found.version}"


@pytest.mark.spec("TAB-10")
def test_a_dry_run_lists_the_deliveries_and_changes_nothing(run: Run, undecided: str) -> None:
    for choice, would in (("--delivered", "delete"), ("--again", "make")):
        shown = run("decide", "orders", choice, "--dry-run")
        assert f"the table if its log has {undecided}" in shown.output.replace("\n", " ")
        assert f"would {would} 2 undecided messages of orders" in shown.output
    [counts] = json.loads(run("counts", "--json").output)
    assert counts["undecided"] == 2
    assert "undecided" in run("counts").output and "undecided" in run("list").output
    assert "has 2 undecided messages of deliveries into" in run("doctor").output.replace("\n", " ")


@pytest.mark.spec("TAB-10")
@pytest.mark.parametrize(("choice", "visible"), [("--delivered", 1), ("--again", 3)])
def test_decide_asks_for_confirmation(run: Run, undecided: str, choice: str, visible: int) -> None:
    refused = run("decide", "orders", choice, input="n\n")
    assert refused.exit_code == 2 and undecided in refused.output.replace("\n", " ")
    assert run("decide", "orders", choice, "--yes").exit_code == 0
    counts = json.loads(run("counts", "orders", "--json").output)
    assert (counts["undecided"], counts["visible"]) == (0, visible)
    nothing = run("decide", "orders", choice)
    assert nothing.exit_code == 0 and "0 messages of orders" in nothing.output


@pytest.mark.spec("TAB-10")
@pytest.mark.parametrize("choices", [[], ["--delivered", "--again"]])
def test_one_outcome_is_named(run: Run, undecided: str, choices: list[str]) -> None:
    assert run("decide", "orders", *choices).exit_code == 2
