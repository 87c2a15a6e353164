"""`check` on damaged tables: it finds all damage, changes nothing, and says nothing of sound ones."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import signal
import tempfile
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import attrs
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from conformance.damage import Victim, empty, entries, live, victim_of_seven
from conformance.harness import batch
from lakequeue import LakeQueue, QueueDoesNotExist, RedrivePolicy, entry_verbs
from lakequeue.cli import app, check
from lakequeue.cli.session import Session
from lakequeue.model.consumer_processes import ConsumerFile, ConsumerProcess
from lakequeue.model.damage import Finding
from lakequeue.operations.advice import Concern, Remedy
from lakequeue.operations.doctor import RootHealth, ShardHealth
from lakequeue.operations.results import ShardCounts
from lakequeue.operations.shortage import Shortage
from lakequeue.storage import layout, reserve
from lakequeue.storage.delta_log import signed
from lakequeue.storage.engines.locks import committing
from lakequeue.storage.inspection import environment
from lakequeue.testing import ManualClock


@pytest.fixture
def victim(tmp_path: Path, clock: ManualClock) -> Victim:
    return victim_of_seven(tmp_path, clock)


@pytest.mark.spec("DUR-30")
def test_a_sound_root_has_no_findings(victim: Victim) -> None:
    victim.lake().create_queue("dead")
    victim.lake().create_queue("several", shards=2).send_batch(batch("a", "b"))
    for _ in range(3):
        victim.send(*"abcdef")
        victim.drain()
        victim.clock.advance(7200)
        victim.lake().compact()
    assert victim.lake().check() == []


def test_a_queue_is_checked_alone(victim: Victim) -> None:
    victim.lake().create_queue("other")
    empty(entries(victim.messages)[-1])
    assert victim.lake().check("orders") and not victim.lake().check("other")
    with pytest.raises(QueueDoesNotExist):
        victim.lake().check("nobody")


def test_the_finding_names_queue_table_and_file(victim: Victim) -> None:
    [gone] = live(victim.messages)[4:5]
    gone.unlink()
    [found, lost] = victim.lake().check()
    assert (found.queue, found.table, found.file, found.problem) == (
        "orders",
        str(victim.messages),
        gone.name,
        "is missing",
    )
    assert lost.problem == "the log has no message at offset 4"


def test_doctor_names_a_damaged_queue_once_although_it_cannot_be_read(victim: Victim) -> None:
    empty(entries(victim.receipts)[-1])
    ran = CliRunner().invoke(app, ["--root", victim.root, "doctor"])
    assert ran.exit_code == 1 and ran.stdout.startswith("1 damaged queue, 1 warning, the most urgent first\n")
    assert ran.stdout.count("damage: orders: ") == 1 and "urgent" not in ran.stdout.partition("\n")[2]
    assert doctor(victim.root)[1]["unreadable"] == []


def test_doctor_reports_a_damaged_catalog_as_it_reports_other_damage(victim: Victim) -> None:
    victim.lake().create_queue("other")
    catalog = Path(victim.root) / "queues"
    empty(max(catalog.glob("*.parquet"), key=os.path.getmtime))
    code, document, text = doctor(victim.root)
    assert code == 1 and text.startswith("a damaged root\n")
    assert f"\n  lakequeue --root {victim.root} repair --all  # shows what it would do, and asks\n" in text
    assert f"  cp -a {catalog} COPY  # first, to another disk" in text
    assert re.search(r"^damage: the root: .*\.parquet cannot be read", text, re.MULTILINE)
    assert document["queues"] is None and "queues           unknown, because the catalog is damaged\n" in text
    [damage] = document["problems"]
    assert (damage["severity"], damage["kind"], damage["queue"]) == ("damage", "damage", None)
    assert "cannot be read" in damage["text"]
    assert damage["commands"] == [f"lakequeue --root {victim.root} repair --all"]
    served = CliRunner().invoke(app, ["--root", victim.root, "serve", "--port", "0"])
    assert served.exit_code == 3
    for command in "check", "repair --all":
        assert f"`lakequeue --root {victim.root} {command}`" in " ".join(served.stderr.split())


def hold(table: str, told: Connection) -> None:
    with committing(table, exclusive=False):
        told.send(True)
        os.kill(os.getpid(), signal.SIGSTOP)


def test_a_lock_of_a_stopped_process_is_a_warning(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "LOCK_PATIENCE", 0.05)
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=hold, args=(str(victim.messages), theirs))
    process.start()
    try:
        assert ours.poll(60)
        [found] = victim.lake().check()
        assert not found.damage and found.table == str(victim.messages) and "is locked" in found.problem
        assert "continue that process" in found.repair
    finally:
        process.kill()
        process.join()


def test_a_root_that_one_may_only_read_is_a_warning() -> None:
    with tempfile.TemporaryDirectory() as place:  # the directories of pytest are for their owner
        LakeQueue(f"{place}/root").create_queue("orders").send("a")
        below = [Path(place), *Path(place).rglob("*")]
        for path in below:
            path.chmod(0o555 if path.is_dir() else 0o444)
        try:
            os.geteuid() or os.seteuid(65534)
            findings = LakeQueue(f"{place}/root").check()
        finally:
            os.seteuid(os.getuid())
            for path in below:
                path.chmod(0o700)
    assert len(findings) == 2
    for found in findings:
        assert not found.damage and "has no right to write there" in found.problem
        assert "process" not in found.repair and f"as user {os.geteuid()}" in found.repair


def test_short_space_and_a_clock_that_was_set_back_are_warnings(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "FREE_BYTES", 2**62)
    monkeypatch.setattr(reserve, "LEAST_FREE", 1.1)
    early = LakeQueue(victim.root, clock=ManualClock(victim.clock.now() - timedelta(hours=1)))
    found = early.check()
    assert not any(each.damage for each in found)
    assert ["in the future" in each.problem for each in found] == [True, True, False]
    assert "MiB are free" in found[-1].problem


@pytest.mark.spec("DUR-30")
def test_the_command_prints_findings_and_its_exit_code_shows_damage(victim: Victim) -> None:
    run = CliRunner(env={"LAKEQUEUE_ROOT": victim.root}).invoke
    sound = run(app, ["check"])
    assert sound.exit_code == 0 and sound.stdout.startswith("sound (lakequeue ")
    empty(entries(victim.messages)[-1])
    damaged = run(app, ["check", "orders"])
    assert damaged.exit_code == 1 and damaged.stderr == ""
    assert f"damage: orders: _delta_log/{entries(victim.messages)[-1].name} is empty\n  in      " in damaged.stdout
    assert "; lakequeue repair orders shows its steps, and says if it needs --force (" in damaged.stdout
    whole = CliRunner().invoke(app, ["--root", victim.root, "check"])
    assert f"; lakequeue --root {victim.root} repair --all shows its steps" in whole.stdout
    document = json.loads(run(app, ["check", "--json"]).stdout)
    assert document["damaged"] and document["findings"][0]["queue"] == "orders"
    assert document["versions"].keys() >= {"lakequeue", "pyarrow", "obstore"}
    shutil.rmtree(victim.receipts)
    for command in ["check"], ["doctor"]:
        assert "damage: orders: 0/receipts is missing\n" in run(app, command).stdout
    nobody = run(app, ["check", "nobody"])
    assert nobody.exit_code == 1 and "QueueDoesNotExist" in nobody.stderr


def doctor(root: str) -> tuple[int, dict, str]:
    """Exit code, document and text of the command."""
    found = CliRunner().invoke(app, ["--root", root, "--json", "doctor"])
    text = CliRunner().invoke(app, ["--root", root, "doctor"])
    assert found.exit_code == text.exit_code
    return found.exit_code, json.loads(found.stdout), text.stdout


def test_doctor_reports_the_health_of_a_sound_root(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    queue = LakeQueue(root).create_queue("orders", shards=check.SHARDS + 2)
    for body in "abc":
        queue.send(body)
    code, document, text = doctor(root)
    assert len(re.findall(r"^ orders +\d", text, re.MULTILINE)) == check.SHARDS < len(document["shards"])
    assert code == 0 and not document["damaged"] and document["queues"] == 1
    assert [problem["kind"] for problem in document["problems"]] == ["compaction"]
    assert len(document["warnings"]) == 1 and "never compacted" in document["warnings"][0] and "never" in text
    assert sum(each["counts"]["visible"] for each in document["shards"]) == 3
    assert document["free_bytes"] > 0 and document["clock_behind"] == 0
    assert document["versions"]["lakequeue"] and "ledger runs" in text
    LakeQueue(root).compact()
    code, document, text = doctor(root)
    assert document["warnings"] == [] and document["compacted_seconds_ago"] < 60
    assert text.startswith("sound: nothing needs attention\n\nfree space ")


def test_doctor_warns_of_a_root_without_queues_as_a_store_may_have_been_emptied(tmp_path: Path) -> None:
    lake = LakeQueue(tmp_path / "root")
    lake.create_queue("orders")
    lake.delete_queue("orders")
    assert doctor(lake.root)[1]["warnings"] == [], "its last queue was deleted"
    entry_verbs.prepare(LakeQueue(tmp_path / "new"))
    _, document, text = doctor(str(tmp_path / "new"))
    [problem] = document["problems"]
    assert (problem["severity"], problem["kind"]) == ("warning", "no queues")
    assert "warning: the root has no queues: it is new, or it was emptied\n  if it had queues, " in text


def test_doctor_says_how_old_the_oldest_queue_is_for_a_day(tmp_path: Path) -> None:
    root, clock = str(tmp_path / "root"), ManualClock()
    lake = LakeQueue(root, clock=clock)
    lake.create_queue("orders")
    clock.advance(180)
    lake.create_queue("mails")
    assert "queues           2; the oldest was created 3m ago" in check._figures(entry_verbs.doctor(lake))
    clock.advance(86_400)
    assert "queues           2" in check._figures(entry_verbs.doctor(lake))


def test_doctor_warns_of_dead_letter_queues_that_do_not_exist(tmp_path: Path) -> None:
    lake = LakeQueue(str(tmp_path / "root"))
    for name in "gone", "there":
        lake.create_queue(name)
        lake.create_queue(f"with-{name}", redrive_policy=RedrivePolicy(name, 3))
    lake.delete_queue("gone")
    lake.compact()
    _, document, text = doctor(lake.root)
    [warning] = document["warnings"]
    assert warning.startswith("with-gone: its dead-letter queue does not exist") and warning in text.replace(
        "\n", " "
    )


def test_doctor_warns_of_a_queue_that_grew_within_an_hour(tmp_path: Path, clock: ManualClock) -> None:
    lake = LakeQueue(str(tmp_path / "root"), clock=clock)
    for name in "grows", "stays":
        lake.create_queue(name).send_batch(batch(*"abc"))
    lake.compact()
    clock.advance(3500)
    late = lake.create_queue("late")
    lake.compact()  # which says nothing of what `late` had an hour ago
    for queue in lake.queue("grows"), late:
        queue.send_arrow(pa.table({"body": ["x"] * 101}))
    for queue in lake.list_queues():
        queue.receive()
    [concern] = entry_verbs.doctor(lake).concerns
    assert concern.text == "grows grew from 3 to 103 visible messages within an hour"
    clock.advance(60)
    lake.compact()
    clock.advance(3570)
    for queue in lake.list_queues():
        queue.receive()
    assert entry_verbs.doctor(lake).concerns == [], "an hour ago it had as many"


def test_doctor_prints_some_queues_of_each_kind(tmp_path: Path, clock: ManualClock) -> None:
    lake = LakeQueue(str(tmp_path / "root"), clock=clock)
    for number in range(25):
        lake.create_queue(f"q{number}").pause("a long weekend")
    health = entry_verbs.doctor(lake)
    lines = [*check.health_lines(health, str)]
    assert len(health.concerns) == 25
    assert sum("a long weekend" in line for line in lines) == check.SHOWN
    assert "and 5 more of paused; --json has all" in lines


def test_doctor_prints_the_most_urgent_first_each_command_on_a_line(tmp_path: Path) -> None:
    """What it prints of a root with damage, a nearly full disk, a late clock, expiry, and an old pass."""
    damage = Finding("orders", "local", "/a b/q/orders/0/messages", "a.parquet", "cannot be read", "drops it")
    frees = Remedy("lakequeue compact --now 0", "frees"), Remedy("lakequeue purge old", "drops its messages")
    short = Shortage("only 1% is free", steps=frees, largest={"old": 2**21})
    kept = Concern("slow", "expiring", "slow is late", steps=[Remedy("lakequeue peek slow", "shows it")])
    ends = Remedy("py-spy dump --pid 1", "on a shows where"), Remedy("kill 1", "on a ends it")
    stuck = Concern("slow", "stuck", "it hangs", steps=ends)
    health = RootHealth([damage], 1, 1, 3 * 24 * 3600.0, 1_000.0, 1, [], ["late: no disk"], shortage=short)
    paused = Concern("mail", "paused", "mail is paused", notice=True)
    letters = Concern("dead", "dead letters", "dead has 1", errors={"my.Error": 1}, examples={"my.Error": "no"})
    health.concerns = [kept, stuck, attrs.evolve(letters, hint="ask"), paused]
    session = Session(prefix="lakequeue --root 'my queues'")
    told = "\n".join(check.health_lines(health, session.pasted))
    assert told.replace("lakequeue --root 'my queues'", "LQ") == (
        "1 damaged queue, 4 urgent, 2 warnings, 1 notice, the most urgent first\n"
        "  cp -a '/a b/q/orders' COPY  # first, to another disk: a repair cannot be undone\n"
        "  LQ repair --all  # shows what it would do, and asks\n\n"
        "damage: orders: a.parquet cannot be read\n"
        "  in      /a b/q/orders/0/messages/a.parquet\n  repair  drops it\n"
        "urgent: only 1% is free\n  the largest queues: old 2.0 MiB\n"
        "  LQ compact --now 0  # frees\n  LQ purge old        # drops its messages\n"
        "urgent: the newest commit is 1000.0 s ahead of this clock\n"
        "  synchronize clocks\n  LQ repair --all --clock  # sets it back\n"
        "urgent: late: no disk\n"
        "urgent: slow is late\n  LQ peek slow  # shows it\n"
        "warning: it hangs\n  py-spy dump --pid 1  # on a shows where\n  kill 1               # on a ends it\n"
        "warning: dead has 1, failed with 1 my.Error\n  my.Error: no\n  ask\n"
        "notice: mail is paused\n"
    )
    assert health.notices == ["mail is paused"] and "mail is paused" not in health.warnings
    assert [each for each in health.warnings if "repair --all --clock" in each]
    health.letterless = ["fast"]
    health.findings.append(attrs.evolve(damage, problem="is locked", damage=False))
    lines = [*check.health_lines(health, str)]
    after = lines.index("notice: mail is paused")
    assert any("fast: its dead-letter queue" in line for line in lines[:after]), "warnings come before notices"
    assert any(line.startswith("warning: orders: ") for line in lines[:after])
    known = {each["text"]: each for each in check.problems_of(health, session.pasted)}
    assert known["it hangs"] == {
        **{"severity": "warning", "kind": "stuck", "queue": "slow", "text": "it hangs"},
        "commands": ["py-spy dump --pid 1", "kill 1"],
    }
    assert known["mail is paused"]["severity"] == "notice" and known["only 1% is free"]["severity"] == "urgent"
    assert known["slow is late"]["commands"] == ["lakequeue --root 'my queues' peek slow"]
    health.letterless, health.findings = [], [damage]
    health.findings += [
        attrs.evolve(damage, problem="ends too early", file=None),
        attrs.evolve(damage, table="/a b/q/orders/1/messages"),
    ]
    health.findings.append(Finding(None, None, "/a b/queues", None, "is torn", "goes back"))
    lines = [*check.health_lines(health, str)]
    assert lines[0] == "1 damaged queue, a damaged root, 4 urgent, 2 warnings, 1 notice, the most urgent first"
    assert health.copies is not None and health.copies.command == "cp -a '/a b' COPY"
    named = [line.partition("\n")[0] for line in lines if line.startswith("damage: ")]
    assert named == ["damage: orders: a.parquet cannot be read", "damage: the root: a b/queues is torn"]
    assert "  lakequeue check orders  # lists 2 more problems of it" in lines
    health.shortage = Shortage("the disk is full", steps=frees, full=True)
    lines = [*check.health_lines(health, str)]
    assert lines[2].endswith("repair --all  # make room first; it shows what it would do, and asks")
    assert lines[4] == "urgent: the disk is full" and lines[7].startswith("damage: "), lines
    assert lines.count("urgent: the disk is full") == 1


@pytest.mark.parametrize(
    ("given", "begin"),
    [
        (["--root", "{}"], "lakequeue --root {}"),
        (["--root", "{}", "--region", "eu"], "lakequeue --root {} --region eu"),
        ([], "lakequeue"),
    ],
)
def test_commands_that_doctor_prints_begin_as_its_own_command_line(
    tmp_path: Path, given: list[str], begin: str
) -> None:
    root = str(tmp_path / "root")
    LakeQueue(root, region="eu" if "eu" in given else "local").create_queue("mail").pause("why")
    run = CliRunner(env={"LAKEQUEUE_ROOT": root}).invoke(app, ["doctor", *(each.format(root) for each in given)])
    assert f"\n  {begin.format(root)} resume mail  # ends the pause\n" in run.stdout
    assert run.stdout.startswith("no damage, 1 warning, 1 notice, the most urgent first\n\n")


def test_doctor_shows_the_longest_handler_of_the_running_consumers(tmp_path: Path) -> None:
    lake = LakeQueue(str(tmp_path / "root"), clock=ManualClock())
    now, keys = lake.clock.now(), [lake.create_queue(name).key for name in ("orders", "reports")]
    assert entry_verbs.doctor(lake).longest_handler is None
    for number, (of, minutes) in enumerate([(keys[:1], 3), (keys[1:], 4), (keys, None)]):
        began = None if minutes is None else now - timedelta(minutes=minutes)
        process = ConsumerProcess("elsewhere", number, now, now, 1, began)
        entry_verbs.report_consumer(lake.queue("orders"), str(number), ConsumerFile("a", of, process))
    longest = entry_verbs.doctor(lake).longest_handler
    assert str(longest) == "4m when last seen, reports, process 1 on elsewhere"
    lake.clock.advance(240)
    assert entry_verbs.doctor(lake).longest_handler is None, "its process may have been killed"


def test_doctor_warns_of_clocks_old_compactions_and_races(tmp_path: Path) -> None:
    """Its rules, on figures as a root could have them."""
    counts = ShardCounts(0, 1, 0, 0, 0, commits=50, lost_races=40)
    shard = ShardHealth("orders", "local", counts, ledger_runs=300_000, ledger_files=31)
    warnings = RootHealth([], 1, 1, 3 * 24 * 3600.0, 7.0, 1, [shard], ["late: no disk"]).warnings
    for told in "72 hours ago", "7.0 s ahead", "300,000 runs", "40 races", "late: no disk":
        assert sum(told in warning for warning in warnings) == 1
    calm = attrs.evolve(shard, counts=attrs.evolve(counts, lost_races=1), ledger_runs=9)
    assert RootHealth([], 1, 1, 60.0, 0.0, 1, [calm], []).warnings == []


@pytest.mark.spec("DUR-30")
@pytest.mark.parametrize("kind", ["json", "checkpoint.parquet"])
@pytest.mark.parametrize("version", [10**20 - 1, 2**63, 2**63 - 1, 20_000])
def test_a_file_of_a_version_that_no_log_has_is_named_and_moved_aside(
    victim: Victim, version: int, kind: str
) -> None:
    name = f"_delta_log/{version:020}.{kind}"
    tables = [victim.messages, victim.receipts, Path(victim.root) / "queues"]
    for table in tables:
        (table / name).touch()
    found = victim.lake().check()
    assert sorted(each.table.rpartition("/")[2] for each in found) == ["messages", "queues", "receipts"]
    assert {each.file for each in found} == {name}
    assert CliRunner().invoke(app, ["--root", victim.root, "doctor"]).exit_code != 0
    victim.lake().repair()
    assert all((table / name).exists() for table in tables)
    victim.lake().repair(apply=True)
    assert victim.lake().check() == []
    victim.clock.advance(60)
    assert sorted(victim.drain()) == [*"123456"]


@pytest.mark.spec("DUR-30")
def test_each_gap_of_a_log_is_reported_once(victim: Victim) -> None:
    first, second, *rest = entries(victim.messages)[3:]
    first.unlink(), second.unlink(), rest[-1].unlink()
    rest[-2].rename(rest[-2].with_name(f"{100:020}.json"))
    found = {each.file: each.problem for each in victim.lake().check("orders") if each.file}
    assert found == {
        f"_delta_log/{3:020}.json": "is missing, and so are all up to version 4",
        f"_delta_log/{6:020}.json": "is missing, and so are all up to version 99",
    }
    victim.lake().repair(apply=True, force=True)
    assert victim.lake().check() == []


def counts(entry: Path, app_id: str, number: int) -> None:
    """Lets an entry of a log say another number for an application id."""
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if action.get("txn", {}).get("appId") == app_id:
            action["txn"]["version"] = number
    entry.write_bytes(signed("".join(f"{json.dumps(action)}\n" for action in actions).encode()))


@pytest.mark.spec("DUR-30")
@pytest.mark.parametrize("app_id", [layout.SEND_ID, layout.CLOCK_ID])
@pytest.mark.parametrize("number", [2**63 - 1, 2**62, 10**9])
def test_a_log_that_counts_to_any_number_is_checked_and_repaired_in_no_time(
    victim: Victim, app_id: str, number: int
) -> None:
    counts(entries(victim.messages)[-1], app_id, number)
    assert {each.table for each in victim.lake().check()} == {str(victim.messages)}
    [report, *_] = victim.lake().repair(apply=True, force=True)
    missing = layout.end_of(number) - 7 if app_id == layout.SEND_ID else 0
    if missing > 20_000_000:
        assert not report.applied and "messages are missing, and a repair writes at most" in report.notes[0]
