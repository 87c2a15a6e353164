"""Who may look into a local root: its owner, or a group that was meant."""

from __future__ import annotations

import gc
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakequeue import InvalidParameterValue, LakeQueue, QueueClientError
from lakequeue.cli import app
from lakequeue.entry_verbs import prepare
from lakequeue.storage.engines.locks import committing


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """That of most systems, under which everybody may read what is made."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_root_is_its_owners_alone(tmp_path: Path):
    before = mode(tmp_path)
    root = tmp_path / "above" / "parent" / "root"
    LakeQueue(str(root)).create_queue("orders").send("secret")
    assert mode(root) == mode(root.parent) == mode(root.parent.parent) == 0o700
    assert mode(tmp_path) == before, "which is not ours"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a directory away")
@pytest.mark.parametrize("below", ["", "new", "new/root"])
def test_a_new_root_in_a_directory_of_another_user_is_refused(tmp_path: Path, below: str):
    place = tmp_path / "place"
    place.mkdir()
    os.chown(place, 1234, 1234)
    root = place / below
    with pytest.raises(QueueClientError, match="at the mercy of user 1234, who owns .*place; .*root_mode"):
        LakeQueue(str(root)).create_queue("orders")
    assert list(place.iterdir()) == [] and mode(place) == 0o755
    LakeQueue(str(root), root_mode=0o2770).create_queue("orders")
    LakeQueue(str(root)).create_queue("letters")  # it is a root now


def test_an_empty_directory_that_becomes_a_root_is_closed_to_others(tmp_path: Path):
    root = tmp_path / "root"
    root.mkdir()
    assert mode(root) == 0o755
    prepare(LakeQueue(str(root)))
    assert mode(root) == 0o700


@pytest.mark.spec("DUR-73")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a directory away")
@pytest.mark.parametrize("part", ["queues", "q", "stats"])
def test_a_root_of_which_somebody_else_has_a_part_is_refused(tmp_path: Path, part: str):
    root = tmp_path / "root"
    LakeQueue(str(root)).create_queue("orders")
    LakeQueue(str(root)).compact()
    gc.collect()  # a root that a process has open stays open
    os.chown(root / part, 1234, 1234)
    for verb in ("create_queue", "queue", "delete_queue"):
        with pytest.raises(QueueClientError, match=f"cannot be used: user 1234 owns .*/{part}, and could change"):
            getattr(LakeQueue(str(root)), verb)("orders")
    root.chmod(0o2770)  # a group shares it
    assert LakeQueue(str(root)).queue("orders").name == "orders"


@pytest.mark.spec("DUR-73")
def test_a_root_of_which_everybody_may_change_a_part_is_refused(tmp_path: Path):
    root = tmp_path / "root"
    LakeQueue(str(root)).create_queue("orders")
    (root / "queues").chmod(0o777)
    assert LakeQueue(str(root)).queue("orders").name == "orders"  # nobody else gets there
    root.chmod(0o755)
    gc.collect()
    with pytest.raises(QueueClientError, match="everybody may change .*/queues, mode 777"):
        LakeQueue(str(root)).queue("orders")


def test_a_root_that_is_there_keeps_its_permissions(tmp_path: Path):
    root = tmp_path / "root"
    LakeQueue(str(root)).create_queue("orders")
    root.chmod(0o750)
    LakeQueue(str(root)).create_queue("letters")
    assert mode(root) == 0o750


def test_a_directory_that_holds_something_else_is_left_as_it_is(tmp_path: Path):
    (tmp_path / "file").touch()
    tmp_path.chmod(0o755)
    result = CliRunner().invoke(app, ["--root", str(tmp_path), "create", "orders"])
    assert result.exit_code == 3 and mode(tmp_path) == 0o755


def test_a_root_may_be_shared_with_a_group(tmp_path: Path):
    root = tmp_path / "root"
    os.umask(0o007)
    LakeQueue(str(root), root_mode=0o2770).create_queue("orders").send("a")
    assert mode(root) == 0o2770
    below = list(root.rglob("*"))
    assert {mode(path) for path in below if path.is_dir()} == {0o2770}
    assert {mode(path) for path in below if path.is_file()} == {0o660}


@pytest.mark.parametrize("wrong", [0, 0o070, 0o500, 0o10700, "700", None, -1])
def test_permissions_that_shut_the_owner_out_are_refused(tmp_path: Path, wrong: object):
    with pytest.raises(InvalidParameterValue, match="parameter root_mode is invalid"):
        LakeQueue(str(tmp_path / "root"), root_mode=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("way", ["option", "environment"])
def test_the_command_line_shares_all_that_it_makes(tmp_path: Path, way: str):
    root = tmp_path / "root"
    options = ["--root-mode", "2770"] if way == "option" else []
    environment = {"LAKEQUEUE_ROOT_MODE": None if way == "option" else "2770"}
    arguments = ["--root", str(root), *options, "create", "orders"]
    assert CliRunner(env=environment).invoke(app, arguments).exit_code == 0
    assert {mode(path) for path in [root, *root.rglob("*")] if path.is_dir()} == {0o2770}


@pytest.mark.parametrize("wrong", ["rwx", "0o700", "7", "77777", "870", "070"])
def test_the_command_line_refuses_what_is_no_permission(tmp_path: Path, wrong: str):
    result = CliRunner().invoke(app, ["--root", str(tmp_path / "root"), "--root-mode", wrong, "create", "orders"])
    assert result.exit_code in (1, 2) and result.stderr.count("\n") == 1 and "root" in result.stderr
    assert not (tmp_path / "root").exists()


def file_states(folder: Path) -> list[tuple[str, int, int, int]]:
    """Every file and directory below, by inode, bytes and, as taking a lock notes the time, time of change."""
    return sorted(
        (str(each), found.st_ino, found.st_size, 0 if each.suffix == ".lock" else found.st_mtime_ns)
        for each in folder.rglob("*")
        for found in [each.lstat()]
    )


@pytest.mark.spec("DUR-74")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a directory away")
@pytest.mark.parametrize("locks", ["none", "all", "some"])
def test_what_reads_makes_nothing_in_somebody_elses_root(tmp_path: Path, locks: str):
    """And a copy has only what tables name (permissions.md)."""
    root = tmp_path / "root"
    LakeQueue(str(root)).create_queue("orders").send("secret")
    for lock in root.rglob("*.lock"):
        if locks == "none" or (locks == "some" and lock.name != "_commit.lock"):
            lock.unlink()
    for folder in (root, root / "q", *root.glob("q/*/0/messages"), *root.glob("q/*/0/receipts/_delta_log")):
        (folder / "stray").write_text("x")
        (folder / "stray.parquet").symlink_to("/etc/hosts")
    give_away(root)
    before = file_states(root)
    for command in (["check"], ["doctor"], ["list"], ["show", "orders"], ["counts", "orders"], ["peek", "orders"],
                    ["sql", "SELECT * FROM queues"], ["copy", str(root), str(tmp_path / "copy")]):  # fmt: skip
        result = CliRunner().invoke(app, ["--root", str(root), *command])
        assert result.exit_code == 0, (command, result.output)
    assert file_states(root) == before
    copied = [*(tmp_path / "copy").rglob("*")]
    assert len(copied) > 10 and not [each for each in copied if each.is_symlink() or "stray" in each.name]


@pytest.mark.spec("DUR-74")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a directory away")
def test_what_the_superuser_locks_its_owner_can_lock(tmp_path: Path):
    table = tmp_path / "table"
    table.mkdir()
    os.chown(table, 1234, 1234)
    with committing(str(table), exclusive=True):
        pass
    assert {lock.stat().st_uid for lock in table.iterdir()} == {1234} and len(list(table.iterdir())) == 3
    (table / "_commit.lock").unlink()
    os.link(tmp_path / "table/_turn.lock", tmp_path / "linked")
    os.chown(tmp_path / "linked", 0, 0)
    with committing(str(table), exclusive=True):
        pass
    assert (tmp_path / "linked").stat().st_uid == 0, "what was there may be anybody's"


def give_away(root: Path) -> None:
    for each in (root, *root.rglob("*")):
        os.chown(each, 1234, 1234, follow_symlinks=False)
