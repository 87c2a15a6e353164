"""A root of layout 5: refused until it is upgraded in place, and then it answers as before."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from concurrency.steps import Killed
from data.make_root_5 import answers
from lakequeue import LakeQueue, QueueClientError
from lakequeue.cli import app
from lakequeue.storage import layout
from lakequeue.storage.engines.point import Table
from lakequeue.storage.folder import LocalFolder
from lakequeue.testing import ManualClock

pytestmark = pytest.mark.spec("DUR-43")

MADE = Path(__file__).parents[1] / "data" / "root-5.tar.gz"
ADVICE = "run `lakequeue upgrade`$"


@pytest.fixture
def earlier_answers(tmp_path: Path) -> dict[str, Any]:
    """What the root answered before, see tests/data/make_root_5.py."""
    with tarfile.open(MADE) as archive:
        archive.extractall(tmp_path, filter="data")
    found: dict[str, Any] = json.loads((tmp_path / "answers.json").read_text())
    return found


@pytest.fixture
def lq(tmp_path: Path, earlier_answers: dict[str, Any]) -> LakeQueue:
    return opened(tmp_path, earlier_answers)


def opened(folder: Path, earlier_answers: dict[str, Any]) -> LakeQueue:
    return LakeQueue(str(folder / "root"), clock=ManualClock(datetime.fromisoformat(earlier_answers["now"])))


def check_answers(lq: LakeQueue, earlier_answers: dict[str, Any]) -> None:
    found = answers(lq)
    assert found.keys() | {"now"} == earlier_answers.keys()
    for name, answer in found.items():
        assert answer == earlier_answers[name], name


def use(lq: LakeQueue) -> None:
    """Completes what was under way, and works each queue off."""
    dead, kept, letters, orders, paced, parked = map(
        lq.queue, ("dead", "kept", "letters.fifo", "orders", "paced", "parked")
    )
    again = letters.receive(2, attempt_id="once", visibility_timeout=600)
    assert [message.receive_count for message in again] == [1, 2], "the same messages once more"
    assert paced.receive() == [] and not lq.queue("other").compact().failures
    assert {message.body for message in parked.peek(limit=200)} == {"parked", "going", "filler"}
    going = next(message for message in parked.peek(limit=200) if message.body == "going")
    assert going.dead_letter_reason is not None and going.dead_letter_reason.error == "OSError"
    assert [attempt.text for attempt in going.attempts] == ["gone"]
    assert dead.redrive() > 0 and kept.rewind(kept.created_at) > 0
    orders.send("new")
    for queue in (dead, kept, letters, orders, paced, parked):
        lq.clock.advance(50_000)  # type: ignore[attr-defined]
        while messages := queue.receive(10):
            queue.delete_batch(messages).raise_for_failures()
            lq.clock.advance(60)  # type: ignore[attr-defined]
    assert not any(summary.failures for summary in lq.compact())
    assert lq.check() == []


def test_a_root_of_the_layout_before_answers_after_an_upgrade_as_before(
    lq: LakeQueue, earlier_answers: dict[str, Any], tmp_path: Path
) -> None:
    steps: list[tuple[int, int, str]] = []
    assert lq.upgrade(lambda *step: steps.append(step)) == 7
    assert [step[0] for step in steps] == list(range(len(steps))) and steps[-1][1] == len(steps) - 1
    afresh = opened(tmp_path, earlier_answers)
    check_answers(afresh, earlier_answers)
    assert afresh.check() == []
    assert afresh.upgrade() == 0
    use(afresh)


def test_failed_attempts_and_notes_are_kept(lq: LakeQueue) -> None:
    lq.upgrade()
    letters = {message.body: message for message in lq.queue("dead").peek(limit=200)}
    assert [attempt.text for attempt in letters["failed"].attempts] == ["'there'"]
    assert letters["failed"].dead_letter_reason is not None
    assert letters["failed"].dead_letter_reason.text == "no: é 0"
    assert letters["killed"].dead_letter_reason is None and letters["killed"].attempts == ()


def test_tables_have_the_columns_of_the_new_layout_alone(lq: LakeQueue) -> None:
    lq.upgrade()
    store = lq._runtime.engine.store
    for row in lq._runtime.rows():
        if row.deleted_at is not None:
            continue
        for path in (layout.messages_path(lq.root, row.key, 0), layout.receipts_path(lq.root, row.key, 0)):
            table = Table(store, path)
            schema = {"messages": layout.MESSAGES, "receipts": layout.RECEIPTS}[path.rpartition("/")[2]]
            columns = [field["name"] for field in json.loads(table.state.metadata["schemaString"])["fields"]]
            assert columns == schema.names
            assert not [
                name for name in table.folder.files("_delta_log") if name.name < f"_delta_log/{table.version:020}"
            ]
    rows = (
        lq.arrow_views()["receipts"]
        .to_table(["failure", "failed_attempts", "consumer", "move_target"])
        .to_pylist()
    )
    assert {row["consumer"] for row in rows} >= {"picker", "worker-1"}
    assert {row["failure"]["text"] for row in rows if row["failure"]} >= {"slow", "the batch"}


STEPS = [(LocalFolder, "create"), (LocalFolder, "replace"), (LocalFolder, "remove"), (LocalFolder, "write")]


@pytest.mark.slow
@pytest.mark.parametrize("landed", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("kind", "verb"), STEPS)
def test_an_upgrade_that_is_killed_at_any_step_is_continued(
    earlier_answers: dict[str, Any], tmp_path: Path, kind: type, verb: str, landed: bool
) -> None:
    whole = getattr(kind, verb)
    for dying in count(1):
        steps = count(1)

        def step(self: Any, *given: Any, at: int = dying, steps: Iterator[int] = steps, **more: Any) -> Any:
            number = next(steps)
            if number == at and not landed:
                raise Killed
            answer = whole(self, *given, **more)
            if number == at:
                raise Killed
            return answer

        with pytest.MonkeyPatch.context() as patch, suppress(Killed):
            patch.setattr(kind, verb, step)
            opened(tmp_path, earlier_answers).upgrade()
            break
    assert dying > 1
    check_answers(opened(tmp_path, earlier_answers), earlier_answers)
    use(opened(tmp_path, earlier_answers))


CALLS: dict[str, Callable[[LakeQueue], object]] = {
    "queue": lambda lq: lq.queue("orders"),
    "list_queues": lambda lq: lq.list_queues(),
    "create_queue": lambda lq: lq.create_queue("new"),
    "delete_queue": lambda lq: lq.delete_queue("orders"),
    "compact": lambda lq: lq.compact(),
    "check": lambda lq: lq.check(),
    "repair": lambda lq: lq.repair(),
    "arrow_views": lambda lq: lq.arrow_views()["messages"].to_table(),
    "copy": lambda lq: lq.copy(LakeQueue(f"{lq.root}-copy")),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_other_call_says_to_upgrade(lq: LakeQueue, call: str) -> None:
    with pytest.raises(QueueClientError, match=ADVICE):
        CALLS[call](lq)


@pytest.mark.parametrize(
    "command",
    ["list", "peek orders", "doctor", "check", "repair --all --yes", "compact", "sql 'SELECT 1 FROM queues'"],
)
def test_every_other_command_says_to_upgrade(lq: LakeQueue, command: str) -> None:
    done = CliRunner().invoke(app, f"--root {lq.root} {command}")
    assert done.exit_code and f"run `lakequeue --root {lq.root} upgrade`" in " ".join(done.output.split())


HOLDERS = {
    "a file": "file = open(sys.argv[1] + '/queues/_delta_log/00000000000000000000.json')",
    "a watch": "import inotify_simple; watch = inotify_simple.INotify(); "
    "watch.add_watch(sys.argv[1] + '/queues/_delta_log', 256)",
    "the command line": "lakequeue = 1",
}


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("holder", HOLDERS)
def test_a_process_that_has_the_root_open_is_named(lq: LakeQueue, holder: str) -> None:
    program = f"import sys; {HOLDERS[holder]}; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program, lq.root], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None and other.stdout.readline()
        with pytest.raises(QueueClientError, match=f"process {other.pid} uses") as raised:
            lq.upgrade()
        assert "\n" not in str(raised.value)
        other.kill()
    assert lq.upgrade() == 7


def test_the_command_upgrades_and_asks_first(lq: LakeQueue) -> None:
    command = ["--root", lq.root, "upgrade"]
    refused = CliRunner().invoke(app, command, input="n\n")
    assert refused.exit_code and "Upgrade" in refused.output
    done = CliRunner().invoke(app, [*command, "--yes"])
    assert done.exit_code == 0 and f"7 queues of {lq.root} upgraded" in done.output  # one was deleted
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 0 and again.output == f"{lq.root} is up to date\n"
