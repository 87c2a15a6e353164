"""Refusals say what would be right, in Python as on the command line."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakequeue import LakeQueue
from lakequeue.cli import app
from lakequeue.cli.session import Session
from lakequeue.errors import QueueServiceError


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> LakeQueue:
    root: Path = tmp_path_factory.mktemp("lake") / "root"
    lake = LakeQueue(str(root), engine="point")
    lake.create_queue("orders")
    return lake


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda lake: lake.queue("ordres"), "region local; did you mean orders?"),
        (lambda lake: lake.queue("bills"), "; `lakequeue list` shows its queues"),
        (lambda lake: lake.check("ordres"), "region local; did you mean orders?"),
        (lambda lake: LakeQueue(lake.root, region="north").queue("orders"), "region north, which has no queues"),
        (lambda lake: lake.create_queue("x.fifo"), "needs fifo=True (--fifo)"),
        (lambda lake: lake.create_queue("x", retention=5), "did you mean message_retention_period?"),
        (lambda lake: lake.create_queue("x", visibility=5), "did you mean visibility_timeout?"),
        (lambda lake: lake.create_queue("x", delya=5), "did you mean delay?"),
        (lambda lake: lake.queue("orders").send({"a": 1}), "send(json=…) sends a dict as JSON"),
    ],
    ids=["queue", "none like it", "check", "region", "fifo", "retention", "visibility", "delay", "json"],
)
def test_an_error_names_the_valid_values(lake: LakeQueue, call: Callable[[LakeQueue], object], hint: str) -> None:
    with pytest.raises(QueueServiceError) as refused:
        call(lake)
    assert str(refused.value).endswith(hint) and hint not in refused.value.message
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


def test_a_hint_on_the_command_line_has_the_root_of_the_command(lake: LakeQueue) -> None:
    ran = CliRunner().invoke(app, ["--root", lake.root, "show", "bills"])
    assert f"; `lakequeue --root {lake.root} list` shows its queues" in " ".join(ran.stderr.split())


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ('read its feed with changes="feed", or leave versions out with skip_changes. Or', "--changes feed"),
        ("sent if you go on with start=7", "go on with --start 7"),
        ("changes: must be new; start: must be 0", "--changes: must be new; --start: must be 0"),
        ("the start of /lake/skip_changes, of skip_changes.md and of other_changes=7", None),
    ],
)
def test_errors_name_the_flags_of_the_command(text: str, spelled: str | None) -> None:
    session = Session(flags={name: f"--{name.replace('_', '-')}" for name in ("changes", "skip_changes", "start")})
    found = session.spelled(text)
    assert found == text if spelled is None else spelled in found
    assert ("--skip-changes. Or" in found) == ("skip_changes. Or" in text)
